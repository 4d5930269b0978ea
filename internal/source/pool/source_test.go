package pool

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// The first case of Coil's design: six blocks of a dual-stack pool; the seventh
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
	if p := m.pools()[0]; p.Blocks != 6 || p.Used != 12 || p.Failed != v1alpha1.ReasonPoolExhausted {
		t.Errorf("pool: %+v", p)
	}
	check.Equal(t, len(m.routes.names()), 6, "routes")
	m.Release(key(3))
	check.Equal(t, m.add(12).IPv4, leases[3].IPv4, "pod 12")
	check.Equal(t, o.served.Load(), 6, "blocks were made")
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
			first := m.startLimitedOperator(want / 2)
			var wg sync.WaitGroup
			wg.Go(func() { sourcetest.AddAll(t, m, 0, 100, 2*longest) })
			m.until("half is done", func() bool { return int(first.served.Load()) == want/2 })
			first.stop()
			second := m.startOperator()
			wg.Wait()
			m.untilAllInUse(want)
			check.Equal(t, int(first.served.Load()+second.served.Load()), want, "requests were answered")
		})
	}
}

// Of ADDs that give up, nothing stays: the blocks that come for them go back.
func TestFailedAddsLeakNothing(t *testing.T) {
	m := newMachine(t)
	m.tune = func(c *Config) { c.ReleaseDelay = 0 }
	m.pool("public", 0, nil, "10.0.0.0/24")
	m.namespace(namespace, "public")
	m.pods(0, 19)
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
	o := m.startOperator()
	m.until("what was asked for came and went", func() bool { return o.served.Load() == maxOutstanding && m.empty() })
}

// A daemon whose role was not applied says so.
func TestRefusedByTheAPIServer(t *testing.T) {
	m := newMachine(t)
	cfg := check.Must(harness.ControlPlane.ConfigFor("nobody"))(t)
	m.Config = cfg
	m.start()
	m.pods(0, 0)
	m.until("it hears", func() bool { return m.Snapshot().LastError != "" })
	if message := m.fails(0, "permission"); !strings.Contains(message, "apply deploy/chart") {
		t.Errorf("message: %s", message)
	}
	if err := m.Ready(); err == nil || !strings.Contains(err.Error(), "refuses berthd") {
		t.Errorf("ready: %v", err)
	}
}

// Pods of one pool do not wait for requests of another.
func TestPodsDoNotWaitForRequestsOfOtherPools(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 0, nil, "10.0.0.0/24")
	m.pool("slow", 0, nil, "10.1.0.0/24")
	m.namespace("snail", "slow")
	m.podNamed("snail", "p", "")
	m.pods(0, 3)
	s := m.faults()
	s.hold = func(method, path string, body string) bool {
		return method == "POST" && strings.Contains(body, `"poolName":"slow"`)
	}
	m.startOperator()
	m.start()
	slow := make(chan error, 1)
	go func() {
		pod := podRequest(99)
		pod.Pod.Namespace = "snail"
		_, err := sourcetest.Try(t, m, pod, longest)
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
	check.NoError(t, <-slow)
}

// Replies that are lost after the API server did what it was asked cost neither
// a block nor a request.
func TestLostReplies(t *testing.T) {
	m := newMachine(t)
	m.tune = func(c *Config) { c.ReleaseDelay = 0 }
	m.pool("public", 1, nil, "10.0.0.0/24")
	m.namespace(namespace, "public")
	m.pods(0, 9)
	s := m.faults()
	s.lose = func(method string) bool { return method != "GET" }
	m.start()
	var wg sync.WaitGroup
	wg.Go(func() { sourcetest.AddAll(t, m, 0, 10, longest) })
	// A request may be made again while the watch is late, and must not find its
	// answer taken already.
	m.sees("what it has asked for", func(l *holdings) bool { return len(l.requests.byName) == 5 })
	m.quiet(2 * retry.First)
	check.Equal(t, len(m.requests()), 5, "requests")
	o := m.startOperator()
	wg.Wait()
	m.untilAllInUse(5)
	check.Equal(t, o.served.Load(), 5, "requests were answered")
	for i := range 10 {
		m.Release(key(i))
	}
	m.until("all goes back", m.empty)
}

// A hundred pods of two pools at once; then both pools are deleted under them, and
// nothing of them is left once the pods have gone.
func TestPoolsDeletedUnderAHundredPods(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 5, nil, "10.0.0.0/22 fd00::/118")
	m.pool("public", 0, []string{namespace}, "10.1.0.0/25")
	m.startOperator()
	m.start()
	m.until("a warm block", func() bool { return m.Ready() == nil })
	for i := range 100 {
		pool := ""
		if i%2 > 0 {
			pool = "public"
		}
		m.podNamed(namespace, fmt.Sprint("pod", i), pool)
	}
	leases := sourcetest.AddAll(t, m, 0, 100, longest)
	m.untilAllInUse(2 + 50)
	for _, name := range []string{"default", "public"} {
		harness.OK(t, m.API.Delete(t.Context(), &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	for i, l := range leases {
		if m.block(l.Block) == nil {
			t.Errorf("block %s went under pod %d", l.Block, i)
		}
		m.Release(key(i))
	}
	pools := &v1alpha1.AddressPoolList{}
	m.until("nothing is left", func() bool {
		m.List(pools)
		return len(pools.Items) == 0 && m.empty()
	})
}
