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

// A pool of single addresses: a second DEL of a pod does not touch what another
// has by then (the best-known peer gives the block back).
func TestLateSecondDelOfASingleAddress(t *testing.T) {
	m := newMachine(t)
	m.tune = func(c *Config) { c.ReleaseDelay = 100 * time.Millisecond }
	a := m.begin("public", 0, 2, "10.0.0.1/32")
	back := harness.WithoutAPIServer(t)
	m.Release(key(0))
	b := m.add(1)
	if a.IPv4 != b.IPv4 {
		t.Errorf("pods have %v and %v", a.IPv4, b.IPv4)
	}
	m.Release(key(0))
	m.Cancel(key(0))
	back()
	m.until("the API server is back", func() bool { return m.Snapshot().LastError == "" })
	m.quiet(2 * time.Second)
	if o := m.block("public-0"); o == nil || o.DeletionTimestamp != nil {
		t.Errorf("the block of a running pod: %+v", o)
	}
	if l, err := m.try(1, longest); err != nil || l != b {
		t.Errorf("pod 1 has %v, %v", l, err)
	}
	m.Release(key(1))
	m.until("the block goes back", m.empty)
}

// quiet lets some time pass in which nothing is to happen.
func (m *machine) quiet(d time.Duration) {
	m.T.Helper()
	ctx, cancel := context.WithTimeout(m.T.Context(), d)
	defer cancel()
	<-ctx.Done()
}

// A block that is deleted gives no new address, keeps its routes while a pod has
// one, and is let go only after the file and the routes are without it.
func TestDraining(t *testing.T) {
	m := newMachine(t)
	a := m.begin("default", 2, 4, "10.0.0.0/24")
	m.drain(a.Block)
	m.until("the daemon drains it", func() bool { return m.pools()[0].Draining == 1 })
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

// While its Node is missing the daemon says of each block that it lives; while
// it is there nothing is written.
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
		t.Errorf("written while the Node is there: %+v", now.Status)
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
	m.addOwned(1, "") // a block can still be asked for, and nobody owns the request
	stop()
	m.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeID}})
	m.sees("the Node", func(l *holdings) bool { return !l.nodeMissing() })
	m.until("no claim is under way any more", func() bool {
		ticks.Advance(time.Second)
		return (m.Log.Count("no longer claimed") > 0)
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
func (m *machine) addOwned(i int, uid types.UID) (l source.Lease) {
	m.T.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { l = m.add(i) })
	list := &v1alpha1.BlockRequestList{}
	m.until("a request", func() bool { return m.API.List(m.T.Context(), list) == nil && len(list.Items) > 0 })
	owners := list.Items[0].OwnerReferences
	if uid == "" && len(owners) > 0 || uid != "" && (len(owners) != 1 || owners[0].Kind != "Node" || owners[0].UID != uid || *owners[0].Controller || *owners[0].BlockOwnerDeletion) {
		m.T.Errorf("owners %+v, want Node %s", owners, uid)
	}
	o := m.startOperator()
	wg.Wait()
	m.until("the request is done", func() bool { return len(m.requests()) == 0 })
	o.stop()
	return l
}

// An empty block goes back after the delay, and not before.
func TestBlockGoesBackAfterTheDelay(t *testing.T) {
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
		t.Errorf("blocks %v", got)
	}
	ticks.Advance(2 * time.Second)
	m.until("it goes back", func() bool {
		ticks.Advance(time.Second) // whenever the daemon began to wait
		return len(m.blocks()) == 0
	})
}

// Somebody writes to a block between the daemon's look and its letting go: it
// looks again, and meanwhile gives no address of the block to anybody.
func TestBlockChangedWhileItIsLetGo(t *testing.T) {
	m := newMachine(t)
	w := m.faults()
	w.hold = func(method, path, _ string) bool { return method == "PATCH" && strings.HasSuffix(path, "public-0") }
	m.begin("public", 2, 2, "10.0.0.0/30")
	b := m.block("public-0")
	m.drain(b.Name)
	m.Release(key(0))
	<-w.held
	m.annotate(b, "seen")
	m.fails(1, "pool-exhausted") // all that the pool has is this block
	w.release()
	m.until("it is gone", func() bool { b := m.block("public-0"); return b == nil || b.UID != "" && b.DeletionTimestamp == nil })
	if !(m.Log.Count("remove the finalizer of AddressBlock public-0") > 0) {
		t.Error("there was no conflict")
	}
}

// A block that cannot be routed holds up no other: pods get addresses of the next
// one, and its own are used once its route can be set.
func TestOneBlockThatCannotBeRouted(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 1, nil, "10.0.0.0/24")
	m.pods(0, 3)
	m.routes.breakBlock("default-0")
	m.startOperator()
	m.start()
	for i := range 2 {
		check.Equal(t, m.add(i).Block, "default-1", "pod %d has", i)
	}
	m.until("it is reported", func() bool {
		return strings.Contains(m.Snapshot().LastError, "block default-0 is not used: no route to default-0")
	})
	check.NoError(t, m.Ready())
	m.routes.breakBlock("")
	for i := 2; i < 4; i++ {
		check.Equal(t, m.add(i).Block, "default-0", "pod %d has", i)
	}
	m.until("nothing is reported any more", func() bool { return m.Snapshot().LastError == "" })
}
