package pool

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
)

// The first case of document 001: six blocks of a dual-stack pool; the seventh
// fails.
func TestDualStackPoolUntilItIsExhausted(t *testing.T) {
	m := newMachine(t)
	m.tune = func(c *Config) { c.Watermark = 0 }
	m.pool("default", 1, nil, "10.2.0.0/29 fd02::200/125", "10.3.0.0/30 fd02::300/126")
	m.pods(0, 12)
	o := m.startOperator()
	m.start()
	leases := map[int]source.Lease{}
	for i := range 12 {
		leases[i] = m.add(i)
	}
	first, fifth := leases[0], leases[8]
	if first.IPv4.String() != "10.2.0.0" || first.IPv6.String() != "fd02::200" || first.Pool != "default" || first.Block != "default-0" {
		t.Errorf("pod 0: %+v", first)
	}
	if fifth.IPv4.String() != "10.3.0.0" || fifth.IPv6.String() != "fd02::300" || fifth.Block != "default-4" {
		t.Errorf("pod 8: %+v", fifth)
	}
	if message := m.fails(12, "pool-exhausted"); !strings.Contains(message, "all 6 blocks of pool default") {
		t.Errorf("message: %s", message)
	}
	snap := m.Snapshot()
	if p := snap.Pools[0]; p.Blocks != 6 || p.Used != 12 || p.Failed != v1alpha1.ReasonPoolExhausted {
		t.Errorf("pool: %+v", p)
	}
	if got := m.routes.names(); len(got) != 6 {
		t.Errorf("routes %v", got)
	}
	m.Release(key(3))
	if l := m.add(12); l.IPv4 != leases[3].IPv4 {
		t.Errorf("pod 12: %+v", l)
	}
	if made, _ := o.counts("default"); made != 6 {
		t.Errorf("%d blocks were made", made)
	}
}

// A hundred pods at once on a node without anything, and the operator restarts
// in the middle: as many blocks as it takes, one request each.
func TestHundredAddsAtOnce(t *testing.T) {
	for _, bits := range []int32{0, 5} {
		t.Run(fmt.Sprint("bits ", bits), func(t *testing.T) {
			m := newMachine(t)
			m.pool("default", bits, nil, "10.0.0.0/16 fd00::/112")
			m.pods(0, 99)
			m.start()
			want := map[int32]int{0: 100, 5: 4}[bits] // 108 addresses: a quarter of a block is to be free
			first := newOperator(t)
			first.answerOnly(want / 2)
			first.start()
			var wg sync.WaitGroup
			leases := make([]source.Lease, 100)
			for i := range leases {
				wg.Go(func() {
					var err error
					if leases[i], err = m.try(i, 2*longest); err != nil {
						t.Errorf("pod %d: %v", i, err)
					}
				})
			}
			m.until("half is done", func() bool {
				made, _ := first.counts("default")
				return made == want/2
			})
			first.stop()
			second := newOperator(t)
			second.follow(first)
			second.start()
			wg.Wait()
			m.settled(want)
			if made, asked := second.counts("default"); made != want || asked != want {
				t.Errorf("%d blocks for %d requests, want %d", made, asked, want)
			}
			distinct(t, leases)
		})
	}
}

func distinct(t *testing.T, leases []source.Lease) {
	t.Helper()
	seen := map[netip.Addr]bool{}
	for _, l := range leases {
		for _, a := range l.Addrs() {
			if seen[a] {
				t.Errorf("%s was given twice", a)
			}
			seen[a] = true
		}
	}
}

// Of ADDs that give up, nothing stays: the blocks that come for them go back.
func TestFailedAddsLeakNothing(t *testing.T) {
	m := newMachine(t)
	m.tune = func(c *Config) { c.ReleaseDelay = 0 }
	m.pool("public", 0, nil, "10.0.0.0/24")
	m.namespace(namespace, "public")
	m.pods(0, 19)
	o := newOperator(t)
	o.answerOnly(0)
	o.start()
	m.start()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if l, err := m.Acquire(ctx, podRequest(i)); err == nil {
				t.Errorf("pod %d has %v", i, l)
			}
		})
	}
	m.until("all that may be is asked for", func() bool { return len(m.requests()) == maxOutstanding })
	cancel()
	wg.Wait()
	m.fails(0, "growing")
	o.answerOnly(-1)
	m.until("what was asked for came and went", func() bool {
		made, _ := o.counts("public")
		return made == maxOutstanding && len(m.blocks()) == 0 && len(m.requests()) == 0 && len(m.routes.names()) == 0
	})
}

