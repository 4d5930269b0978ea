package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/addressqueue"
	"github.com/berthnet/berth/test/harness/check"
)

const (
	cools = 30 * time.Second
	delay = 5 * time.Minute
)

// allResources is everything that is watched.
var allResources = []string{blocksResource, requestsResource, poolsResource, namespacesResource, nodesResource}

// testNode is holdings with a clock, for which everything succeeds when a test says so.
type testNode struct {
	t   *testing.T
	now time.Time
	*holdings
}

func newTestNode(t *testing.T, pools ...poolFacts) *testNode {
	b := &testNode{t: t, now: t0, holdings: newHoldings(policy{cooling: cools, watermark: 25, releaseDelay: delay})}
	b.sync.SetListed(true, allResources...)
	b.node = "n"
	for _, p := range pools {
		b.pools.set(p)
	}
	b.pools.namespaces["ns"] = ""
	return b
}

// give puts a block in place.
func (b *testNode) give(f blockFacts) {
	b.setBlock(f, true, b.now)
	b.commit()
}

// commit is the file and the data path.
func (b *testNode) commit() {
	want, gone := b.blocks.desired(), b.blocks.withdrawn()
	b.each(want, (*heldBlock).program)
	b.each(gone, (*heldBlock).clear)
	b.serveAll(b.now)
}

// pass is what the loop does; it lists what is asked for.
func (b *testNode) pass() (todo []string, next time.Duration) {
	b.expire(b.now)
	b.review(b.now)
	actions, at := b.plan(nodeID, b.now)
	b.serveAll(b.now)
	b.forget()
	for _, a := range actions {
		todo = append(todo, a.kind+" "+strings.Replace(a.name, nodeHash(nodeID)+"-", "", 1))
	}
	slices.Sort(todo)
	if !at.IsZero() {
		next = at.Sub(b.now)
	}
	return todo, next
}

func (b *testNode) expect(what string, want ...string) {
	b.t.Helper()
	if got, _ := b.pass(); !slices.Equal(got, want) {
		b.t.Errorf("%s: asked for %q, want %q", what, got, want)
	}
}

func (b *testNode) add(i int) (*addressqueue.Waiter, string) {
	b.t.Helper()
	w := b.admit(podRequest(i), b.now)
	return w, b.answer(w)
}

func (b *testNode) answer(w *addressqueue.Waiter) string {
	select {
	case a := <-w.Answered():
		if a.Err != nil {
			why, _ := errors.AsType[*source.Exhausted](a.Err)
			return why.Reason
		}
		var out []string
		for _, addr := range a.Lease.Addrs() {
			out = append(out, addr.String())
		}
		return strings.Join(out, " ")
	default:
		return "waits"
	}
}

func (b *testNode) adds(i int, want string) {
	b.t.Helper()
	if _, got := b.add(i); got != want {
		b.t.Errorf("pod %d: %s, want %s", i, got, want)
	}
}

// made takes that requests were made, as the watch shows.
func (b *testNode) made(pool string, slots ...int) {
	for _, slot := range slots {
		name := requestName(pool, nodeID, slot)
		b.requests.set(&request{name: name, pool: pool, uid: uidOf(name), created: b.now})
	}
}

func TestWarmBlockBeforeTheLastIsFull(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 3})
	b.expect("the default pool is kept warm", "create-request default-0")
	b.made("default", 0)
	b.expect("none twice")
	blk := blockOf("default-0", "10.0.0.0/29", "")
	blk.request = uidOf(requestName("default", nodeID, 0))
	b.give(blk)
	b.expect("its request is not complete yet")
	b.requests.byName[requestName("default", nodeID, 0)].block = "default-0"
	b.expect("its request is done", "delete-request default-0")
	clear(b.requests.byName)
	for i := range 6 {
		b.adds(i, fmt.Sprint("10.0.0.", i))
		b.expect("two are free")
	}
	b.adds(6, "10.0.0.6")
	b.expect("one is free: the watermark is two", "create-request default-0")
	b.release(key(0), b.now)
	b.expect("a cooling address is none to hand out", "create-request default-0")
	b.now = b.now.Add(cools)
	b.expect("it has cooled")
	b.adds(7, "10.0.0.7")
	b.adds(8, "10.0.0.0")
}

