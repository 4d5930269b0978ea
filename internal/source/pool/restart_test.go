package pool

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// A released pair cools over a restart, also if one record of both is left (TestCoolingOfEitherFamily has the others).
func TestCoolingAcrossRestart(t *testing.T) {
	m := newMachine(t)
	m.tune = func(c *Config) { c.Cooling = time.Hour }
	a := m.begin("default", 1, 3, "10.0.0.0/31 fd00::/127")
	b := m.add(1)
	m.Release(key(0))
	m.stop()
	m.prepare(restored{1, b})
	since := time.Now().Add(-time.Hour).Add(2 * time.Second)
	m.RestoreCooling(a.IPv6, since)
	m.run()
	if l, err := m.try(2, time.Second); err == nil && time.Now().Before(since.Add(time.Hour)) {
		t.Errorf("pod 2 got %v while it cools", l)
	}
	if l := m.add(2); l.IPv4 != a.IPv4 || l.IPv6 != a.IPv6 || time.Now().Before(since.Add(time.Hour)) {
		t.Errorf("pod 2 got %v, want those that cooled, and not before", l)
	}
}

func (m *machine) file() string {
	data, err := os.ReadFile(filepath.Join(m.Dir, blocksFile))
	harness.OK(m.T, err)
	return string(data)
}

// A restarted daemon goes on draining what no daemon was there to see deleted.
func TestDeletedWhileNoDaemonRan(t *testing.T) {
	m := newMachine(t)
	a := m.begin("default", 2, 4, "10.0.0.0/24")
	m.stop()
	m.drain(a.Block)
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
	a := m.begin("default", 2, 3, "10.0.0.0/24")
	old := m.add(2)
	m.stop()
	back := harness.WithoutAPIServer(t)
	m.routes.blocks = nil
	m.start(restored{0, a}, restored{2, old})
	m.until("the routes of the file are there", func() bool { return slices.Equal(m.routes.names(), []string{a.Block}) })
	if l, err := m.try(0, longest); err != nil || l != a {
		t.Errorf("pod 0: %v, %v", l, err)
	}
	known := podRequest(2)
	m.Release(known.Key)
	known.Key = key(101)
	if l, err := sourcetest.Try(t, m, known, longest); err != nil || l.Block != a.Block {
		t.Errorf("another sandbox of a pod of before: %v, %v", l, err)
	}
	known.Key, known.Pod.UID = key(102), "another"
	if l, err := sourcetest.Try(t, m, known, 300*time.Millisecond); err == nil {
		t.Errorf("a pod of which nothing is known got %v", l)
	}
	m.fails(1, "unreachable")
	check.NoError(t, m.Ready())
	back()
	check.Equal(t, m.add(1).Block, a.Block, "pod 1")
}

// Nor is one network of a pod taken for another, which may have another pool.
func TestNetworksOfAPodAtAStartWithoutAPIServer(t *testing.T) {
	b := newTestNode(t)
	b.sync, b.pools.namespaces = kubeapi.NewSync(), map[string]string{}
	b.give(blockOf("default-0", "10.0.0.0/29", ""))
	b.give(blockOf("wide-0", "10.1.0.0/29", ""))
	request := func(sandbox int, ifName string) source.Request {
		r := podRequest(0)
		r.Key = key(sandbox)
		r.Key.IfName = ifName
		return r
	}
	for ifName, addr := range map[string]string{"eth0": "10.0.0.1", "net1": "10.1.0.1"} {
		check.OK(t, b.restore(request(0, ifName), source.Lease{IPv4: netip.MustParseAddr(addr)}, b.now))
	}
	for ifName, want := range map[string]string{"eth0": "10.0.0.0", "net1": "10.1.0.0", "net2": "waits"} {
		check.Equal(t, b.answer(b.admit(request(1, ifName), b.now)), want, "%s of another sandbox", ifName)
	}
}

// What happened to the blocks while no daemon ran comes before what the file says.
func TestTheAPIServerCorrectsTheFile(t *testing.T) {
	m := newMachine(t)
	a := m.begin("default", 2, 3, "10.0.0.0/29")
	m.stop()
	b := m.block(a.Block)
	b.Finalizers = nil
	harness.OK(t, errors.Join(m.API.Update(t.Context(), b), m.API.Delete(t.Context(), b)))
	m.start()
	if l := m.add(1); l.Block == a.Block {
		t.Errorf("pod 1 got %v of a block that the node does not have any more", l)
	}
	if got := m.routes.names(); slices.Contains(got, a.Block) {
		t.Errorf("routes %v", got)
	}
}
