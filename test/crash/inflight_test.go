package crash

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// roomy is a lab of one node whose primary ENI has an address warm for each of so
// many pods. What a kill took is asked for again, which no ADD fails for.
func roomy(pods int) lab.Options {
	warm := fmt.Sprint(pods)
	return harness.Quick(lab.NodeMode, lab.Options{
		Nodes: 1, InstanceType: "m5.16xlarge",
		DaemonArgs: []string{"--warm-ip-target=" + warm, "--minimum-ip-target=" + warm, "--warm-wait=2m"},
	})
}

// An ADD whose daemon is killed in the middle of it succeeds with the next one: the
// same ADD, which the runtime made once, and one address.
func TestADDOutlivesItsDaemon(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, roomy(3))
	n := l.Nodes()[0]
	for _, name := range harness.Sample(t, 5, named("daemon.add.")) {
		t.Run(name, func(t *testing.T) {
			ctx := harness.Deadline(t, patience)
			restarted := killTimes(ctx, t, n, name+"=kill", 1)
			p, err := n.AddPod(ctx, "pod", node.PodOptions{Once: true})
			harness.OK(t, err)
			harness.OK(t, <-restarted)
			if len(p.Addrs) != 1 {
				t.Errorf("the pod has the addresses %v, want one", p.Addrs)
			}
			harness.Settle(t, l) // one lease, one record, one link
			harness.OK(t, n.DelPod(ctx, "pod"))
			harness.Settle(t, l)
		})
	}
}

// So does a DEL, and what it began is finished.
func TestDELOutlivesItsDaemon(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, roomy(3))
	n := l.Nodes()[0]
	for _, name := range harness.Sample(t, 5, named("daemon.del.")) {
		t.Run(name, func(t *testing.T) {
			ctx := harness.Deadline(t, patience)
			p, err := n.AddPod(ctx, "pod", node.PodOptions{Once: true})
			harness.OK(t, err)
			restarted := killTimes(ctx, t, n, name+"=kill", 1)
			harness.OK(t, n.DelAgain(ctx, p)) // by one call
			harness.OK(t, <-restarted)
			harness.OK(t, n.DelPod(ctx, "pod"))
			harness.Settle(t, l)
		})
	}
}

// A restart in order, in the middle of a burst, fails no ADD either.
func TestBurstWhileTheDaemonIsRestarted(t *testing.T) {
	t.Parallel()
	const pods = 30
	l := harness.Raise(t, roomy(pods))
	n := l.Nodes()[0]
	ctx := harness.Deadline(t, patience)
	restarted := make(chan error, 1)
	go func() {
		if err := n.Stop(patience); err != nil {
			restarted <- err
			return
		}
		restarted <- n.Start()
	}()
	burst(ctx, t, n, pods)
	harness.OK(t, <-restarted)
	harness.Settle(t, l)
}

// In a burst of ADDs the daemon is killed twice, and none of them fails: no pod
// waits for a kubelet to try again. The times are for the log; a restart takes
// what a start takes.
func TestBurstWhileTheDaemonIsKilled(t *testing.T) {
	t.Parallel()
	const pods = 30
	l := harness.Raise(t, roomy(pods))
	n := l.Nodes()[0]
	ctx := harness.Deadline(t, patience)
	for _, kills := range []int{0, 2} {
		before := n.Starts()
		restarted := killTimes(ctx, t, n, "daemon.add.wired=kill@8", kills)
		slowest := burst(ctx, t, n, pods)
		harness.OK(t, <-restarted)
		if got := n.Starts() - before - min(kills, 1); got != kills {
			t.Errorf("the daemon was restarted %d times, want %d", got, kills)
		}
		t.Logf("%d kills: slowest of %d ADDs %v", kills, pods, slowest.Round(time.Millisecond))
		harness.Settle(t, l)
		for i := range pods {
			harness.OK(t, n.DelPod(ctx, fmt.Sprintf("pod-%d", i)))
		}
		harness.Settle(t, l)
	}
}

// burst adds pods at once, each by one ADD, wants an address of its own for each, and
// returns how long the slowest took.
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

// killTimes starts the daemon anew, armed to end at a failpoint, and so do the ones
// after it, until so many have ended. The channel has nil when the one is started
// that lives on.
func killTimes(ctx context.Context, t *testing.T, n *node.Node, points string, kills int) <-chan error {
	t.Helper()
	restarted := make(chan error, 1)
	if kills == 0 {
		restarted <- nil
		return restarted
	}
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
