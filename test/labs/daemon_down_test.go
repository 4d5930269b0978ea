package labs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/heartbeat"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestCallsWithoutDaemon sends CNI calls to a node whose daemon has never run, was killed a moment
// ago, and is gone for good.
func TestCallsWithoutDaemon(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: "t3.small", NoDaemons: true})
	n := l.Nodes()[0]
	s := harness.NewSandbox(t, n)
	list := harness.Network(t, "1.1.0", "berth", harness.Plugin(n, nil))
	harness.OK(t, installPlugin(n))
	_, err := s.Add(t, list)
	harness.Fails(t, err, types.ErrTryAgainLater, "berthd", n.Socket(), "--socket")
	harness.Fails(t, s.Del(t, list), types.ErrTryAgainLater, n.Socket())
	harness.Fails(t, s.Status(t, list), types.ErrPluginNotAvailable, n.Socket())

	// With a daemon the same calls work. After a kill they wait for the next daemon for a while, and
	// STATUS succeeds.
	harness.OK(t, n.Start())
	harness.Ready(t, n)
	_, err = s.Add(t, list)
	harness.OK(t, err)
	harness.Eventually(t, patience, "the first heartbeat", func() error {
		_, err := os.Stat(heartbeat.Path(n.Socket()))
		return err
	})
	harness.OK(t, n.Kill())
	harness.OK(t, s.Status(t, list))
	harness.Eventually(t, patience, "a DEL finds the next daemon", func() error {
		harness.OK(t, n.Kill())
		started := make(chan error, 1)
		time.AfterFunc(200*time.Millisecond, func() { started <- n.Start() })
		begun := time.Now()
		err := s.Del(t, list)
		waited := time.Since(begun)
		harness.OK(t, <-started)
		harness.Ready(t, n)
		if err != nil && waited < 5*time.Second { // else the daemon was late
			t.Errorf("a DEL waited only %v for the next daemon: %v", waited, err)
		}
		return err
	})

	harness.Eventually(t, patience, "an ADD gives up", func() error {
		harness.OK(t, n.Kill())
		// As if the daemon had been away for longer than a restart takes.
		harness.OK(t, heartbeat.Beat(n.Socket(), clock.Real{}.Boot()-heartbeat.Grace))
		begun := time.Now()
		_, err = s.Add(t, list)
		took := time.Since(begun)
		harness.Fails(t, err, types.ErrTryAgainLater, "does not answer", n.Socket())
		harness.OK(t, n.Start())
		if took > 40*time.Second { // the machine may have stood still once
			return fmt.Errorf("the plugin waited %v for a daemon that is gone", took)
		}
		return nil
	})
	harness.Ready(t, n)
	harness.OK(t, s.Del(t, list))
	harness.Settle(t, l)
}

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
