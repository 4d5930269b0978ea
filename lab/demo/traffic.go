package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/node"
)

// traffic is conversations that go on while something else happens. Each asks
// a question once, waits for its answer, and asks the next.
type traffic struct {
	stop     context.CancelFunc
	running  sync.WaitGroup
	talks    int
	answered atomic.Int64

	mu    sync.Mutex // guards all below
	worst time.Duration
	errs  []error // one a lost answer
}

// converse adds a conversation from a namespace with an echo server.
func (t *traffic) converse(ctx context.Context, path, network string, to netip.Addr) error {
	conn, err := echo.Connect(ctx, path, network, port(to), netip.Addr{})
	if err != nil {
		return err
	}
	t.talks++
	t.running.Go(func() {
		defer conn.Close()
		for i := 0; ctx.Err() == nil; i++ {
			if !t.question(conn, i) {
				return
			}
			<-time.After(2 * time.Millisecond) // the pace of the traffic
		}
	})
	return nil
}

// question asks once; false when its answer did not come.
func (t *traffic) question(conn *echo.Conn, i int) bool {
	began := time.Now()
	text := fmt.Sprintf("question %d", i)
	r, err := conn.Once(text, answerWithin)
	took := time.Since(began)
	if err == nil && r.Text != text {
		err = fmt.Errorf("asked %q, was answered %q", text, r.Text)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.errs = append(t.errs, fmt.Errorf("%s to %s: %w", conn.LocalAddr(), conn.RemoteAddr(), err))
		return false
	}
	t.worst = max(t.worst, took)
	t.answered.Add(1)
	return true
}

// flow returns once enough more answers have come.
func (t *traffic) flow(ctx context.Context) error {
	for want := t.answered.Load() + answersEach; t.answered.Load() < want; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("traffic stands still: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond): // as often as answers come
		}
	}
	return nil
}

// end stops the conversations and returns what was lost.
func (t *traffic) end() error {
	t.stop()
	t.running.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.errs...)
}

// killUnderTraffic kills the first node's daemon while its pods talk to another
// node's and to the internet, lets them talk without it, starts it again, and
// makes a pod after that.
func killUnderTraffic(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[0]
	far, err := s.first(s.nodes[1])
	if err != nil {
		return "", err
	}
	talk, stop := context.WithCancel(ctx)
	t := &traffic{stop: stop}
	figures, err := t.around(talk, n, s.outside(), far.Addr())
	if err = errors.Join(err, t.end()); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d answers in %d conversations, 0 lost, slowest %s; %s", t.answered.Load(), t.talks, ms(t.worst), figures), nil
}

// outside is whom pods ask besides a far one; zero where they have no way out.
func (s *stage) outside() netip.Addr {
	if s.lab.Ports != nil {
		return netip.Addr{}
	}
	return s.internet()
}

// begin makes each pod talk to a far one, and to a host outside by UDP.
func (t *traffic) begin(ctx context.Context, pods []*node.Pod, outside, far netip.Addr) error {
	for _, p := range pods {
		for network, to := range map[string]netip.Addr{"tcp": far, "udp": outside} {
			if !to.IsValid() {
				continue
			}
			if err := t.converse(ctx, p.Netns(), network, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// answersEach phase of a crash must bring.
const answersEach = 1000

// around is the crash, with traffic before, during and after it.
func (t *traffic) around(ctx context.Context, n *node.Node, outside, far netip.Addr) (string, error) {
	if err := t.begin(ctx, n.Pods(), outside, far); err != nil {
		return "", err
	}
	if err := t.flow(ctx); err != nil {
		return "", err
	}
	if err := n.Kill(); err != nil {
		return "", err
	}
	if err := t.flow(ctx); err != nil {
		return "", fmt.Errorf("while berthd was dead: %w", err)
	}
	began := time.Now()
	if err := errors.Join(n.Start(), n.WaitReady(ctx)); err != nil {
		return "", err
	}
	ready := time.Since(began)
	p, err := n.AddPod(ctx, "after-kill", node.PodOptions{})
	if err != nil {
		return "", err
	}
	if _, err := p.Ask(ctx, "tcp", far, "hello"); err != nil {
		return "", fmt.Errorf("the pod that was added after: %w", err)
	}
	if err := t.flow(ctx); err != nil {
		return "", fmt.Errorf("after the restart: %w", err)
	}
	return fmt.Sprintf("ready again in %s; pod %s added after", ms(ready), p.Addr()), nil
}
