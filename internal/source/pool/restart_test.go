package pool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
)

// withoutAPI takes the API server away until back has returned.
func (m *machine) withoutAPI() (back func()) {
	m.t.Helper()
	start := harness.WithoutAPIServer(m.t)
	return func() {
		m.t.Helper()
		start()
		// An API server knows the kinds that policies compare a while after it is ready.
		bits := int32(0)
		probe := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: v1alpha1.AddressPoolSpec{
			BlockSizeBits: &bits, Subnets: []v1alpha1.PoolSubnet{{IPv4: "192.0.2.1/32"}},
		}}
		m.until("pools can be made", func() bool {
			return m.api.Create(m.t.Context(), probe.DeepCopy(), client.DryRunAll) == nil
		})
	}
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
	known := source.Request{Key: key(100), Pod: attachment.Pod{Namespace: namespace, Name: "known", UID: string(pod.UID)}, Wish: source.Wish{Told: true}}
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	old, err := m.Acquire(ctx, known)
	if err != nil {
		t.Fatal(err)
	}
	a := m.add(0)
	m.settled(1)
	m.stop()
	back := m.withoutAPI()
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
	back()
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
