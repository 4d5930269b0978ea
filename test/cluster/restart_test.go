//go:build e2e

package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/test/harness"
)

// kubeletDies kills the kubelet while pods are created and deleted.
func kubeletDies(t *testing.T, w *world) {
	h, err := w.Machine(brokenNode)
	harness.OK(t, err)
	before := w.makePods(t, "before-kubelet", brokenNode, 2)
	w.podReady(t, before...)
	w.underCalls(t, func() {
		harness.OK(t, h.Kubelet.Kill())
		during := w.makePods(t, "during-kubelet", brokenNode, 2)
		p := plainPod(before[0], brokenNode)
		harness.OK(t, w.Kube.Client.Delete(t.Context(), p))
		harness.OK(t, h.Kubelet.Start())
		w.podReady(t, during...)
		w.removePods(t, append(during, before...)...)
	})
	w.rest(t)
}

// containerdDies kills the runtime during a burst of pods, and while these are deleted.
func containerdDies(t *testing.T, w *world) {
	h, err := w.Machine(brokenNode)
	harness.OK(t, err)
	w.underCalls(t, func() {
		burst := w.makePods(t, "burst", brokenNode, 8)
		w.someSandboxes(t, h, "burst-", 2)
		harness.OK(t, h.RestartContainerd(t.Context()))
		w.podReady(t, burst...)
		for _, name := range burst {
			harness.OK(t, w.Kube.Client.Delete(t.Context(), plainPod(name, brokenNode)))
		}
		harness.Eventually(t, soon, "the first pods go", func() error {
			ids, err := sandboxes(t.Context(), h, "burst-")
			if err == nil && len(ids) > 6 {
				err = fmt.Errorf("there are %d sandboxes", len(ids))
			}
			return err
		})
		harness.OK(t, h.RestartContainerd(t.Context()))
		w.removePods(t, burst...)
	})
	w.rest(t)
}

// someSandboxes waits until the runtime has that many sandboxes of pods whose names begin with prefix.
func (w *world) someSandboxes(t *testing.T, h *host.Host, prefix string, want int) {
	t.Helper()
	harness.Eventually(t, soon, "sandboxes of "+prefix, func() error {
		ids, err := sandboxes(t.Context(), h, prefix)
		if err == nil && len(ids) < want {
			err = fmt.Errorf("there are %d, want %d", len(ids), want)
		}
		return err
	})
}

// sandboxes are the IDs of the sandboxes of pods whose names begin with prefix.
func sandboxes(ctx context.Context, h *host.Host, prefix string) ([]string, error) {
	out, err := h.Run(ctx, "ctr", "--namespace=k8s.io", "containers", "list", "--quiet",
		`labels."io.cri-containerd.kind"==sandbox,labels."io.kubernetes.pod.name"~="^`+prefix+`"`)
	return strings.Fields(out), err
}

// apiAway is how much longer than necessary the API server is down: the duration in the variable API_AWAY, or 0.
func apiAway(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("API_AWAY")
	if text == "" {
		return 0
	}
	long, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("API_AWAY: %v", err)
	}
	return long
}

// apiServerAway kills the API server for some seconds, or for API_AWAY, while sandboxes are replaced. Ten minutes are
// also tested in virtual time (internal/kubeapi, internal/source).
func apiServerAway(t *testing.T, w *world) {
	h, err := w.Machine(brokenNode)
	harness.OK(t, err)
	pods := w.makePods(t, "away", brokenNode, 2)
	w.podReady(t, pods...)
	w.underCalls(t, func() {
		harness.OK(t, w.Kube.KillAPIServer())
		w.newSandbox(t, h, pods[0])
		if long := apiAway(t); long > 0 {
			select { // the test's subject: kubelets and containerd have no virtual time
			case <-time.After(long):
			case <-t.Context().Done():
			}
			w.newSandbox(t, h, pods[1])
		}
		harness.OK(t, w.Kube.StartAPIServer(harness.Deadline(t, soon)))
	})
	w.podReady(t, pods...)
	w.rest(t)
	w.removePods(t, pods...)
}

// newSandbox kills a pod's sandbox and waits until the kubelet has replaced it, which takes an ADD but no API server.
func (w *world) newSandbox(t *testing.T, h *host.Host, pod string) {
	t.Helper()
	old, err := sandboxes(t.Context(), h, pod+"$")
	harness.OK(t, err)
	if len(old) != 1 {
		t.Fatalf("pod %s has the sandboxes %v", pod, old)
	}
	_, err = h.Run(t.Context(), "ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", old[0])
	harness.OK(t, err)
	harness.Eventually(t, soon, "a new sandbox of "+pod, func() error {
		now, err := sandboxes(t.Context(), h, pod+"$")
		if err != nil {
			return err
		}
		tasks, err := h.Run(t.Context(), "ctr", "--namespace=k8s.io", "tasks", "list")
		if err != nil {
			return err
		}
		for _, id := range now {
			if id != old[0] && strings.Contains(tasks, id) {
				return nil
			}
		}
		return fmt.Errorf("it has %v", now)
	})
}

// operatorAway creates pods without an operator, for which the nodes have addresses.
func operatorAway(t *testing.T, w *world) {
	var pods []string
	w.underCalls(t, func() {
		w.scaleOperator(t, 0)
		pods = w.makePods(t, "no-operator", brokenNode, 2)
		w.podReady(t, pods...)
		w.scaleOperator(t, max(w.OperatorCount, 1))
		harness.OK(t, w.Kube.WaitDeployment(harness.Deadline(t, soon), addons.Namespace, operator))
	})
	w.rest(t)
	w.removePods(t, pods...)
}

// scaleOperator scales the operator's Deployment, and waits until surplus pods are gone.
func (w *world) scaleOperator(t *testing.T, replicas int) {
	t.Helper()
	w.kubectl(t, "scale", "deployment/"+operator, "--namespace="+addons.Namespace, fmt.Sprintf("--replicas=%d", replicas))
	harness.Eventually(t, soon, "the other operators end", func() error {
		list := &corev1.PodList{}
		err := w.Kube.Client.List(t.Context(), list, client.InNamespace(addons.Namespace), client.MatchingLabels{"app.kubernetes.io/name": operator})
		if err == nil && len(list.Items) > replicas {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
}
