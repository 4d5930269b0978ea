//go:build guest && e2e

package egress

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// talk begins conversations of a pod, spread over both families. Each asks a question every pace.
func (s *egress) talk(p *node.Pod, network string, many int, pace time.Duration) *harness.Conversations {
	s.t.Helper()
	var conns []*echo.Conn
	for i := range many {
		to := outside[i%len(outside)]
		c, err := echo.Connect(s.t.Context(), p.Netns(), network, netip.AddrPortFrom(to, echo.Port), netip.Addr{})
		if err != nil {
			s.t.Fatalf("conversation %d of pod %s with %s: %v", i, p.Name, to, err)
		}
		conns = append(conns, c)
	}
	return harness.Converse(s.t, pace, answerWithin, conns...)
}

// flood is a steady flow of new connections with one question each.
type flood struct {
	stop context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex // guards all below
	begun  int
	worst  time.Duration // from the beginning of a connection to its answer
	last   time.Time     // when one was answered last
	gap    time.Duration // the longest between two answers
	leaked []netip.Addr  // by which addresses pods were seen that are not gateways'
	errs   []error       // one a connection that failed
}

// pour begins new connections of a pod, one every pace, over both families in turn. Each may take some
// time, and must be seen with a gateway's address.
func (s *egress) pour(p *node.Pod, pace, within time.Duration) *flood {
	s.t.Helper()
	f := &flood{last: time.Now()}
	ctx, stop := context.WithCancel(s.t.Context())
	f.stop = stop
	s.t.Cleanup(func() { f.end() })
	f.work.Go(func() {
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			f.work.Go(func() { f.once(p, outside[i%len(outside)], within) })
		}
	})
	return f
}

func (f *flood) once(p *node.Pod, to netip.Addr, within time.Duration) {
	began := time.Now()
	as, err := seenAs(context.Background(), p, "tcp", to, within)
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun++
	if err != nil {
		f.errs = append(f.errs, err)
		return
	}
	if !isGateway(as) {
		f.leaked = append(f.leaked, as)
	}
	f.worst = max(f.worst, now.Sub(began))
	f.gap = max(f.gap, now.Sub(f.last))
	f.last = now
}

// end ends the flow, and waits for its connections.
func (f *flood) end() {
	f.stop()
	f.work.Wait()
}

// poured waits for a number of further connections.
func (f *flood) poured(s *egress, more int) {
	s.t.Helper()
	count := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.begun
	}
	deadline := time.Now().Add(3 * time.Minute)
	for want := count() + more; count() < want; {
		if time.Now().After(deadline) {
			s.t.Fatal("new connections stand still")
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // as often as they are begun
	}
}

// none checks that no connection failed and none left past the gateways.
func (f *flood) none(s *egress) {
	s.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.errs) > 0 {
		s.t.Errorf("%d of %d new connections failed, first: %v", len(f.errs), f.begun, f.errs[0])
	}
	if len(f.leaked) > 0 {
		s.t.Errorf("%d new connections left by another way than a gateway, first as %s", len(f.leaked), f.leaked[0])
	}
}
