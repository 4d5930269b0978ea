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
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/addressqueue"
	"github.com/berthnet/berth/test/harness/check"
)

const (
	cools = 30 * time.Second
	delay = 5 * time.Minute
)

// allResources are all watched resources.
var allResources = []string{blocksResource, requestsResource, poolsResource, namespacesResource, nodesResource}

// testNode is holdings with a clock, in which operations succeed when a test completes them.
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

// give adds a block and commits it.
func (b *testNode) give(f blockFacts) {
	b.setBlock(f, true, b.now)
	b.commit()
}

// commit simulates the file and the data path.
func (b *testNode) commit() {
	want, gone := b.blocks.desired(), b.blocks.withdrawn()
	b.each(want, (*heldBlock).program)
	b.each(gone, (*heldBlock).clear)
	b.serveAll(b.now)
}

// pass simulates the main loop, and returns its requests.
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
		b.t.Errorf("%s: requests = %q, want %q", what, got, want)
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

// made adds requests as shown by the watch.
func (b *testNode) made(pool string, slots ...int) {
	for _, slot := range slots {
		name := requestName(pool, nodeID, slot)
		b.requests.set(&request{name: name, pool: pool, uid: uidOf(name), created: b.now})
	}
}

func TestBlockIsRequestedBelowTheWatermark(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 3})
	b.expect("warm default pool", "create-request default-0")
	b.made("default", 0)
	b.expect("request in progress")
	blk := blockOf("default-0", "10.0.0.0/29", "")
	blk.request = uidOf(requestName("default", nodeID, 0))
	b.give(blk)
	b.expect("request not complete yet")
	b.requests.byName[requestName("default", nodeID, 0)].block = "default-0"
	b.expect("request complete", "delete-request default-0")
	clear(b.requests.byName)
	for i := range 6 {
		b.adds(i, fmt.Sprint("10.0.0.", i))
		b.expect("two addresses free")
	}
	b.adds(6, "10.0.0.6")
	b.expect("one address free, watermark two", "create-request default-0")
	b.release(key(0), b.now)
	b.expect("cooling address does not count", "create-request default-0")
	b.now = b.now.Add(cools)
	b.expect("address has cooled")
	b.adds(7, "10.0.0.7")
	b.adds(8, "10.0.0.0")
}

// A block is kept, also a deleted one, while other software on the node holds one of its addresses.
func TestBlockWithAddressesOfOthersIsKept(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 2})
	s := &Source{state: newGuarded(b.holdings, clock.Real{})}
	for i, block := range []string{"10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30"} {
		b.give(blockOf(fmt.Sprint("default-", i), block, ""))
	}
	b.pass()
	s.Withhold([]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.5")})
	b.expect("two blocks with addresses of others")
	b.now = b.now.Add(delay)
	b.expect("after the release delay", "return-block default-2")
	gone := blockOf("default-0", "10.0.0.0/30", "")
	gone.draining = true
	b.give(gone)
	b.pass()
	if h := b.blocks.byName["default-0"]; h.release != notReleased {
		t.Error("a deleted block was withdrawn although others hold an address of it")
	}
	s.Withhold(nil)
	b.pass()
	if h := b.blocks.byName["default-0"]; h.release != withdrawn {
		t.Error("a deleted block was not withdrawn when nobody held its addresses")
	}
}

func TestWaitingPodsTriggerRequests(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "public", bits: 0})
	b.pools.namespaces["ns"] = "public"
	b.expect("unused pool")
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
	b.expect("at most eight requests", want...)
	b.made("public", 0, 1, 2, 3, 4, 5, 6, 7)
	b.expect("requests in progress")
	for i := range 3 {
		f := blockOf(fmt.Sprint("public-", i), fmt.Sprintf("10.0.0.%d/32", i), "")
		f.request = uidOf(requestName("public", nodeID, i))
		b.give(f)
		check.Equal(t, b.answer(ws[i]), fmt.Sprint("10.0.0.", i), "pod %d", i)
		delete(b.requests.byName, requestName("public", nodeID, i))
	}
	b.expect("seven pods wait, five requests in progress", "create-request public-0", "create-request public-1")
	for _, w := range ws[3:] {
		w.Leave()
	}
	b.expect("no pod waits, requests are kept for a while")
	b.now = b.now.Add(surplusFor)
	b.expect("requests no longer needed", "delete-request public-3", "delete-request public-4", "delete-request public-5", "delete-request public-6", "delete-request public-7")
}

