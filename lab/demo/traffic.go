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

// traffic is a set of conversations. Each sends a request, waits for the reply, and sends the next.
type traffic struct {
	pace     time.Duration // between messages of a conversation
	running  sync.WaitGroup
	talks    int
	answered atomic.Int64

	mu    sync.Mutex // guards all below
	worst time.Duration
	errs  []error // one per lost reply
}

// converse adds a conversation from a namespace with an echo server.
func (t *traffic) converse(ctx context.Context, path, network string, to netip.Addr) {
	t.converseAt(ctx, path, network, port(to))
}

// converseAt is converse with an echo server at another port.
func (t *traffic) converseAt(ctx context.Context, path, network string, to netip.AddrPort) {
	conn := must(echo.Connect(ctx, path, network, to, netip.Addr{}))
	t.talks++
	t.running.Go(func() {
		defer conn.Close()
		for i := 0; ctx.Err() == nil && t.question(conn, i); i++ {
			<-time.After(t.pace)
		}
	})
}

// question sends one request, and reports whether there was a reply.
func (t *traffic) question(conn *echo.Conn, i int) bool {
	began := time.Now()
	text := fmt.Sprintf("question %d", i)
	r, err := conn.Once(text, answerWithin)
	took := time.Since(began)
	if err == nil && r.Text != text {
		err = fmt.Errorf("sent %q, received %q", text, r.Text)
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

// flow waits for further replies.
func (t *traffic) flow(ctx context.Context) {
	for want := t.answered.Load() + answersEach; t.answered.Load() < want; {
		select {
		case <-ctx.Done():
			fail("no further replies: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond): // about the interval between replies
			if t.lost() != nil {
				fail("replies were lost")
			}
		}
	}
}

// lost returns the lost replies so far.
func (t *traffic) lost() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.errs...)
}

// underTraffic calls do, which starts conversations, and fails if a reply is lost.
func underTraffic(ctx context.Context, do func(context.Context, *traffic) string) (figures string, t *traffic) {
	ctx, stop := context.WithCancel(ctx)
	t = &traffic{pace: 2 * time.Millisecond}
	err := attempt(func() { figures = do(ctx, t) })
	stop()
	t.running.Wait()
	check(errors.Join(append(t.errs, err)...))
	return figures, t
}

// fromPods starts conversations of each pod of a node with a remote pod, and over UDP with a host outside if there is one.
func (t *traffic) fromPods(ctx context.Context, n *node.Node, outside, far netip.Addr) {
	for _, p := range n.Pods() {
		t.converse(ctx, p.Netns(), "tcp", far)
		if outside.IsValid() {
			t.converse(ctx, p.Netns(), "udp", outside)
		}
	}
}

// killUnderTraffic kills the first node's daemon while its pods talk to another node and to the internet, restarts it
// after a while, and adds a pod.
func killUnderTraffic(ctx context.Context, s *stage) string {
	n, far, outside := s.nodes[0], s.first(s.nodes[1]).Addr(), netip.Addr{}
	if s.lab.Ports == nil {
		outside = s.internet()
	}
	figures, t := underTraffic(ctx, func(ctx context.Context, t *traffic) string {
		t.fromPods(ctx, n, outside, far)
		t.flow(ctx)
		check(n.Kill())
		checkf(attempt(func() { t.flow(ctx) }), "while berthd was down")
		began := time.Now()
		check(errors.Join(n.Start(), n.WaitReady(ctx)))
		ready := time.Since(began)
		p := must(n.AddPod(ctx, "after-kill", node.PodOptions{}))
		_, err := p.Ask(ctx, "tcp", far, "hello")
		checkf(err, "the pod that was added after the restart")
		checkf(attempt(func() { t.flow(ctx) }), "after the restart")
		return fmt.Sprintf("ready again in %s; pod %s added after that", ms(ready), p.Addr())
	})
	return fmt.Sprintf("%d replies in %d conversations, 0 lost, slowest %s; %s", t.answered.Load(), t.talks, ms(t.worst), figures)
}

// answersEach is the number of replies required in each phase of a crash.
const answersEach = 1000
