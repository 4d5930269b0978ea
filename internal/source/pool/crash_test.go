package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/crashsource"
	"github.com/berthnet/berth/test/harness/sourcenode"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// child is a daemon's address source that a failpoint may kill.
func child(c sourcenode.Child) error {
	s, err := New(Config{
		NodeName: nodeID, Kubeconfig: c.Kubeconfig, Datapath: kernel(filepath.Join(c.Dir, "routes")), StateDir: c.Dir,
		Cooling: time.Millisecond, Watermark: 25, ReleaseDelay: 50 * time.Millisecond,
		Logger: sourcetest.Logger(os.Stderr),
	})
	if err != nil {
		return err
	}
	return c.Leases().Serve(s, podRequest, 500*time.Millisecond, os.Stdin, os.Stdout)
}

// kernel is a data path that outlives the daemon: a file of names of blocks.
type kernel string

func (k kernel) SetBlocks(_ context.Context, blocks []datapath.Block) error {
	var names []string
	for _, b := range blocks {
		names = append(names, b.Name)
	}
	return crashsource.Replace(string(k), []byte(strings.Join(names, "\n")))
}

// crashingNode is a machine whose daemon is a process, started again when it dies.
type crashingNode struct {
	*machine
	*crashsource.Process
	leases crashsource.Leases
}

func newCrashingNode(t *testing.T, failpoints string) *crashingNode {
	n := &crashingNode{machine: newMachine(t)}
	n.Process, n.leases = n.NewChild()
	n.Launch(failpoints)
	return n
}

// see waits for something that a daemon brings about, living or dead.
func (m *crashingNode) see(what string, ok func() bool) {
	m.T.Helper()
	m.until(what, func() bool {
		m.Live()
		return ok()
	})
}

// gets gives a pod an address, however often it takes.
func (m *crashingNode) gets(pods ...int) {
	m.T.Helper()
	for _, i := range pods {
		m.until(fmt.Sprint("pod ", i, " has an address"), func() bool { return m.Do("add %d", i) })
		harness.OK(m.T, m.inspect())
	}
}

// watch holds the daemon to the order of things until the returned function is
// called: what the API server does not have, neither the file nor the kernel
// has, and no pod; no address is of two pods.
func (m *crashingNode) watch() (stop func()) {
	m.T.Helper()
	api, err := client.NewWithWatch(harness.ControlPlane.Config(), client.Options{Scheme: m.API.Scheme(), Mapper: m.API.RESTMapper()})
	harness.OK(m.T, err)
	ctx, cancel := context.WithCancel(context.Background())
	events, err := api.Watch(ctx, &v1alpha1.AddressBlockList{})
	harness.OK(m.T, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range events.ResultChan() { // a block that is not there was there before
			if err := m.inspect(); err != nil {
				m.T.Error(err)
				return
			}
		}
		if ctx.Err() == nil {
			m.T.Error("the watch of blocks ended")
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// inspect looks again at what seems wrong: it may have come and gone while this
// process was held still.
func (m *crashingNode) inspect() error {
	err := m.look()
	if err == nil {
		return nil
	}
	if again := m.look(); again == nil || again.Error() != err.Error() {
		return nil
	}
	return err
}

// look looks at the files first for blocks that were there, then for what is
// there now, so that only what outlives its block is wrong.
func (m *crashingNode) look() error {
	names := m.blocks()
	has := map[string]bool{}
	for _, name := range names {
		has[name] = true
	}
	_, stored, _, err := file{m.Dir}.load()
	if err != nil {
		return err
	}
	routed, err := os.ReadFile(filepath.Join(m.Dir, "routes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	leases, err := m.leases.All()
	if err != nil {
		return err
	}
	later := map[string]bool{} // blocks may have come meanwhile
	for _, name := range m.blocks() {
		later[name] = true
	}
	for _, b := range stored {
		if !has[b.name] && !later[b.name] {
			return fmt.Errorf("block %s is in the file and not at the API server", b.name)
		}
	}
	for name := range strings.FieldsSeq(string(routed)) {
		if !has[name] && !later[name] {
			return fmt.Errorf("block %s has a route and is not at the API server", name)
		}
	}
	seen := map[string]int{}
	for i, l := range leases {
		if other, twice := seen[l.IPv4.String()]; twice {
			return fmt.Errorf("%s is of pods %d and %d", l.IPv4, i, other)
		}
		seen[l.IPv4.String()] = i
		if !has[l.Block] && !later[l.Block] {
			return fmt.Errorf("pod %d has %s of block %s, which is not at the API server", i, l.IPv4, l.Block)
		}
	}
	return nil
}

// The daemon is killed at every step of a block's way to the node and back.
func TestKilledAtEveryStep(t *testing.T) {
	var hits []string
	for _, point := range failpoint.Names() {
		if strings.HasPrefix(point, "pool.") {
			hits = append(hits, point+"=kill@1", point+"=kill@2")
		}
	}
	if len(hits) < 24 {
		t.Errorf("only %d failpoints are registered", len(hits)/2)
	}
	for _, hit := range harness.Sample(t, 9, hits) {
		t.Run(strings.Replace(hit, "=kill", "", 1), func(t *testing.T) { killedAt(t, hit) })
	}
}

func killedAt(t *testing.T, failpoints string) {
	m := newCrashingNode(t, failpoints)
	stop := m.watch()
	defer stop()
	m.pool("public", 1, nil, "10.0.0.0/24 fd00::/120")
	m.namespace(namespace, "public")
	m.pods(1, 6)
	m.startOperator()
	m.gets(1, 2, 3)
	m.Do("del 3")
	var leases map[int]source.Lease
	m.see("no block without a pod is left", func() bool {
		var err error
		if leases, err = m.leases.All(); err != nil {
			t.Fatal(err)
		}
		used := map[string]bool{}
		for _, l := range leases {
			used[l.Block] = true
		}
		return len(leases) == 2 && len(m.blocks()) == len(used)
	})
	m.gets(4)
	m.drain(leases[1].Block)
	m.gets(5, 6)
	m.Do("del 1")
	m.Do("del 2")
	m.see("the deleted block is gone", func() bool { return m.block(leases[1].Block) == nil })
	m.Do("del 4")
	m.Do("del 5")
	m.Do("del 6")
	m.see("all is given back", func() bool { return len(m.blocks()) == 0 && len(m.requests()) == 0 })
	stop()
	check.NoError(t, m.inspect())
	check.Equal(t, m.Deaths, 1, "deaths of the daemon")
}
