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

// The first example of Coil's design: a dual-stack pool has six blocks, and the seventh request
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
		t.Errorf("lease of pod 0 = %+v, want the first pair of default-0", first)
	}
	if fifth.IPv4.String() != "10.3.0.0" || fifth.IPv6.String() != "fd02::300" || fifth.Block != "default-4" {
		t.Errorf("lease of pod 8 = %+v, want the first pair of default-4", fifth)
	}
	if message := m.fails(12, "pool-exhausted"); !strings.Contains(message, "all 6 blocks of pool default") {
		t.Errorf("message = %q, want text \"all 6 blocks of pool default\"", message)
	}
	if p := m.pools()[0]; p.Blocks != 6 || p.Used != 12 || p.Failed != v1alpha1.ReasonPoolExhausted {
		t.Errorf("pool = %+v, want 6 blocks, 12 used and exhausted", p)
	}
	check.Equal(t, len(m.routes.names()), 6, "routes")
	m.Release(key(3))
	check.Equal(t, m.add(12).IPv4, leases[3].IPv4, "pod 12")
	check.Equal(t, o.served.Load(), 6, "blocks created")
}

// A hundred concurrent pods on a node without blocks, while the operator restarts:
// the node gets as many blocks as needed, with one request each.
func TestHundredConcurrentAdds(t *testing.T) {
	for _, bits := range []int32{0, 5} {
		t.Run(fmt.Sprint("bits ", bits), func(t *testing.T) {
			m := newMachine(t)
			m.pool("default", bits, nil, "10.0.0.0/16 fd00::/112")
			m.pods(0, 99)
			m.start()
			want := map[int32]int{0: 100, 5: 4}[bits] // 108 addresses, because a quarter of a block is kept free
			first := m.startLimitedOperator(want / 2)
			var wg sync.WaitGroup
			wg.Go(func() { sourcetest.AddAll(t, m, 0, 100, 2*longest) })
			m.until("half of the requests are served", func() bool { return int(first.served.Load()) == want/2 })
			first.stop()
			second := m.startOperator()
			wg.Wait()
			m.untilAllInUse(want)
			check.Equal(t, int(first.served.Load()+second.served.Load()), want, "requests were answered")
		})
	}
}

// ADDs that time out leave nothing behind: their blocks are released.
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
				t.Errorf("pod %d got %v, want no address", i, l)
			}
		})
	}
	m.until("the maximum number of requests is created", func() bool { return len(m.requests()) == maxOutstanding })
	cancel()
	wg.Wait()
	m.fails(0, "growing")
	o := m.startOperator()
	m.until("the requested blocks are created and released", func() bool { return o.served.Load() == maxOutstanding && m.empty() })
}

// A daemon without its role reports that.
func TestRefusedByTheAPIServer(t *testing.T) {
	m := newMachine(t)
	cfg := check.Must(harness.ControlPlane.ConfigFor("nobody"))(t)
	m.Config = cfg
	m.start()
	m.pods(0, 0)
	m.until("the daemon sees the rejection", func() bool { return m.Snapshot().LastError != "" })
	if message := m.fails(0, "permission"); !strings.Contains(message, "apply deploy/chart") {
		t.Errorf("message = %q, want the remedy", message)
	}
	if err := m.Ready(); err == nil || !strings.Contains(err.Error(), "refuses berthd") {
		t.Errorf("Ready() = %v, want error about permissions", err)
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
		t.Errorf("pod of the slow pool: %v", err)
	default:
	}
	s.release()
	check.NoError(t, <-slow)
}

// Replies that are lost after the API server executed the request cost neither
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
	// A request may be repeated while the watch lags behind, and must not find
	// that its answer is already used.
	m.sees("its requests", func(l *holdings) bool { return len(l.requests.byName) == 5 })
	m.quiet(2 * retry.First)
	check.Equal(t, len(m.requests()), 5, "requests")
	o := m.startOperator()
	wg.Wait()
	m.untilAllInUse(5)
	check.Equal(t, o.served.Load(), 5, "requests were answered")
	for i := range 10 {
		m.Release(key(i))
	}
	m.until("everything is released", m.empty)
}

// A hundred pods of two pools start concurrently; then both pools are deleted while in use, and
// nothing is left of them once the pods have ended.
func TestPoolsDeletedWhilePodsUseThem(t *testing.T) {
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
			t.Errorf("block %s was deleted while pod %d uses it", l.Block, i)
		}
		m.Release(key(i))
	}
	pools := &v1alpha1.AddressPoolList{}
	m.until("nothing is left", func() bool {
		m.List(pools)
		return len(pools.Items) == 0 && m.empty()
	})
}