// A request that the watch does not show yet is not created again in another slot that
// became free meanwhile.
func TestRequestInFlightIsNotRepeated(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "public", bits: 0})
	b.pools.namespaces["ns"] = "public"
	b.add(0)
	b.expect("first request", "create-request public-0")
	b.made("public", 0)
	b.add(1)
	b.expect("second request", "create-request public-1")
	f := blockOf("public-0", "10.0.0.0/32", "")
	f.request = uidOf(requestName("public", nodeID, 0))
	b.give(f)
	delete(b.requests.byName, requestName("public", nodeID, 0))
	b.expect("second request not in the watch yet", "create-request public-1")
	b.add(2)
	b.expect("third request", "create-request public-0", "create-request public-1")
	b.made("public", 0, 1)
	b.requests.byName[requestName("public", nodeID, 0)].uid = "another"
	b.expect("both requests in the watch")
}

func TestBlockLifecycle(t *testing.T) {
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
	b.release(key(0), b.now) // repeated DEL
	b.cancel(key(1), b.now)
	b.now = b.now.Add(cools)
	_, next := b.pass()
	check.Equal(t, next, delay, "time until the release of the block")
	b.now = b.now.Add(delay - 1)
	b.adds(2, "10.0.0.1 fd00::1") // longer free than 10.0.0.0
	b.expect("block in use again")
	b.cancel(key(2), b.now)
	b.expect("block empty again")
	b.now = b.now.Add(delay - 1)
	b.expect("before the delay")
	b.now = b.now.Add(1)
	b.expect("release after the delay", "return-block public-0")
	b.adds(3, "waits")
	b.expect("block needed after all")
	check.Equal(t, b.leases.byKey[key(3)].IPv4, netip.MustParseAddr("10.0.0.1"), "pod 3")

	f := b.blocks.byName["public-0"].blockFacts
	f.draining, f.finalizers, f.version = true, []string{v1alpha1.FinalizerBlock}, "7"
	b.setBlock(f, true, b.now)
	b.adds(4, "waits")
	b.expect("draining block assigns nothing", "create-request public-0")
	b.release(key(3), b.now)
	b.expect("last address cooling", "create-request public-0")
	b.now = b.now.Add(cools)
	b.expect("withdrawn in memory", "create-request public-0")
	check.Equal(t, len(b.blocks.desired()), 0, "blocks in the file")
	b.commit()
	b.expect("finalizer removed last", "create-request public-0", "free-block public-0")
	f.version = "8"
	b.setBlock(f, true, b.now)
	b.expect("deletion not in the watch yet", "create-request public-0", "free-block public-0")
	b.loseBlock("public-0", b.now)
	b.expect("block deleted", "create-request public-0")
}

func TestDeletedPoolAssignsNothing(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 3, deleting: true})
	w, got := b.add(0)
	if why := b.at(b.now).waits(w); got != "waits" || why.Reason != "pool-deleted" {
		t.Errorf("pod = %s, reason = %v; want waits with pool-deleted", got, why)
	}
	b.expect("no requests for a deleted pool")
	b.pools.drop("default")
	if why := b.at(b.now).waits(w); why.Reason != "pool-unknown" || !strings.Contains(why.Message, "AddressPool default does not exist") {
		t.Errorf("waits() = %v, want pool-unknown", why)
	}
	b.pools.set(poolFacts{name: "default", bits: 0})
	b.expect("pool created again", "create-request default-0")
}

func TestFailedRequestGivesTheReason(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 0})
	w, _ := b.add(0)
	if why := b.at(b.now).waits(w); why.Reason != "growing" {
		t.Errorf("waits() before the request = %v, want growing", why)
	}
	b.made("default", 0)
	b.now = b.now.Add(3 * time.Second)
	if why := b.at(b.now).waits(w); why.Reason != "growing" || !strings.Contains(why.Message, "3s ago") {
		t.Errorf("waits() after the request = %v, want growing since 3s", why)
	}
	r := b.requests.byName[requestName("default", nodeID, 0)]
	r.failed, r.message = v1alpha1.ReasonPoolExhausted, "all 6 blocks of pool default are given; append a subnet, or wait until a node returns one"
	b.expect("failed request is kept for the operator's retry")
	if why := b.at(b.now).waits(w); why.Reason != "pool-exhausted" || why.Message != "no address of pool default is free: "+r.message {
		t.Errorf("waits() after the failure = %v, want pool-exhausted with the operator's message", why)
	}
}

