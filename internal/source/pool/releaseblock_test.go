package pool

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
)

// In a pool of single addresses, a repeated DEL of a pod does not affect the next holder of
// its address.
func TestRepeatedDelWithSingleAddressBlocks(t *testing.T) {
	m := newMachine(t)
	m.tune = func(c *Config) { c.ReleaseDelay = 100 * time.Millisecond }
	a := m.begin("public", 0, 2, "10.0.0.1/32")
	back := harness.WithoutAPIServer(t)
	m.Release(key(0))
	b := m.add(1)
	if a.IPv4 != b.IPv4 {
		t.Errorf("addresses = %v and %v, want the same", a.IPv4, b.IPv4)
	}
	m.Release(key(0))
	m.Cancel(key(0))
	back()
	m.until("the API server is back", func() bool { return m.Snapshot().LastError == "" })
	m.quiet(2 * time.Second)
	if o := m.block("public-0"); o == nil || o.DeletionTimestamp != nil {
		t.Errorf("block of a running pod = %+v, want it not deleted", o)
	}
	if l, err := m.try(1, longest); err != nil || l != b {
		t.Errorf("lease of pod 1 = %v, %v; want %v", l, err, b)
	}
	m.Release(key(1))
	m.until("the block is released", m.empty)
}

// quiet waits for a time in which nothing should happen.
func (m *machine) quiet(d time.Duration) {
	m.T.Helper()
	ctx, cancel := context.WithTimeout(m.T.Context(), d)
	defer cancel()
	<-ctx.Done()
}

// A deleted block assigns no addresses, keeps its routes while a pod has
// one, and is released only after the file and the routes no longer include it.
func TestDraining(t *testing.T) {
	m := newMachine(t)
	a := m.begin("default", 2, 4, "10.0.0.0/24")
	m.drain(a.Block)
	m.until("the daemon drains it", func() bool { return m.pools()[0].Draining == 1 })
	if b := m.add(1); b.Block == a.Block {
		t.Errorf("pod 1 got %v of a draining block", b)
	}
	if got := m.routes.names(); !slices.Contains(got, a.Block) {
		t.Errorf("routed blocks while a pod has an address = %v, want %s included", got, a.Block)
	}
	m.routes.failWith(errors.New("no route can be removed"))
	m.Release(key(0))
	m.until("the block is removed from the file", func() bool { return !strings.Contains(m.file(), a.Block) })
	m.quiet(500 * time.Millisecond)
	if o := m.block(a.Block); o == nil || len(o.Finalizers) == 0 {
		t.Error("the block was released while its route exists")
	}
	m.routes.failWith(nil)
	m.until("the block is deleted", func() bool { return m.block(a.Block) == nil })
	if got := m.routes.names(); slices.Contains(got, a.Block) {
		t.Errorf("routed blocks = %v, want %s removed", got, a.Block)
	}
}

// While its Node is missing the daemon renews its claim of each block; while
// the Node exists nothing is written.
func TestClaims(t *testing.T) {
	m := newMachine(t)
	ticks := newTicks()
	m.tune = func(c *Config) { c.Clock = ticks }
	m.pool("default", 0, nil, "10.0.0.0/24")
	m.pods(0, 2)
	m.start()
	node := &corev1.Node{}
	m.Get(nodeID, node)
	stop := ticks.flow()
	a := m.addOwned(0, node.UID)
	m.untilAllInUse(1)
	stop()
	before := m.block(a.Block)
	ticks.Advance(5 * claimInterval)
	m.quiet(300 * time.Millisecond)
	if now := m.block(a.Block); now.ResourceVersion != before.ResourceVersion {
		t.Errorf("block status was written while the Node exists: %+v", now.Status)
	}
	harness.OK(t, m.API.Delete(t.Context(), node))
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
	m.addOwned(1, "") // blocks can still be requested, without an owner of the request
	stop()
	m.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeID}})
	m.sees("the Node", func(l *holdings) bool { return !l.nodeMissing() })
	m.until("no claim is in progress", func() bool {
		ticks.Advance(time.Second)
		return (m.Log.Count("no longer claimed") > 0)
	})
	last := m.block(a.Block).ResourceVersion
	ticks.Advance(5 * claimInterval)
	m.quiet(300 * time.Millisecond)
	if now := m.block(a.Block); now.ResourceVersion != last {
		t.Errorf("block status was written after the Node returned: %+v", now.Status)
	}
}

