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
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// TestBurstWhileBerthdIsKilled creates pods on all nodes simultaneously while berthd is killed twice on each. All
// pods become Ready with their first sandboxes, because an ADD outlives the daemon. The times are only logged: a
// kubelet restarts a container that ended twice after 10 s, or after crashLoopBackOff.maxContainerRestartPeriod
// (docs/guides/operate.md), and pods wait for that.
func TestBurstWhileBerthdIsKilled(t *testing.T) {
	// Start with addresses for all pods, and the same number for cooling ones.
	w := raise(t, lab.Options{Mode: lab.NodeMode, Nodes: 3, InstanceType: "m5.4xlarge", Kubelets: &lab.Kubelets{Proxy: host.NFTables}})
	w.rest(t)
	t.Logf("slowest pod without kills: %v", w.burst(t, "calm", 0))
	t.Logf("slowest pod with two kills on each node: %v", w.burst(t, "killed", 2))
	for _, n := range w.Nodes() {
		h, err := w.Machine(n.Name)
		harness.OK(t, err)
		shorterBackOff(t, h)
		w.restartDaemon(t, n.Name) // the back-off belongs to a pod
	}
	w.rest(t)
	t.Logf("slowest pod with two kills and a kubelet back-off of at most a second: %v", w.burst(t, "soon", 2))
}

// burst creates pods on all nodes simultaneously, kills berthd the given number of times on each meanwhile, and
// returns the longest time from creation to Ready.
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
			if at, ours := began[p.Name]; ours && took[p.Name] == 0 && objects.IsReady(p) {
				took[p.Name] = time.Since(at)
			}
			return len(took) == pods
		})
	})
	killed := make([][]time.Time, len(w.Nodes()))
	for i, n := range w.Nodes() {
		g.Go(func() (err error) {
			killed[i], err = w.killTimes(gctx, n.Name, prefix+"-", pods/len(w.Nodes()), kills)
			return err
		})
	}
	harness.OK(t, g.Wait())
	for i, n := range w.Nodes() {
		for _, at := range killed[i] {
			t.Logf("berthd on %s was killed after %v", n.Name, at.Sub(began[all[0].Name]).Round(time.Millisecond))
		}
	}
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

// killTimes kills berthd on a node the given number of times, each time as soon as more pods of the prefix have
// sandboxes than before, or all have. So each berthd has answered some ADDs, and others wait for the next one. It
// returns the times of the kills.
func (w *world) killTimes(ctx context.Context, node, prefix string, pods, kills int) (at []time.Time, err error) {
	h, err := w.Machine(node)
	if err != nil {
		return nil, err
	}
	conn, err := h.CRI()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	r := cri.NewRuntimeServiceClient(conn)
	for made, last := 0, 0; len(at) < kills; {
		err := poll.Until(ctx, func() error {
			now, err := attached(ctx, r, prefix)
			if err != nil || now <= made && now < pods {
				return errors.Join(err, notYet(fmt.Sprintf("%d sandboxes", now)))
			}
			pid, err := daemonPID(ctx, r)
			if err != nil || pid == last {
				return errors.Join(err, notYet("another berthd"))
			}
			made, last = now, pid
			return unix.Kill(pid, unix.SIGKILL)
		})
		if err != nil {
			return at, fmt.Errorf("kill berthd on %s: %w", node, err)
		}
		at = append(at, time.Now())
	}
	return at, nil
}

// attached counts the sandboxes of a machine for pods with a name prefix.
func attached(ctx context.Context, r cri.RuntimeServiceClient, prefix string) (count int, err error) {
	list, err := r.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	for _, s := range list.GetItems() {
		if s.State == cri.PodSandboxState_SANDBOX_READY && strings.HasPrefix(s.Metadata.Name, prefix) {
			count++
		}
	}
	return count, err
}

// daemonPID returns the process ID of berthd on a machine.
func daemonPID(ctx context.Context, r cri.RuntimeServiceClient) (int, error) {
	list, err := r.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{"io.kubernetes.container.name": daemonName},
	}})
	if err != nil || len(list.Containers) == 0 {
		return 0, errors.Join(err, notYet("berthd"))
	}
	status, err := r.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: list.Containers[0].Id, Verbose: true})
	if err != nil {
		return 0, err
	}
	var of struct{ PID int }
	if err := json.Unmarshal([]byte(status.Info["info"]), &of); err != nil || of.PID == 0 {
		return 0, fmt.Errorf("containerd reports %q for berthd, want its pid (%w)", status.Info["info"], err)
	}
	return of.PID, nil
}

// shorterBackOff limits the back-off of a machine's kubelet to a second.
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