// A pool of single addresses: a second DEL of a pod does not touch what another
// has by then (the best-known peer gives the block back).
func TestLateSecondDelOfASingleAddress(t *testing.T) {
	m := newMachine(t)
	m.tune = func(c *Config) { c.ReleaseDelay = 100 * time.Millisecond }
	m.pool("public", 0, nil, "10.0.0.1/32")
	m.namespace(namespace, "public")
	m.pods(0, 1)
	m.startOperator()
	m.start()
	a := m.add(0)
	m.settled(1)
	m.killAPI()
	m.Release(key(0))
	b := m.add(1)
	if a.IPv4 != b.IPv4 {
		t.Errorf("pods have %v and %v", a.IPv4, b.IPv4)
	}
	m.Release(key(0))
	m.Cancel(key(0))
	m.startAPI()
	m.until("the API server is back", func() bool { return m.Snapshot().LastError == "" })
	m.quiet(2 * time.Second)
	if o := m.block("public-0"); o == nil || o.DeletionTimestamp != nil {
		t.Errorf("the block of a running pod: %+v", o)
	}
	if l, err := m.try(1, longest); err != nil || l != b {
		t.Errorf("pod 1 has %v, %v", l, err)
	}
	m.Release(key(1))
	m.until("the block goes back", func() bool { return len(m.blocks()) == 0 && len(m.routes.names()) == 0 })
}

// quiet lets some time pass in which nothing is to happen.
func (m *machine) quiet(d time.Duration) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), d)
	defer cancel()
	<-ctx.Done()
}

func (m *machine) killAPI() {
	m.t.Helper()
	if err := harness.ControlPlane.KillAPIServer(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if m.t.Failed() {
			_ = harness.ControlPlane.StartAPIServer(context.Background())
		}
	})
}

func (m *machine) startAPI() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), longest)
	defer cancel()
	if err := harness.ControlPlane.StartAPIServer(ctx); err != nil {
		m.t.Fatal(err)
	}
	// An API server knows the kinds that policies compare a while after it is ready.
	bits := int32(0)
	probe := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: v1alpha1.AddressPoolSpec{
		BlockSizeBits: &bits, Subnets: []v1alpha1.PoolSubnet{{IPv4: "192.0.2.1/32"}},
	}}
	m.until("pools can be made", func() bool {
		return m.api.Create(m.t.Context(), probe.DeepCopy(), client.DryRunAll) == nil
	})
}

// A released pair cools over a restart, whichever family's record is left.
func TestCoolingAcrossRestart(t *testing.T) {
	for _, family := range []string{"IPv4", "IPv6", "both"} {
		t.Run(family, func(t *testing.T) {
			m := newMachine(t)
			m.tune = func(c *Config) { c.Cooling = time.Hour }
			m.pool("default", 1, nil, "10.0.0.0/31 fd00::/127")
			m.pods(0, 2)
			m.startOperator()
			m.start()
			a, b := m.add(0), m.add(1)
			m.Release(key(0))
			m.stop()
			m.prepare(restored{1, b})
			since := time.Now().Add(-time.Hour).Add(2 * time.Second)
			if family != "IPv6" {
				m.RestoreCooling(a.IPv4, since)
			}
			if family != "IPv4" {
				m.RestoreCooling(a.IPv6, since)
			}
			m.run()
			if l, err := m.try(2, time.Second); err == nil && time.Now().Before(since.Add(time.Hour)) {
				t.Errorf("pod 2 got %v while it cools", l)
			}
			if l := m.add(2); l.IPv4 != a.IPv4 || l.IPv6 != a.IPv6 {
				t.Errorf("pod 2 got %v", l)
			}
			if time.Now().Before(since.Add(time.Hour)) {
				t.Error("too early")
			}
		})
	}
}