// addOwned starts a pod that requires a new block, and checks the owner of the
// request: the Node with this UID, or none.
func (m *machine) addOwned(i int, uid types.UID) (l source.Lease) {
	m.T.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { l = m.add(i) })
	list := &v1alpha1.BlockRequestList{}
	m.until("a request", func() bool { return m.API.List(m.T.Context(), list) == nil && len(list.Items) > 0 })
	owners := list.Items[0].OwnerReferences
	if uid == "" && len(owners) > 0 || uid != "" && (len(owners) != 1 || owners[0].Kind != "Node" || owners[0].UID != uid || *owners[0].Controller || *owners[0].BlockOwnerDeletion) {
		m.T.Errorf("owners = %+v, want Node %s", owners, uid)
	}
	o := m.startOperator()
	wg.Wait()
	m.until("the request is done", func() bool { return len(m.requests()) == 0 })
	o.stop()
	return l
}

// An empty block is released after the delay, and not before.
func TestBlockIsReleasedAfterTheDelay(t *testing.T) {
	m := newMachine(t)
	ticks := newTicks()
	m.tune = func(c *Config) { c.Clock, c.ReleaseDelay = ticks, 5*time.Minute }
	stop := ticks.flow()
	m.begin("public", 2, 1, "10.0.0.0/24")
	stop()
	m.Release(key(0))
	ticks.Advance(time.Second)
	m.until("its address has cooled", func() bool {
		return !slices.ContainsFunc(m.Snapshot().Addresses, func(a source.AddressInfo) bool { return a.State == source.Cooling })
	})
	ticks.Advance(5*time.Minute - time.Second)
	m.quiet(300 * time.Millisecond)
	if got := m.blocks(); len(got) != 1 {
		t.Errorf("blocks before the delay = %v, want one", got)
	}
	ticks.Advance(2 * time.Second)
	m.until("the block is released", func() bool {
		ticks.Advance(time.Second) // regardless of when the daemon started to wait
		return len(m.blocks()) == 0
	})
}

// Another client writes to a block between the daemon's check and the removal of the finalizer: the daemon
// checks again, and assigns no address of the block meanwhile.
func TestBlockChangedDuringRelease(t *testing.T) {
	m := newMachine(t)
	w := m.faults()
	w.hold = func(method, path, _ string) bool { return method == "PATCH" && strings.HasSuffix(path, "public-0") }
	m.begin("public", 2, 2, "10.0.0.0/30")
	b := m.block("public-0")
	m.drain(b.Name)
	m.Release(key(0))
	<-w.held
	m.annotate(b, "seen")
	m.fails(1, "pool-exhausted") // the pool has only this block
	w.release()
	m.until("the block is deleted", func() bool { b := m.block("public-0"); return b == nil || b.UID != "" && b.DeletionTimestamp == nil })
	if !(m.Log.Count("remove the finalizer of AddressBlock public-0") > 0) {
		t.Error("removing the finalizer caused no conflict")
	}
}

// A block that cannot be routed does not affect others: pods get addresses of the next
// block, and its own addresses are used once its route can be set.
func TestUnroutableBlockDoesNotAffectOthers(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 1, nil, "10.0.0.0/24")
	m.pods(0, 3)
	m.routes.breakBlock("default-0")
	m.startOperator()
	m.start()
	for i := range 2 {
		check.Equal(t, m.add(i).Block, "default-1", "pod %d has", i)
	}
	m.until("the unrouted block is reported", func() bool {
		return strings.Contains(m.Snapshot().LastError, "block default-0 is not used: no route to default-0")
	})
	check.NoError(t, m.Ready())
	m.routes.breakBlock("")
	for i := 2; i < 4; i++ {
		check.Equal(t, m.add(i).Block, "default-0", "pod %d has", i)
	}
	m.until("the error is cleared", func() bool { return m.Snapshot().LastError == "" })
}
