package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestCancelledADD lets a runtime give up ADDs that wait for an address, and
// wants no waiter, no address and nothing in the kernel to be left of them.
func TestCancelledADD(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, lab.Options{Nodes: 1, InstanceType: "t3.small", DaemonArgs: append(quick, "--warm-wait=5m")})
	n := l.Nodes()[0]
	for i := range 9 { // all that a t3.small has
		_, err := n.AddPod(harness.Deadline(t, patience), fmt.Sprintf("p%d", i), node.PodOptions{})
		harness.OK(t, err)
	}
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	const calls = 3
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, calls)
	for range calls {
		s := harness.NewSandbox(t, n)
		go func() {
			_, err := s.CNI.AddNetworkList(ctx, list, s.RuntimeConf)
			ended <- err
		}()
	}
	waiting := func(want int) func() error {
		return func() error {
			doc, err := lab.Document(t.Context(), n)
			if err == nil && doc.Totals.Waiting != want {
				err = fmt.Errorf("%d ADDs wait, want %d", doc.Totals.Waiting, want)
			}
			return err
		}
	}
	harness.Eventually(t, patience, "the ADDs wait", waiting(calls))
	cancel()
	for range calls {
		if err := <-ended; err == nil {
			t.Error("an ADD succeeded without an address")
		}
	}
	harness.Eventually(t, patience, "nobody waits", waiting(0))
	harness.Settle(t, l)

	// An address that comes free goes to whom still wants it.
	harness.OK(t, n.DelPod(t.Context(), "p0"))
	_, err := n.AddPod(harness.Deadline(t, patience), "last", node.PodOptions{Once: true})
	harness.OK(t, err)
	harness.Settle(t, l)
}

// TestDrain ends a daemon with SIGTERM: an ADD that waits is told to try
// again, the process leaves at once and in order, pods do not notice, and the
// next daemon answers for them.
func TestDrain(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, lab.Options{Nodes: 1, InstanceType: "t3.small", DaemonArgs: append(quick, "--warm-wait=5m")})
	n := l.Nodes()[0]
	var first *node.Pod
	for i := range 9 {
		p, err := n.AddPod(harness.Deadline(t, patience), fmt.Sprintf("p%d", i), node.PodOptions{})
		harness.OK(t, err)
		if first == nil {
			first = p
		}
	}
	waited := make(chan error, 1)
	go func() {
		_, err := n.AddPod(harness.Deadline(t, 10*time.Minute), "waits", node.PodOptions{Once: true})
		waited <- err
	}()
	harness.Eventually(t, patience, "the ADD waits", func() error {
		doc, err := lab.Document(t.Context(), n)
		if err == nil && doc.Totals.Waiting != 1 {
			err = fmt.Errorf("%d wait", doc.Totals.Waiting)
		}
		return err
	})
	exited := n.Exited()
	harness.OK(t, n.Stop(2*time.Minute)) // the ADD would wait for five
	<-exited
	if status := n.ExitCode(); status != 0 {
		t.Errorf("exit status %d after SIGTERM", status)
	}
	harness.OK(t, reaches(t.Context(), n.Netns, "tcp", echoPort(first), primary(t, l, n)))
	harness.OK(t, n.Start())
	// The DEL that a runtime sends after the failed ADD waits for the new daemon.
	err := <-waited
	if node.CNICode(err) != 11 {
		t.Errorf("the ADD that waited was told %v with code %d, want code 11", err, node.CNICode(err))
	}
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the ADD waited for its own deadline: %v", err)
	}
	harness.OK(t, n.WaitReady(harness.Deadline(t, patience)))
	harness.OK(t, n.CheckPod(t.Context(), first.Name))
	harness.OK(t, reaches(t.Context(), n.Netns, "tcp", echoPort(first), primary(t, l, n)))
	harness.Settle(t, l)
}