// A block that is deleted gives no new address, keeps its routes while a pod has
// one, and is let go only after the file and the routes are without it.
func TestDraining(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 2, nil, "10.0.0.0/24")
	m.pods(0, 3)
	m.startOperator()
	m.start()
	a := m.add(0)
	m.settled(1)
	if err := m.api.Delete(t.Context(), &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: a.Block}}); err != nil {
		t.Fatal(err)
	}
	m.until("the daemon drains it", func() bool { return m.Snapshot().Pools[0].Draining == 1 })
	if b := m.add(1); b.Block == a.Block {
		t.Errorf("pod 1 got %v of a draining block", b)
	}
	if got := m.routes.names(); !slices.Contains(got, a.Block) {
		t.Errorf("routes %v while a pod has an address", got)
	}
	m.routes.failWith(errors.New("no route goes"))
	m.Release(key(0))
	m.until("it is out of the file", func() bool { return !strings.Contains(m.file(), a.Block) })
	m.quiet(500 * time.Millisecond)
	if o := m.block(a.Block); o == nil || len(o.Finalizers) == 0 {
		t.Error("let go with its route still there")
	}
	m.routes.failWith(nil)
	m.until("it is gone", func() bool { return m.block(a.Block) == nil })
	if got := m.routes.names(); slices.Contains(got, a.Block) {
		t.Errorf("routes %v", got)
	}
}

func (m *machine) file() string {
	data, err := os.ReadFile(filepath.Join(m.dir, blocksFile))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(data)
}

// A restarted daemon goes on draining what no daemon was there to see deleted.
func TestDeletedWhileNoDaemonRan(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 2, nil, "10.0.0.0/24")
	m.pods(0, 3)
	m.startOperator()
	m.start()
	a := m.add(0)
	m.settled(1)
	m.stop()
	if err := m.api.Delete(t.Context(), &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: a.Block}}); err != nil {
		t.Fatal(err)
	}
	m.start(restored{0, a})
	if b := m.add(1); b.Block == a.Block {
		t.Errorf("pod 1 got %v of a draining block", b)
	}
	if m.block(a.Block) == nil {
		t.Error("let go under a pod")
	}
	m.stop()
	m.start() // the pod ended
	m.until("it is gone", func() bool { return m.block(a.Block) == nil })
}

// With the API server away at start the file says what there is. Of pods only
// those are known that had an address: a new sandbox of one gets another of the
// same pool. Of others nothing is assumed.
func TestAPIServerAwayAtStart(t *testing.T) {
	m := newMachine(t)
	m.tune = func(c *Config) { c.Clock = clock.Real{} }
	m.pool("default", 2, nil, "10.0.0.0/24")
	m.pods(0, 2)
	m.startOperator()
	m.start()
	pod := m.podNamed(namespace, "known", "")
	known := source.Request{Key: key(100), Pod: attachment.Pod{Namespace: namespace, Name: "known", UID: string(pod.UID)}}
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	old, err := m.Acquire(ctx, known)
	if err != nil {
		t.Fatal(err)
	}
	a := m.add(0)
	m.settled(1)
	m.stop()
	m.killAPI()
	m.routes.blocks = nil
	m.prepare(restored{0, a})
	if err := m.Restore(known, old); err != nil {
		t.Fatal(err)
	}
	m.run()
	m.until("the routes of the file are there", func() bool { return slices.Equal(m.routes.names(), []string{a.Block}) })
	if l, err := m.try(0, longest); err != nil || l != a {
		t.Errorf("pod 0: %v, %v", l, err)
	}
	m.Release(known.Key)
	known.Key = key(101)
	if l, err := m.Acquire(ctx, known); err != nil || l.Block != a.Block {
		t.Errorf("another sandbox of a pod of before: %v, %v", l, err)
	}
	known.Pod.UID = "another"
	known.Key = key(102)
	soon, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if l, err := m.Acquire(soon, known); err == nil {
		t.Errorf("a pod of which nothing is known got %v", l)
	}
	m.fails(1, "unreachable")
	if err := m.Ready(); err != nil {
		t.Error(err)
	}
	m.startAPI()
	if l := m.add(1); l.Block != a.Block {
		t.Errorf("pod 1: %v", l)
	}
}

// What happened to the blocks while no daemon ran comes before what the file says.
func TestTheAPIServerCorrectsTheFile(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 2, nil, "10.0.0.0/29")
	m.pods(0, 2)
	m.startOperator()
	m.start()
	a := m.add(0)
	m.settled(1)
	m.stop()
	b := m.block(a.Block)
	b.Finalizers = nil
	if err := errors.Join(m.api.Update(t.Context(), b), m.api.Delete(t.Context(), b)); err != nil {
		t.Fatal(err)
	}
	m.start()
	if l := m.add(1); l.Block == a.Block {
		t.Errorf("pod 1 got %v of a block that the node does not have any more", l)
	}
	if got := m.routes.names(); slices.Contains(got, a.Block) {
		t.Errorf("routes %v", got)
	}
}

