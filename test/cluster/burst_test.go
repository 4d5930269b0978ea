//go:build e2e

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/run/host"
	"github.com/berthnet/berth/internal/lab/run/poll"
	"github.com/berthnet/berth/test/bench/objects"
	"github.com/berthnet/berth/test/harness"
)

// TestBurstWhileBerthdIsKilled has pods come to all nodes at once while berthd is killed
// twice on each. All become Ready by the sandboxes that they got first, since an ADD
// outlives its daemon. The times are for the log: a kubelet starts a container that
// ended a second time only after 10 s, and pods wait for that; one that is told to
// waits less (crashLoopBackOff.maxContainerRestartPeriod, docs/operate.md).
func TestBurstWhileBerthdIsKilled(t *testing.T) {
	// With addresses for all pods, and as many that cool, from the start.
	w := raise(t, lab.Options{Mode: lab.NodeMode, Nodes: 3, InstanceType: "m5.4xlarge", Kubelets: &lab.Kubelets{Proxy: host.NFTables}})
	w.rest(t)
	t.Logf("slowest pod without kills: %v", w.burst(t, "calm", 0))
	t.Logf("slowest pod with two kills on each node: %v", w.burst(t, "killed", 2))
	for _, n := range w.Nodes() {
		h, err := w.Host(n.Name)
		harness.OK(t, err)
		shorterBackOff(t, h)
		w.restartDaemon(t, n.Name) // the back-off is a pod's
	}
	w.rest(t)
	t.Logf("slowest pod with two kills, where the kubelet's back-off is a second at most: %v", w.burst(t, "soon", 2))
}

// burst makes pods on all nodes at once, kills berthd so often on each meanwhile, and
// tells how long the slowest took from its creation until it was Ready.
func (w *world) burst(t *testing.T, prefix string, kills int) (slowest time.Duration) {
	t.Helper()
	const pods = 30
	began, took := map[string]time.Time{}, map[string]time.Duration{}
	var all []*corev1.Pod
	for i := range pods {
		p := plainPod(fmt.Sprintf("%s-%d", prefix, i), w.Nodes()[i%len(w.Nodes())].Name)
		all, began[p.Name] = append(all, p), time.Now()
	}
	ctx := harness.Deadline(t, soon)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return objects.Each(gctx, pods, pods, func(ctx context.Context, i int) error { return w.Kube.Client.Create(ctx, all[i]) })
	})
	g.Go(func() error {
		return objects.Until(gctx, w.Kube.Client, &corev1.PodList{}, nil, func(p *corev1.Pod) bool {
			if at, ours := began[p.Name]; ours && took[p.Name] == 0 && isReady(p) {
				took[p.Name] = time.Since(at)
			}
			return len(took) == pods
		})
	})
	for _, n := range w.Nodes() {
		g.Go(func() error { return w.killTimes(gctx, n.Name, prefix+"-", kills) })
	}
	harness.OK(t, g.Wait())
	w.rest(t)

	failed := &corev1.EventList{}
	harness.OK(t, w.Kube.Client.List(ctx, failed, client.InNamespace(inDefault), client.MatchingFields{"reason": "FailedCreatePodSandBox"}))
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
		slowest = max(slowest, took[p.Name])
	}
	for _, e := range failed.Items {
		if slices.Contains(names, e.InvolvedObject.Name) {
			t.Errorf("an ADD of pod %s was lost: %s", e.InvolvedObject.Name, e.Message)
		}
	}
	w.removePods(t, names...)
	w.rest(t)
	return slowest.Round(time.Millisecond)
}

// killTimes kills berthd on a node so often, each time when some more of the pods whose
// names begin with prefix have sandboxes.
func (w *world) killTimes(ctx context.Context, node, prefix string, kills int) error {
	h, err := w.Host(node)
	if err != nil {
		return err
	}
	last := ""
	for i := range kills {
		err := poll.Until(ctx, func() error {
			made, err := sandboxes(ctx, h, prefix)
			if err != nil {
				return err
			}
			if want := 2 * (i + 1); len(made) < want {
				return fmt.Errorf("%s has %d sandboxes, want %d", node, len(made), want)
			}
			task, err := daemonTask(ctx, h)
			if err != nil || task == last {
				return errors.Join(err, notYet("another berthd"))
			}
			_, err = h.Run(ctx, "ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", task)
			last = task
			return err
		})
		if err != nil {
			return fmt.Errorf("kill berthd on %s: %w", node, err)
		}
	}
	return nil
}

// daemonTask is the container in which berthd runs on a machine.
func daemonTask(ctx context.Context, h *host.Host) (string, error) {
	containers, err := h.Run(ctx, "ctr", "--namespace=k8s.io", "containers", "list", "--quiet", `labels."io.kubernetes.container.name"==`+daemonName)
	if err != nil {
		return "", err
	}
	tasks, err := h.Run(ctx, "ctr", "--namespace=k8s.io", "tasks", "list")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(tasks) { // TASK PID STATUS
		f := strings.Fields(line)
		if len(f) == 3 && f[2] == "RUNNING" && slices.Contains(strings.Fields(containers), f[0]) {
			return f[0], nil
		}
	}
	return "", fmt.Errorf("no berthd runs on %s", h.Name)
}

// shorterBackOff has a machine's kubelet start containers that ended again within a
// second, as an administrator sets it.
func shorterBackOff(t *testing.T, h *host.Host) {
	t.Helper()
	const file = "/var/lib/vpclab/kubelet.json"
	var settings map[string]any
	harness.OK(t, json.Unmarshal([]byte(sh(t, h, "cat "+file)), &settings))
	settings["crashLoopBackOff"] = map[string]any{"maxContainerRestartPeriod": "1s"}
	data, err := json.Marshal(settings)
	harness.OK(t, err)
	_, err = h.Run(t.Context(), "sh", "-ec", `printf %s "$1" >"$2"`, "sh", string(data), file)
	harness.OK(t, err)
	harness.OK(t, h.RestartKubelet())
}
