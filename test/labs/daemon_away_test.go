package labs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// installPlugin installs the plugin as a daemon does.
func installPlugin(n *node.Node) error {
	return exec.Command("cp", filepath.Join(harness.BinDir, "berth"), filepath.Join(n.CNIBinDir(), "berth")).Run()
}

// TestCallsToSlowDaemonTimeOut halts a daemon: ADD and DEL fail after the configured timeout, and the
// daemon keeps nothing of them.
func TestCallsToSlowDaemonTimeOut(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: "t3.small"})
	n := l.Nodes()[0]
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, map[string]any{"timeout": "1s"}))
	s := harness.NewSandbox(t, n)
	pid := n.PID()
	harness.OK(t, syscall.Kill(pid, syscall.SIGSTOP))
	// A call that times out before it has connected has another message.
	timesOut := func(call func() error) { failsAtLast(t, types.ErrTryAgainLater, []string{"1s", "timeout"}, call) }
	timesOut(func() error {
		_, err := s.Add(t, list)
		return err
	})
	timesOut(func() error { return s.Del(t, list) })
	harness.OK(t, syscall.Kill(pid, syscall.SIGCONT))
	// A runtime repeats DEL until it works: a pod may be set up before the daemon sees that its caller
	// left.
	patient := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	harness.OK(t, s.Del(t, patient))
	harness.Settle(t, l)
	harness.Add(t, n, "after")
	harness.Settle(t, l)
}

// TestSecondDaemonOfANodeEnds starts another daemon for the same node: it changes nothing, names the
// first one, and ends.
func TestSecondDaemonOfANodeEnds(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: "t3.small"})
	n := l.Nodes()[0]
	harness.Add(t, n, "p")
	var out []byte
	second := exec.CommandContext(harness.Deadline(t, patience), filepath.Join(harness.BinDir, "berthd"),
		"--state-dir="+n.StateDir(), "--socket="+n.Socket(), "--ec2-endpoint="+n.EC2URL)
	err := ns.Do(n.Netns, func() (err error) {
		out, err = second.CombinedOutput()
		return err
	})
	if err == nil || !strings.Contains(string(out), "another berthd (process ") {
		t.Errorf("a second daemon ended with %v: %s", err, out)
	}
	harness.OK(t, n.CheckPod(t.Context(), "p"))
	harness.Add(t, n, "q")
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
