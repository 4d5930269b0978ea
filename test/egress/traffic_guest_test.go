//go:build guest && e2e

package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/node"
)

// talks are conversations over a connection each, until end.
type talks struct {
	stop context.CancelFunc
	work sync.WaitGroup

	mu       sync.Mutex // guards all below
	answered int
	by       map[netip.Addr]int // open connections by the gateway's address
	errs     []error            // one a conversation that ended
}

// talk begins conversations of a pod, spread over both families. Each asks a question every pace.
func (s *egress) talk(p *node.Pod, network string, many int, pace time.Duration) *talks {
	s.t.Helper()
	t := &talks{by: map[netip.Addr]int{}}
	ctx, stop := context.WithCancel(s.t.Context())
	t.stop = stop
	s.t.Cleanup(func() { _ = t.end() })
	for i := range many {
		to := outside[i%len(outside)]
		c, err := echo.Connect(ctx, p.Netns(), network, netip.AddrPortFrom(to, echo.Port), netip.Addr{})
		if err != nil {
			s.t.Fatalf("conversation %d of pod %s with %s: %v", i, p.Name, to, err)
		}
		t.work.Go(func() { t.converse(ctx, c, pace) })
	}
	return t
}

func (t *talks) converse(ctx context.Context, c *echo.Conn, pace time.Duration) {
	defer c.Close()
	var by netip.Addr
	for i := 0; ctx.Err() == nil; i++ {
		text := fmt.Sprintf("question %d", i)
		r, err := c.Once(text, answerWithin)
		if err == nil && r.Text != text {
			err = fmt.Errorf("asked %q, was answered %q", text, r.Text)
		}
		if err == nil && by.IsValid() && r.You != by {
			err = fmt.Errorf("seen as %s, before as %s", r.You, by)
		}
		t.mu.Lock()
		if err != nil {
			t.errs = append(t.errs, fmt.Errorf("%s to %s, question %d: %w", c.LocalAddr(), c.RemoteAddr(), i, err))
		} else {
			t.answered++
		}
		switch {
		case err != nil && by.IsValid():
			t.by[by]--
		case err == nil && !by.IsValid():
			by = r.You
			t.by[by]++
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pace):
		}
	}
}

// flow waits for a number of further answers.
func (t *talks) flow(s *egress, more int) {
	s.t.Helper()
	want := t.answers() + more
	deadline := time.Now().Add(2 * answerWithin)
	for t.answers() < want {
		if time.Now().After(deadline) {
			s.t.Fatalf("conversations stand still: %v", t.broken())
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // as often as answers come
	}
}

func (t *talks) answers() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answered
}

func (t *talks) broken() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.errs...)
}

// end ends the conversations, and returns their errors.
func (t *talks) end() error {
	t.stop()
	t.work.Wait()
	return t.broken()
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