// While its Node is missing the daemon says of each block that it lives; while
// it is there nothing is written.
func TestClaims(t *testing.T) {
	m := newMachine(t)
	ticks := newTicks()
	m.tune = func(c *Config) { c.Clock = ticks }
	m.pool("default", 0, nil, "10.0.0.0/24")
	m.pods(0, 2)
	o := newOperator(t)
	o.answerOnly(0)
	o.start()
	m.start()
	node := &corev1.Node{}
	if err := m.api.Get(t.Context(), client.ObjectKey{Name: nodeID}, node); err != nil {
		t.Fatal(err)
	}
	stop := ticks.flow()
	a := m.addOwned(o, 0, node.UID)
	m.settled(1)
	stop()
	before := m.block(a.Block)
	ticks.Advance(5 * claimInterval)
	m.quiet(300 * time.Millisecond)
	if now := m.block(a.Block); now.ResourceVersion != before.ResourceVersion {
		t.Errorf("written while the Node is there: %+v", now.Status)
	}
	if err := m.api.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	renewed := func() time.Time {
		if b := m.block(a.Block); b.Status.RenewTime != nil {
			return b.Status.RenewTime.Time
		}
		return time.Time{}
	}
	var first time.Time
	m.until("a claim", func() bool {
		ticks.Advance(time.Second)
		first = renewed()
		return !first.IsZero()
	})
	m.until("another claim", func() bool {
		ticks.Advance(time.Second)
		return renewed().After(first.Add(claimInterval - time.Second))
	})
	stop = ticks.flow()
	m.addOwned(o, 1, "") // a block can still be asked for, and nobody owns the request
	stop()
	m.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeID}})
	m.until("the Node is seen", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return !m.ledger.node.missing
	})
	m.until("no claim is under way any more", func() bool {
		ticks.Advance(time.Second)
		return m.log.has("nothing is left to claim")
	})
	last := m.block(a.Block).ResourceVersion
	ticks.Advance(5 * claimInterval)
	m.quiet(300 * time.Millisecond)
	if now := m.block(a.Block); now.ResourceVersion != last {
		t.Errorf("written while the Node is there again: %+v", now.Status)
	}
}

// addOwned starts a pod for which a block is asked for, and looks who owns the
// request: the Node with this UID, or nobody.
func (m *machine) addOwned(o *operator, i int, uid types.UID) (l source.Lease) {
	m.t.Helper()
	o.answerOnly(0)
	var wg sync.WaitGroup
	wg.Go(func() { l = m.add(i) })
	list := &v1alpha1.BlockRequestList{}
	m.until("a request", func() bool { return m.api.List(m.t.Context(), list) == nil && len(list.Items) > 0 })
	owners := list.Items[0].OwnerReferences
	if uid == "" && len(owners) > 0 || uid != "" && (len(owners) != 1 || owners[0].Kind != "Node" || owners[0].UID != uid || *owners[0].Controller || *owners[0].BlockOwnerDeletion) {
		m.t.Errorf("owners %+v, want Node %s", owners, uid)
	}
	o.answerOnly(-1)
	wg.Wait()
	return l
}

// An empty block goes back after the delay, and not before.
func TestBlockGoesBackAfterTheDelay(t *testing.T) {
	m := newMachine(t)
	ticks := newTicks()
	m.tune = func(c *Config) { c.Clock, c.ReleaseDelay = ticks, 5*time.Minute }
	m.pool("public", 2, nil, "10.0.0.0/24")
	m.namespace(namespace, "public")
	m.pods(0, 0)
	m.startOperator()
	m.start()
	stop := ticks.flow()
	m.add(0)
	m.settled(1)
	stop()
	m.Release(key(0))
	ticks.Advance(time.Second)
	m.until("its address has cooled", func() bool {
		return !slices.ContainsFunc(m.Snapshot().Addresses, func(a source.AddressInfo) bool { return a.State == source.Cooling })
	})
	ticks.Advance(5*time.Minute - time.Second)
	m.quiet(300 * time.Millisecond)
	if got := m.blocks(); len(got) != 1 {
		t.Errorf("blocks %v", got)
	}
	ticks.Advance(2 * time.Second)
	m.until("it goes back", func() bool {
		ticks.Advance(time.Second) // whenever the daemon began to wait
		return len(m.blocks()) == 0
	})
}