func TestWaitingPodsAskAtOnce(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "public", bits: 0})
	b.pools.namespaces["ns"] = "public"
	b.expect("nobody uses the pool")
	var ws []*addressqueue.Waiter
	for i := range 10 {
		w, got := b.add(i)
		check.Equal(t, got, "waits", "pod %d", i)
		ws = append(ws, w)
	}
	var want []string
	for i := range 8 {
		want = append(want, fmt.Sprint("create-request public-", i))
	}
	b.expect("eight at most", want...)
	b.made("public", 0, 1, 2, 3, 4, 5, 6, 7)
	b.expect("none twice")
	for i := range 3 {
		f := blockOf(fmt.Sprint("public-", i), fmt.Sprintf("10.0.0.%d/32", i), "")
		f.request = uidOf(requestName("public", nodeID, i))
		b.give(f)
		check.Equal(t, b.answer(ws[i]), fmt.Sprint("10.0.0.", i), "pod %d", i)
		delete(b.requests.byName, requestName("public", nodeID, i))
	}
	b.expect("seven wait, five are asked for", "create-request public-0", "create-request public-1")
	for _, w := range ws[3:] {
		w.Leave()
	}
	b.expect("nobody waits; they may be back")
	b.now = b.now.Add(surplusFor)
	b.expect("nobody came back", "delete-request public-3", "delete-request public-4", "delete-request public-5", "delete-request public-6", "delete-request public-7")
}

// A request that the watch does not show yet is not made in another slot, one
// that became free meanwhile.
func TestRequestOnItsWayIsNotMadeTwice(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "public", bits: 0})
	b.pools.namespaces["ns"] = "public"
	b.add(0)
	b.expect("the first", "create-request public-0")
	b.made("public", 0)
	b.add(1)
	b.expect("the second", "create-request public-1")
	f := blockOf("public-0", "10.0.0.0/32", "")
	f.request = uidOf(requestName("public", nodeID, 0))
	b.give(f)
	delete(b.requests.byName, requestName("public", nodeID, 0))
	b.expect("the second has not been seen", "create-request public-1")
	b.add(2)
	b.expect("the third", "create-request public-0", "create-request public-1")
	b.made("public", 0, 1)
	b.requests.byName[requestName("public", nodeID, 0)].uid = "another"
	b.expect("both are seen")
}

func TestLifeOfABlock(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "public", bits: 1})
	b.pools.namespaces["ns"] = "public"
	w, _ := b.add(0)
	b.setBlock(blockOf("public-0", "10.0.0.0/31", "fd00::/127"), true, b.now)
	b.serveAll(b.now)
	check.Equal(t, b.answer(w), "waits", "pod 0 without a route")
	b.commit()
	check.Equal(t, b.answer(w), "10.0.0.0 fd00::", "pod 0")
	b.adds(0+1, "10.0.0.1 fd00::1")
	b.release(key(0), b.now)
	b.release(key(0), b.now) // a second DEL
	b.cancel(key(1), b.now)
	b.now = b.now.Add(cools)
	_, next := b.pass()
	check.Equal(t, next, delay, "the block goes back in")
	b.now = b.now.Add(delay - 1)
	b.adds(2, "10.0.0.1 fd00::1") // longer free than 10.0.0.0
	b.expect("it is used again")
	b.cancel(key(2), b.now)
	b.expect("empty again")
	b.now = b.now.Add(delay - 1)
	b.expect("not at once")
	b.now = b.now.Add(1)
	b.expect("it goes back", "return-block public-0")
	b.adds(3, "waits")
	b.expect("it is needed after all")
	check.Equal(t, b.leases.byKey[key(3)].IPv4, netip.MustParseAddr("10.0.0.1"), "pod 3")

	f := b.blocks.byName["public-0"].blockFacts
	f.draining, f.finalizers, f.version = true, []string{v1alpha1.FinalizerBlock}, "7"
	b.setBlock(f, true, b.now)
	b.adds(4, "waits")
	b.expect("a draining block gives nothing", "create-request public-0")
	b.release(key(3), b.now)
	b.expect("its last address cools", "create-request public-0")
	b.now = b.now.Add(cools)
	b.expect("withdrawn in memory", "create-request public-0")
	check.Equal(t, len(b.blocks.desired()), 0, "blocks in the file")
	b.commit()
	b.expect("the finalizer goes last", "create-request public-0", "free-block public-0")
	f.version = "8"
	b.setBlock(f, true, b.now)
	b.expect("until the watch shows that it is gone", "create-request public-0", "free-block public-0")
	b.loseBlock("public-0", b.now)
	b.expect("gone", "create-request public-0")
}

func TestDeletedPoolGivesNothing(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 3, deleting: true})
	w, got := b.add(0)
	if why := b.at(b.now).waits(w); got != "waits" || why.Reason != "pool-deleted" {
		t.Errorf("%s: %v", got, why)
	}
	b.expect("nothing is asked for")
	b.pools.drop("default")
	if why := b.at(b.now).waits(w); why.Reason != "pool-unknown" || !strings.Contains(why.Message, "AddressPool default does not exist") {
		t.Errorf("%v", why)
	}
	b.pools.set(poolFacts{name: "default", bits: 0})
	b.expect("there is one again", "create-request default-0")
}

