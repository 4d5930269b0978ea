package kwokcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/bench/usage"
	"github.com/berthnet/berth/bench/whole"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/lab/run/proc"
)

// Outcome is what a run measured.
type Outcome struct {
	Served, Median time.Duration // from the first Node until the last node, and half of them, had a pod with an address
	EC2            whole.Calls   // until Served, of which Bound is a lower bound
	Filled         time.Duration // from then until all pods had addresses
	FillCPU        time.Duration // of the operator, until Filled
	Rest, Churn    Load
	Memory         int64 // of the operator, private, in bytes, at the end
	APIMemory      int64 // of the API server
}

// Load is what was measured during a period.
type Load struct {
	CPU      float64         // of the operator, in processors
	Requests float64         // at the API server per second
	Berth    float64         // of these, for Berth's kinds
	Traffic  []float64       // bytes from the API server per minute, of each machine
	Status   []time.Duration // of kubectl berth status
}

// measure executes the run.
func (c *cluster) measure(ctx context.Context) (out Outcome, err error) {
	defer must.Catch(&err)
	operator := c.lab.Operators()[0].PID()
	begin, before := time.Now(), must.Get(usage.CPU(operator))
	c.join(ctx)
	var times []time.Time
	for _, n := range c.nodes {
		times = append(times, n.served)
	}
	slices.SortFunc(times, time.Time.Compare)
	out.Served, out.Median = times[len(times)-1].Sub(begin), times[(len(times)-1)/2].Sub(begin)
	out.EC2 = whole.CallsOf(c.lab.Cloud, c.Limit, c.Delay)
	c.Say("  all nodes served in %v, half of them in %v, bound %v; %v", out.Served, out.Median, out.EC2.Bound, out.EC2.Granted)

	began := time.Now()
	c.fill(ctx)
	out.Filled = time.Since(began)
	out.FillCPU = must.Get(usage.Settled(ctx, operator)) - before
	c.Say("  %d pods created and served in %v", c.Nodes*c.Pods, out.Filled)

	c.settle(ctx)
	out.Rest = c.load(ctx, c.Period)
	churn, stop := context.WithCancel(ctx)
	defer stop()
	changes, churn := errgroup.WithContext(churn)
	changes.Go(func() error { return c.churn(churn) })
	out.Churn = c.load(ctx, podLife)
	stop()
	if err := changes.Wait(); !errors.Is(err, context.Canceled) {
		must.OK(err)
	}
	out.Memory = must.Get(usage.Memory(operator))
	out.APIMemory = must.Get(usage.Memory(c.lab.Kube.APIServer.PID()))
	return out, nil
}

// await returns once no pod waits for an address.
func (c *cluster) await(ctx context.Context) {
	said := time.Now()
	for {
		c.mu.Lock()
		waiting, err := c.waiting, c.failed
		c.mu.Unlock()
		must.OK(errors.Join(err, c.kwok.Failed(), c.lab.Operators()[0].Failed()))
		if waiting == 0 {
			return
		}
		if time.Since(said) > 20*time.Second {
			c.Say("  %d pods wait for an address", waiting)
			said = time.Now()
		}
		if err := poll.Pause(ctx, time.Now(), 100*time.Millisecond); err != nil {
			must.OK(fmt.Errorf("%d pods wait for an address: %w", waiting, err))
		}
	}
}

// fill creates all pods, those of a node at once, and returns once they run and have addresses.
func (c *cluster) fill(ctx context.Context) {
	machines := c.lab.Nodes()
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return objects.Each(groupCtx, c.Pods*len(machines), 1, func(ctx context.Context, i int) error {
			_, err := machines[i%len(machines)].AddPod(ctx, podName(i/len(machines)), node.PodOptions{})
			return err
		})
	})
	g.Go(func() error {
		said := time.Now()
		return objects.Each(groupCtx, (c.Pods-1)*len(c.nodes), writers, func(_ context.Context, i int) error {
			c.addPod(groupCtx, ctx, c.nodes[i/(c.Pods-1)])
			if i%1000 == 0 && time.Since(said) > 20*time.Second {
				c.Say("  %d pods created", i)
				said = time.Now()
			}
			return nil
		})
	})
	must.OK(g.Wait())
	c.await(ctx)
	// KWOK makes them run. Listing all pods costs the API server much, so it is asked rarely.
	for {
		pending := &corev1.PodList{}
		err := c.lab.Kube.Client.List(ctx, pending, client.MatchingFields{"status.phase": string(corev1.PodPending)}, client.Limit(1))
		if err == nil && len(pending.Items) == 0 {
			return
		}
		if err == nil {
			err = fmt.Errorf("pods such as %s do not run yet", pending.Items[0].Name)
		}
		c.Say("  %v", err)
		if end := poll.Pause(ctx, time.Now(), 10*time.Second); end != nil {
			must.OK(errors.Join(end, err))
		}
	}
}