// Who chooses: the pod where the pool lets its namespace, else the namespace,
// else nobody.
func TestPoolChoice(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 4, nil, "10.0.0.0/24")
	m.pool("global", 4, nil, "10.1.0.0/24")
	m.pool("inner", 4, []string{namespace}, "10.2.0.0/24")
	m.startOperator()
	m.start()
	get := func(ns, name, uid string, within time.Duration) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		l, err := m.Acquire(ctx, source.Request{Key: attachment.Key{ContainerID: ns + name + uid, IfName: "eth0"}, Pod: attachment.Pod{Namespace: ns, Name: name, UID: uid}})
		return l.Pool, err
	}
	expect := func(ns, name, uid, pool, message string) {
		t.Helper()
		var got string
		var err error
		m.until("an answer for "+ns+"/"+name, func() bool {
			if message == "" {
				got, err = get(ns, name, uid, longest)
				return true
			}
			got, err = get(ns, name, uid, time.Second) // the first may come before what it depends on is known
			return err == nil || strings.Contains(err.Error(), message)
		})
		if got != pool || (err == nil) != (message == "") || err != nil && !strings.Contains(err.Error(), message) {
			t.Errorf("%s/%s: pool %q, %v; want %q, %q", ns, name, got, err, pool, message)
		}
	}
	plain := m.podNamed(namespace, "plain", "")
	expect(namespace, "plain", string(plain.UID), "default", "")
	expect(namespace, "plain", "another", "", "is not among this node's pods")
	expect(namespace, "nobody", "", "", "is not among this node's pods")
	m.podNamed(namespace, "in", "inner")
	expect(namespace, "in", "", "inner", "")
	m.podNamed(namespace, "out", "global")
	expect(namespace, "out", "", "", "does not list namespace ns")
	m.podNamed(namespace, "wrong", "globe")
	expect(namespace, "wrong", "", "", "there is no AddressPool globe")
	m.namespace("rich", "global")
	m.known("rich", "global")
	m.podNamed("rich", "p", "")
	expect("rich", "p", "", "global", "")
	m.namespace("mistaken", "globe")
	m.known("mistaken", "globe")
	m.podNamed("mistaken", "p", "")
	expect("mistaken", "p", "", "", "there is no AddressPool globe, which the namespace's annotation")

	// What is chosen stays, whatever changes.
	m.annotate(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "rich"}}, "")
	m.podNamed("rich", "later", "")
	m.known("rich", "")
	expect("rich", "later", "", "default", "")
	expect("rich", "p", "", "global", "")
}

// A pod that is not known yet waits, and goes on when it is.
func TestPodsThatAreNotKnownWait(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 4, nil, "10.0.0.0/24")
	m.startOperator()
	m.start()
	m.until("a warm block", func() bool { return m.Ready() == nil })
	got := make(chan error, 1)
	go func() {
		_, err := m.try(0, longest)
		got <- err
	}()
	m.until("it waits, and why is told", func() bool {
		s := m.Snapshot()
		return s.Waiting == 1 && strings.Contains(s.LastError, "not among this node's pods")
	})
	m.pods(0, 0)
	if err := <-got; err != nil {
		t.Error(err)
	}

	// Nor is anything assumed of a namespace that is not known.
	m.mu.Lock()
	delete(m.ledger.namespaces, namespace)
	m.mu.Unlock()
	m.pods(1, 1)
	m.until("the pod is known", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		_, ok := m.ledger.pods[podName{namespace, "pod1"}]
		return ok
	})
	m.fails(1, "namespace-unknown")
	m.annotate(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, "default")
	m.add(1)
}

// A daemon whose role was not applied says so.
func TestRefusedByTheAPIServer(t *testing.T) {
	m := newMachine(t)
	cfg, err := harness.ControlPlane.ConfigFor("nobody")
	if err != nil {
		t.Fatal(err)
	}
	m.cfg = cfg
	m.start()
	m.pods(0, 0)
	m.until("it hears", func() bool { return m.Snapshot().LastError != "" })
	if message := m.fails(0, "permission"); !strings.Contains(message, "apply deploy/pool-mode") {
		t.Errorf("message: %s", message)
	}
	if err := m.Ready(); err == nil || !strings.Contains(err.Error(), "refuses berthd") {
		t.Errorf("ready: %v", err)
	}
}