func TestFailedRequestSaysWhy(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 0})
	w, _ := b.add(0)
	if why := b.at(b.now).waits(w); why.Reason != "growing" {
		t.Errorf("%v", why)
	}
	b.made("default", 0)
	b.now = b.now.Add(3 * time.Second)
	if why := b.at(b.now).waits(w); why.Reason != "growing" || !strings.Contains(why.Message, "3s ago") {
		t.Errorf("%v", why)
	}
	r := b.requests.byName[requestName("default", nodeID, 0)]
	r.failed, r.message = v1alpha1.ReasonPoolExhausted, "all 6 blocks of pool default are given; append a subnet, or wait until a node returns one"
	b.expect("it stands: the operator tries again by itself")
	if why := b.at(b.now).waits(w); why.Reason != "pool-exhausted" || why.Message != "no address of pool default is free: "+r.message {
		t.Errorf("%v", why)
	}
}

func TestLookForTheBlockOfACompleteRequest(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 0})
	b.add(0)
	b.made("default", 0)
	r := b.requests.byName[requestName("default", nodeID, 0)]
	r.block, r.completed = "default-5", b.now
	b.expect("the watch will show it")
	b.now = b.now.Add(lookAfter)
	b.expect("it did not", "look-for-block default-5")
	r.spent = true
	b.expect("it is no more", "create-request default-1", "delete-request default-0")
}

func TestCoolingOfEitherFamily(t *testing.T) {
	for _, cooling := range []string{"10.0.0.0", "fd00::"} {
		for _, known := range []bool{true, false} {
			t.Run(fmt.Sprint(cooling, " known ", known), func(t *testing.T) {
				b := newTestNode(t, poolFacts{name: "default", bits: 1})
				f := blockOf("default-0", "10.0.0.0/31", "fd00::/127")
				if known {
					b.give(f)
				}
				b.restoreCooling(netip.MustParseAddr(cooling), b.now.Add(-10*time.Second), b.now)
				b.give(f)
				b.adds(1, "10.0.0.1 fd00::1")
				b.adds(2, "waits")
				b.now = b.now.Add(20*time.Second - 1)
				b.pass()
				if _, ok := b.leases.byKey[key(2)]; ok {
					t.Error("handed out while it cools")
				}
				b.now = b.now.Add(1)
				b.pass()
				check.Equal(t, b.leases.byKey[key(2)].IPv6, netip.MustParseAddr("fd00::"), "pod 2")
			})
		}
	}
}

// A pair that had cooled before the daemon started goes behind those never used.
func TestOrderOfFreedomOutlastsARestart(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 2})
	b.give(blockOf("default-0", "10.0.0.0/30", "fd00::/126"))
	for _, a := range []string{"10.0.0.2", "fd00::2", "fd00::", "10.0.0.0"} {
		b.restoreCooling(netip.MustParseAddr(a), b.now.Add(-2*cools), b.now)
	}
	b.restoreCooling(netip.MustParseAddr("10.9.9.9"), b.now.Add(-2*cools), b.now) // of a block that went back
	check.Equal(t, len(b.leases.cooling), 0, "cooling %v", b.leases.cooling)
	for i, want := range []string{"10.0.0.1 fd00::1", "10.0.0.3 fd00::3", "10.0.0.2 fd00::2", "10.0.0.0 fd00::"} {
		b.adds(i, want)
	}
}

func TestRestore(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for name, lease := range map[string]source.Lease{
		"whole": {IPv4: v4, IPv6: v6, Origin: introspect.Origin{Pool: "default", Block: "default-0"}}, "IPv4 of a damaged record": {IPv4: v4}, "IPv6 of one": {IPv6: v6},
	} {
		for _, known := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " known ", known), func(t *testing.T) {
				b := newTestNode(t, poolFacts{name: "default", bits: 1})
				f := blockOf("default-0", "10.0.0.0/31", "fd00::/127")
				if known {
					b.give(f)
				}
				check.OK(t, b.restore(podRequest(0), lease, b.now))
				if err := b.restore(podRequest(1), lease, b.now); err == nil {
					t.Error("two pods have one address")
				}
				b.give(f)
				b.adds(2, "10.0.0.0 fd00::")
				b.adds(3, "waits")
				b.release(key(0), b.now)
				b.now = b.now.Add(cools)
				b.pass()
				if h := b.leases.byKey[key(3)]; h.IPv4 != v4 || h.IPv6 != v6 {
					t.Errorf("pod 3: %v", h)
				}
			})
		}
	}
}