// settle returns once KWOK, which falls behind while the API server is busy, makes hardly any request but renewals of Leases.
// It gives up after ten minutes: the measured rate shows that.
func (c *cluster) settle(ctx context.Context) {
	for range 10 * time.Minute / leaseRenewal {
		before := must.Get(c.requests(ctx)).all
		must.OK(poll.Pause(ctx, time.Now(), leaseRenewal))
		rate := (must.Get(c.requests(ctx)).all - before) / leaseRenewal.Seconds()
		c.Say("  %.0f requests/s", rate)
		if rate < 1.5*float64(c.Nodes)/leaseRenewal.Seconds() {
			return
		}
	}
}

func podName(i int) string { return fmt.Sprintf("web-%d", i) }

// podLife is the time between two replacements of pods on a node.
const podLife = 10 * time.Minute

// churn replaces pods on all nodes, spread over time. The machines come in the middle, when load measures.
func (c *cluster) churn(ctx context.Context) error {
	machines, each := c.lab.Nodes(), podLife/time.Duration(c.Nodes)
	began := time.Now()
	g, groupCtx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i := 0; groupCtx.Err() == nil; i++ {
		if err := poll.Pause(groupCtx, time.Now(), time.Until(began.Add(time.Duration(i)*each))); err != nil {
			break
		}
		at, round := (i+c.Nodes/2)%c.Nodes, i/c.Nodes
		g.Go(func() (err error) {
			defer must.Catch(&err)
			if at >= len(machines) {
				n := c.nodes[at-len(machines)]
				c.removePod(groupCtx, n)
				c.addPod(groupCtx, ctx, n)
				return nil
			}
			must.OK(machines[at].DelPod(groupCtx, podName(round)))
			must.Get(machines[at].AddPod(groupCtx, podName(c.Pods+round), node.PodOptions{}))
			return nil
		})
	}
	return errors.Join(g.Wait(), ctx.Err())
}

// statusRuns is how often load calls the status.
const statusRuns = 5

// load measures a period, and then the status.
func (c *cluster) load(ctx context.Context, period time.Duration) (l Load) {
	operator := c.lab.Operators()[0].PID()
	machines := c.lab.Nodes()
	before, cpu := must.Get(c.requests(ctx)), must.Get(usage.OnCPU(operator))
	began := time.Now()
	had := make([]map[uint16]uint64, len(machines))
	for i, n := range machines {
		had[i] = must.Get(c.received(n.Netns))
	}
	must.OK(poll.Pause(ctx, time.Now(), period))
	for i, n := range machines {
		sum := uint64(0)
		for port, bytes := range must.Get(c.received(n.Netns)) {
			sum += bytes - had[i][port]
		}
		l.Traffic = append(l.Traffic, float64(sum)/time.Since(began).Minutes())
	}
	took := time.Since(began).Seconds()
	l.CPU = (must.Get(usage.OnCPU(operator)) - cpu).Seconds() / took
	after := must.Get(c.requests(ctx))
	l.Requests, l.Berth = (after.all-before.all)/took, (after.berth-before.berth)/took
	for range statusRuns {
		l.Status = append(l.Status, c.status(ctx))
	}
	c.Say("  %.3f processors of the operator, %.1f requests/s, %.1f of them for Berth's kinds; %.0f bytes a minute to a machine; status %v", l.CPU, l.Requests, l.Berth, l.Traffic, l.Status)
	return l
}

// unwell is the exit code of `kubectl berth status` for problems, such as nodes whose warm addresses wait for EC2's rate.
const unwell = 2

// status returns how long `kubectl berth status` takes.
func (c *cluster) status(ctx context.Context) time.Duration {
	program := filepath.Join(c.dir, "kubectl-berth")
	if err := os.Symlink(filepath.Join(must.Get(filepath.Abs(c.BinDir)), "berthctl"), program); !errors.Is(err, os.ErrExist) {
		must.OK(err)
	}
	var out bytes.Buffer
	began := time.Now()
	err := proc.Run(ctx, proc.Command{
		Path: program, Args: []string{"status"}, Netns: c.lab.RouterPath(), Env: []string{"KUBECONFIG=" + c.lab.Kube.AdminKubeconfig()},
	}, nil, &out, &out)
	took := time.Since(began)
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != unwell) {
		must.OK(fmt.Errorf("kubectl berth status: %w\n%s", err, out.Bytes()[:min(out.Len(), 2000)]))
	}
	if !bytes.Contains(out.Bytes(), fmt.Appendf(nil, "%d nodes, ", c.Nodes)) {
		must.OK(fmt.Errorf("kubectl berth status: %s, want %d nodes", out.Bytes()[:min(out.Len(), 2000)], c.Nodes))
	}
	return took
}
