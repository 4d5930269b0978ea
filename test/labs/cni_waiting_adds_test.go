package labs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestCancelledADDsLeaveNothing cancels ADDs that wait for an address: no waiter, no address and
// nothing in the kernel is left.
func TestCancelledADDsLeaveNothing(t *testing.T) {
	t.Parallel()
	few := harness.Few(t, "t3.small")
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: few.Type, DaemonArgs: []string{"--warm-wait=5m"}})
	n := l.Nodes()[0]
	for i := range few.Room() {
		harness.Add(t, n, fmt.Sprintf("p%d", i))
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
	harness.Waiting(t, n, calls)
	cancel()
	for range calls {
		if err := <-ended; err == nil {
			t.Error("an ADD succeeded without an address")
		}
	}
	harness.Waiting(t, n, 0)
	harness.Settle(t, l)

	// A released address goes to the ADD that still waits.
	harness.OK(t, n.DelPod(t.Context(), "p0"))
	harness.OK(t, harness.AddOnce(t, n, "last"))
	harness.Settle(t, l)
}

// TestStoppedDaemonLeavesWaitingADDs stops a daemon with SIGTERM while an ADD waits. It ends at once
// with status 0, the next daemon answers the ADD, and running pods are not affected.
func TestStoppedDaemonLeavesWaitingADDs(t *testing.T) {
	t.Parallel()
	few := harness.Few(t, "t3.small")
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: few.Type, DaemonArgs: []string{"--warm-wait=5m"}})
	n := l.Nodes()[0]
	var first *node.Pod
	for i := range few.Room() {
		p := harness.Add(t, n, fmt.Sprintf("p%d", i))
		if first == nil {
			first = p
		}
	}
	waited := make(chan error, 1)
	go func() {
		_, err := n.AddPod(harness.Deadline(t, 10*time.Minute), "waits", node.PodOptions{Once: true})
		waited <- err
	}()
	harness.Waiting(t, n, 1)
	exited := n.Exited()
	harness.OK(t, n.Stop(2*time.Minute)) // the ADD would wait for five
	<-exited
	if status := n.ExitCode(); status != 0 {
		t.Errorf("exit status %d after SIGTERM", status)
	}
	answers := func() {
		t.Helper()
		for _, a := range first.Addrs {
			harness.OK(t, harness.AsksBy(t, n.Netns, "tcp", netip.AddrPortFrom(a, echo.Port), harness.OwnAddress(t, l, n, a)))
		}
	}
	answers()
	// The plugin asks the next daemon too, as does the DEL after the failed ADD.
	n.Args = append(n.Args, "--warm-wait=1s")
	harness.OK(t, n.Start())
	err := <-waited
	if node.CNICode(err) != 11 {
		t.Errorf("the ADD that waited was told %v with code %d, want code 11", err, node.CNICode(err))
	}
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the ADD waited for its own deadline: %v", err)
	}
	harness.Ready(t, n)
	harness.OK(t, n.CheckPod(t.Context(), first.Name))
	answers()
	harness.Settle(t, l)
}