// A block that somebody took from the node under its pods: they keep their
// addresses and routes, and nobody else gets one, from no other block either.
func TestBlockLostUnderPods(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 1}, poolFacts{name: "other", bits: 1})
	b.give(blockOf("default-0", "10.0.0.0/31", ""))
	b.adds(0, "10.0.0.0")
	check.Equal(t, b.loseBlock("default-0", b.now), 1, "pods")
	b.adds(1, "waits")
	check.Equal(t, len(b.blocks.desired()), 1, "routes")
	b.give(blockOf("other-0", "10.0.0.0/31", ""))
	b.pools.namespaces["ns"] = "other"
	b.adds(2, "waits")
	if got := b.blocks.desired(); len(got) != 1 || got[0].name != "default-0" {
		t.Errorf("routes %v", got)
	}
	b.release(key(0), b.now)
	b.now = b.now.Add(cools - 1)
	b.pass()
	b.commit()
	if _, ok := b.leases.byKey[key(2)]; ok {
		t.Error("handed out while it cools")
	}
	b.now = b.now.Add(1)
	b.pass()
	b.commit()
	check.Equal(t, b.leases.byKey[key(2)].Block, "other-0", "pod 2")
	if got := b.blocks.desired(); len(got) != 1 || got[0].name != "other-0" {
		t.Errorf("routes %v", got)
	}
}

// A block that is gone and comes back remembers who has what.
func TestBlockComesBackAsAnother(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 2})
	f := blockOf("default-0", "10.0.0.0/30", "")
	b.give(f)
	b.adds(0, "10.0.0.0")
	b.adds(1, "10.0.0.1")
	b.release(key(1), b.now)
	f.uid = "another"
	b.give(f)
	b.adds(2, "10.0.0.2")
	b.adds(3, "10.0.0.3")
	b.adds(4, "waits")
	b.now = b.now.Add(cools)
	b.pass()
	check.Equal(t, b.leases.byKey[key(4)].IPv4, netip.MustParseAddr("10.0.0.1"), "pod 4")
}

func TestReady(t *testing.T) {
	b := newTestNode(t)
	expect := func(want string) {
		t.Helper()
		err := b.at(b.now).ready()
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("ready: %v, want %q", err, want)
		}
	}
	b.sync.SetListed(false, poolsResource)
	expect("has not listed")
	b.sync.SetListed(true, poolsResource)
	expect("no AddressPool exists")
	b.pools.set(poolFacts{name: "public", bits: 0})
	expect("") // its first block comes with its first pod
	b.pools.set(poolFacts{name: "default", bits: 5})
	expect("about to be requested")
	b.give(blockOf("default-0", "10.0.0.0/27", ""))
	expect("")
	b.loseBlock("default-0", b.now)
	expect("") // exhaustion does not count
}

// What one ADD and DEL cost in the holdings, and what the pass after them does,
// with so many pods on the node, each in a block of its own at worst.
func BenchmarkAddDel(b *testing.B) {
	for _, bits := range []int{0, 5} {
		for _, pods := range []int{10, 500} {
			b.Run(fmt.Sprintf("bits=%d/pods=%d", bits, pods), func(b *testing.B) {
				n := crowded(b, bits, pods)
				for b.Loop() {
					n.admit(podRequest(pods), n.now)
					n.cancel(key(pods), n.now)
				}
			})
			b.Run(fmt.Sprintf("pass/bits=%d/pods=%d", bits, pods), func(b *testing.B) {
				n := crowded(b, bits, pods)
				for b.Loop() {
					n.expire(n.now)
					n.review(n.now)
					n.plan(nodeID, n.now)
					n.serveAll(n.now)
					n.forget()
				}
			})
		}
	}
}

// crowded is a node with pods, and one free block.
func crowded(tb testing.TB, bits, pods int) *testNode {
	b := &testNode{now: t0, holdings: newHoldings(policy{cooling: cools, watermark: 25, releaseDelay: time.Hour})}
	b.sync.SetListed(true, allResources...)
	b.node = "n"
	b.pools.set(poolFacts{name: "default", bits: bits})
	b.pools.namespaces["ns"] = ""
	size := 1 << bits
	for i := 0; i*size <= pods+size; i++ {
		at := i * size
		b.give(blockOf(fmt.Sprint("default-", i), fmt.Sprintf("10.0.%d.%d/%d", at/256, at%256, 32-bits), ""))
	}
	for i := range pods + 1 {
		if i < pods {
			b.admit(podRequest(i), b.now)
		}
	}
	if len(b.leases.byKey) != pods {
		tb.Fatalf("%d pods have addresses", len(b.leases.byKey))
	}
	return b
}