// Pods of one pool do not wait for requests of another.
func TestNobodyWaitsForAnothersRequest(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 0, nil, "10.0.0.0/24")
	m.pool("slow", 0, nil, "10.1.0.0/24")
	m.namespace("snail", "slow")
	m.podNamed("snail", "p", "")
	m.pods(0, 3)
	s := m.way()
	s.hold = func(method, path string, body string) bool {
		return method == "POST" && strings.Contains(body, `"poolName":"slow"`)
	}
	m.startOperator()
	m.start()
	slow := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), longest)
		defer cancel()
		_, err := m.Acquire(ctx, source.Request{Key: key(99), Pod: attachment.Pod{Namespace: "snail", Name: "p"}})
		slow <- err
	}()
	<-s.held
	for i := range 4 {
		m.add(i)
	}
	select {
	case err := <-slow:
		t.Errorf("the slow one: %v", err)
	default:
	}
	s.release()
	if err := <-slow; err != nil {
		t.Error(err)
	}
}

// Replies that are lost after the API server did what it was asked cost neither
// a block nor a request.
func TestLostReplies(t *testing.T) {
	m := newMachine(t)
	m.tune = func(c *Config) { c.ReleaseDelay = 0 }
	m.pool("public", 1, nil, "10.0.0.0/24")
	m.namespace(namespace, "public")
	m.pods(0, 9)
	s := m.way()
	s.lose = func(method string) bool { return method != "GET" }
	o := newOperator(t)
	o.answerOnly(0)
	o.start()
	m.start()
	var wg sync.WaitGroup
	leases := make([]source.Lease, 10)
	for i := range leases {
		wg.Go(func() { leases[i] = m.add(i) })
	}
	// A request may be made again while the watch is late, and must not find its
	// answer taken already.
	m.until("the daemon knows what it has asked for", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.ledger.requests) == 5
	})
	m.quiet(2 * firstRetry)
	if got := m.requests(); len(got) != 5 {
		t.Errorf("requests %v, want 5", got)
	}
	o.answerOnly(-1)
	wg.Wait()
	m.settled(5)
	distinct(t, leases)
	if made, asked := o.counts("public"); made != 5 || asked != 5 {
		t.Errorf("%d blocks for %d requests", made, asked)
	}
	for i := range leases {
		m.Release(key(i))
	}
	m.until("all goes back", func() bool { return len(m.blocks()) == 0 && len(m.routes.names()) == 0 })
}

// A deleted pool lets its blocks drain where they are.
func TestPoolDeletedUnderPods(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 2, nil, "10.0.0.0/24")
	m.pods(0, 2)
	m.startOperator()
	m.start()
	a := m.add(0)
	m.settled(1)
	p := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if err := errors.Join(
		m.api.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"finalizers":[%q]}}`, v1alpha1.FinalizerPool))),
		m.api.Delete(t.Context(), p)); err != nil {
		t.Fatal(err)
	}
	// Who hears of the block first asks for another one.
	m.until("the daemon knows of the pool", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.ledger.pools["default"].deleting
	})
	if err := m.api.Delete(t.Context(), m.block(a.Block)); err != nil {
		t.Fatal(err)
	}
	m.until("the daemon knows of the block", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.ledger.blocks[a.Block].draining
	})
	m.fails(1, "pool-deleted")
	if got := m.requests(); len(got) != 0 {
		t.Errorf("requests %v", got)
	}
	if m.block(a.Block) == nil {
		t.Error("the block went under a pod")
	}
	m.Release(key(0))
	m.until("the block is gone", func() bool { return len(m.blocks()) == 0 })
}

// Somebody writes to a block between the daemon's look and its letting go: it
// looks again, and meanwhile gives no address of the block to anybody.
func TestBlockChangedWhileItIsLetGo(t *testing.T) {
	m := newMachine(t)
	m.pool("public", 2, nil, "10.0.0.0/30")
	m.namespace(namespace, "public")
	m.pods(0, 1)
	w := m.way()
	w.hold = func(method, path, _ string) bool { return method == "PATCH" && strings.HasSuffix(path, "public-0") }
	m.startOperator()
	m.start()
	m.add(0)
	m.settled(1)
	b := m.block("public-0")
	if err := m.api.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	m.Release(key(0))
	<-w.held
	if err := m.api.Patch(t.Context(), b, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"seen":"yes"}}}`))); err != nil {
		t.Fatal(err)
	}
	m.fails(1, "pool-exhausted") // all that the pool has is this block
	w.release()
	m.until("it is gone", func() bool { b := m.block("public-0"); return b == nil || b.UID != "" && b.DeletionTimestamp == nil })
	if !m.log.has("remove the finalizer of AddressBlock public-0") {
		t.Error("there was no conflict")
	}
}

func (l *logs) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), s)
}
