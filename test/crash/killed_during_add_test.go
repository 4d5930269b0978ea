package crash

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// roomy is a lab of one node with a warm address on the primary ENI for each of so many pods.
// Addresses that a kill loses are asked for again, without a failed ADD.
func roomy(pods int) lab.Options {
	warm := fmt.Sprint(pods)
	return harness.Quick(lab.NodeMode, lab.Options{
		Nodes: 1, InstanceType: "m5.16xlarge",
		DaemonArgs: []string{"--warm-ip-target=" + warm, "--minimum-ip-target=" + warm, "--warm-wait=2m"},
	})
}

// TestADDAndDELOutliveAKilledDaemon kills the daemon at the steps of an ADD and a DEL. The one call that the
// runtime makes succeeds with the next daemon: with one address, and with nothing left.
func TestADDAndDELOutliveAKilledDaemon(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, roomy(3))
	n := l.Nodes()[0]
	for _, name := range slices.Concat(harness.Sample(t, 5, named("daemon.add.")), harness.Sample(t, 5, named("daemon.del."))) {
		verb := strings.ToUpper(strings.Split(name, ".")[1])
		t.Run(verb+"/"+name, func(t *testing.T) {
			ctx := harness.Deadline(t, patience)
			var restarted <-chan error
			kill := func(of string) {
				if of == verb {
					restarted = killTimes(ctx, t, n, name+"=kill", 1)
				}
			}
			kill("ADD")
			p, err := n.AddPod(ctx, "pod", node.PodOptions{Once: true})
			harness.OK(t, err)
			if len(p.Addrs) != 1 {
				t.Errorf("the pod has the addresses %v, want one", p.Addrs)
			}
			if verb == "ADD" {
				harness.OK(t, <-restarted)
				harness.Settle(t, l) // one lease, one record, one link
			}
			kill("DEL")
			if verb == "DEL" {
				harness.OK(t, n.DelAgain(ctx, p)) // by one call
				harness.OK(t, <-restarted)
			}
			harness.OK(t, n.DelPod(ctx, "pod"))
			harness.Settle(t, l)
		})
	}
}

// TestBurstOutlivesTheDaemon restarts the daemon in the middle of a burst of ADDs, in order or by
// kills, and no ADD fails: no pod waits until its kubelet tries again. The times are for the log, which
// has that of a burst without a restart too.
func TestBurstOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	const pods = 30
	l := harness.Raise(t, roomy(pods))
	n := l.Nodes()[0]
	for _, tc := range []struct {
		name    string
		starts  int // of daemons
		restart func(ctx context.Context, t *testing.T) <-chan error
	}{
		{"left alone", 0, func(context.Context, *testing.T) <-chan error {
			nothing := make(chan error)
			close(nothing)
			return nothing
		}},
		{"restarted", 1, func(context.Context, *testing.T) <-chan error {
			restarted := make(chan error, 1)
			go func() {
				err := n.Stop(patience)
				if err == nil {
					err = n.Start()
				}
				restarted <- err
			}()
			return restarted
		}},
		{"killed twice", 3, func(ctx context.Context, t *testing.T) <-chan error {
			return killTimes(ctx, t, n, "daemon.add.wired=kill@8", 2)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, before := harness.Deadline(t, patience), n.Starts()
			restarted := tc.restart(ctx, t)
			slowest := burst(ctx, t, n, pods)
			harness.OK(t, <-restarted)
			if got := n.Starts() - before; got != tc.starts {
				t.Errorf("%d daemons were started, want %d", got, tc.starts)
			}
			t.Logf("slowest of %d ADDs: %v", pods, slowest.Round(time.Millisecond))
			harness.Settle(t, l)
			harness.RemoveAll(t, n)
			harness.Settle(t, l)
		})
	}
}

// burst adds pods at the same time, each by one ADD, checks that their addresses differ, and returns
// the time of the slowest.
func burst(ctx context.Context, t *testing.T, n *node.Node, pods int) (slowest time.Duration) {
	t.Helper()
	var mu sync.Mutex // guards slowest and addrs
	addrs := map[netip.Addr]bool{}
	err := harness.AtOnce(pods, func(i int) error {
		began := time.Now()
		p, err := n.AddPod(ctx, fmt.Sprintf("pod-%d", i), node.PodOptions{Once: true})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		slowest = max(slowest, time.Since(began))
		for _, a := range p.Addrs {
			addrs[a] = true
		}
		return nil
	})
	harness.OK(t, err)
	if len(addrs) != pods {
		t.Errorf("%d pods have %d addresses", pods, len(addrs))
	}
	return slowest
}

// killTimes restarts the daemon with a failpoint that kills it, so many times, and then without. The
// channel gets nil when the last one runs.
func killTimes(ctx context.Context, t *testing.T, n *node.Node, points string, kills int) <-chan error {
	t.Helper()
	restarted := make(chan error, 1)
	env := map[string]string{failpoint.EnvVar: points}
	harness.OK(t, n.Stop(patience))
	n.Env = env
	harness.OK(t, n.Start())
	harness.OK(t, n.WaitReady(ctx))
	died := n.Exited()
	go func() {
		for left := kills - 1; ; left-- {
			select {
			case <-died:
			case <-ctx.Done():
				restarted <- fmt.Errorf("the failpoint %s was not reached", points)
				return
			}
			if left == 0 {
				n.Env = nil
			}
			if err := n.Start(); err != nil || left == 0 {
				restarted <- err
				return
			}
			died = n.Exited()
		}
	}()
	return restarted
}