func TestBlockOfCompleteRequestIsLookedUp(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 0})
	b.add(0)
	b.made("default", 0)
	r := b.requests.byName[requestName("default", nodeID, 0)]
	r.block, r.completed = "default-5", b.now
	b.expect("block expected in the watch")
	b.now = b.now.Add(lookAfter)
	b.expect("block missing in the watch", "look-for-block default-5")
	r.spent = true
	b.expect("block deleted", "create-request default-1", "delete-request default-0")
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
					t.Error("pod 2 got an address that is cooling")
				}
				b.now = b.now.Add(1)
				b.pass()
				check.Equal(t, b.leases.byKey[key(2)].IPv6, netip.MustParseAddr("fd00::"), "pod 2")
			})
		}
	}
}

// A pair that had cooled before the daemon started is assigned after those never used.
func TestReuseOrderSurvivesARestart(t *testing.T) {
	b := newTestNode(t, poolFacts{name: "default", bits: 2})
	b.give(blockOf("default-0", "10.0.0.0/30", "fd00::/126"))
	for _, a := range []string{"10.0.0.2", "fd00::2", "fd00::", "10.0.0.0"} {
		b.restoreCooling(netip.MustParseAddr(a), b.now.Add(-2*cools), b.now)
	}
	b.restoreCooling(netip.MustParseAddr("10.9.9.9"), b.now.Add(-2*cools), b.now) // in a released block
	check.Equal(t, len(b.leases.cooling), 0, "cooling %v", b.leases.cooling)
	for i, want := range []string{"10.0.0.1 fd00::1", "10.0.0.3 fd00::3", "10.0.0.2 fd00::2", "10.0.0.0 fd00::"} {
		b.adds(i, want)
	}
}

func TestRestore(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for name, lease := range map[string]source.Lease{
		"whole": {IPv4: v4, IPv6: v6, Origin: introspect.Origin{Pool: "default", Block: "default-0"}}, "IPv4 of a damaged record": {IPv4: v4}, "IPv6 of a damaged record": {IPv6: v6},
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
					t.Error("restore() accepted an address that another pod holds")
				}
				b.give(f)
				b.adds(2, "10.0.0.0 fd00::")
				b.adds(3, "waits")
				b.release(key(0), b.now)
				b.now = b.now.Add(cools)
				b.pass()
				if h := b.leases.byKey[key(3)]; h.IPv4 != v4 || h.IPv6 != v6 {
					t.Errorf("lease of pod 3 = %v, want the released pair", h)
				}
			})
		}
	}
}

// A block that is taken from the node while pods use it: they keep their
// addresses and routes, and no other pod gets one of them, not even from another block.
func TestBlockLostWhilePodsUseIt(t *testing.T) {
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
		t.Errorf("routed blocks = %v, want default-0", got)
	}
	b.release(key(0), b.now)
	b.now = b.now.Add(cools - 1)
	b.pass()
	b.commit()
	if _, ok := b.leases.byKey[key(2)]; ok {
		t.Error("pod 2 got an address that is cooling")
	}
	b.now = b.now.Add(1)
	b.pass()
	b.commit()
	check.Equal(t, b.leases.byKey[key(2)].Block, "other-0", "pod 2")
	if got := b.blocks.desired(); len(got) != 1 || got[0].name != "other-0" {
		t.Errorf("routed blocks = %v, want other-0", got)
	}
}

// A recreated block keeps the leases of its addresses.
func TestRecreatedBlockKeepsLeases(t *testing.T) {
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
			t.Errorf("ready() = %v, want %q", err, want)
		}
	}
	b.sync.SetListed(false, poolsResource)
	expect("has not listed")
	b.sync.SetListed(true, poolsResource)
	expect("no AddressPool exists")
	b.pools.set(poolFacts{name: "public", bits: 0})
	expect("") // the first pod triggers the first request
	b.pools.set(poolFacts{name: "default", bits: 5})
	expect("about to be requested")
	b.give(blockOf("default-0", "10.0.0.0/27", ""))
	expect("")
	b.loseBlock("default-0", b.now)
	expect("") // exhaustion does not affect readiness
}

// The cost in the holdings of one ADD and DEL, and of the following pass,
// with many pods on the node, at worst each in a block of its own.
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

// crowded returns a node with pods, and one free block.
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
		tb.Fatalf("%d pods have addresses, want %d", len(b.leases.byKey), pods)
	}
	return b
}
