//go:build e2e

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/kubectl"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness"
)

// berth runs `kubectl berth` and checks its exit code: 0, or 2 if it found a problem.
func (w *world) berth(t *testing.T, code int, args ...string) string {
	t.Helper()
	out, err := w.Kube.Kubectl(t.Context(), append([]string{"berth", "--quiet"}, args...)...)
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		harness.OK(t, err)
	}
	if got != code {
		t.Errorf("exit code of kubectl berth %s = %d, want %d:\n%s", strings.Join(args, " "), got, code, out)
	}
	return out
}

// berthJSON runs `kubectl berth` and decodes its JSON.
func berthJSON[T any](t *testing.T, w *world, code int, args ...string) (out T) {
	t.Helper()
	text := w.berth(t, code, append(args, "--output=json")...)
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("kubectl berth %s: %v\n%s", strings.Join(args, " "), err, text)
	}
	return out
}

// kubectlBerth compares `kubectl berth` with the cluster, at rest and while pods have no address.
func kubectlBerth(t *testing.T, w *world) {
	pluginPath(t)
	used := map[string]int{} // by node
	pods := &corev1.PodList{}
	harness.OK(t, w.Kube.Client.List(t.Context(), pods))
	for _, p := range pods.Items {
		if !p.Spec.HostNetwork {
			used[p.Spec.NodeName]++
		}
	}
	mode := map[lab.Mode]diagnose.Mode{lab.NodeMode: diagnose.NodeMode, lab.OperatorMode: diagnose.OperatorMode, lab.PoolMode: diagnose.PoolMode}[w.Mode]

	var details []string // the objects have enough details
	if w.Mode == lab.PoolMode {
		details = []string{"--details"}
	}
	w.rest(t)
	harness.Eventually(t, soon, "reported usage matches the remaining pods", func() error {
		out, err := w.Kube.Kubectl(t.Context(), append([]string{"berth", "--quiet", "status", "--output=json"}, details...)...)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		var s kubectl.Status
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			return err
		}
		return harness.Equal("addresses in use", s.Totals.Used, used[calmNode]+used[brokenNode])
	})
	s := berthJSON[kubectl.Status](t, w, 0, append([]string{"status"}, details...)...)
	if !s.Healthy || len(s.Nodes) != len(w.Nodes()) || !slices.Equal(s.Modes, []diagnose.Mode{mode}) || s.Totals.Used != used[calmNode]+used[brokenNode] {
		t.Errorf("status = %+v, want %v addresses in use", s, used)
	}
	for _, n := range s.Nodes {
		if !n.Daemon.Ready || n.Ready != "True" || n.Mode != mode || len(n.Trouble) > 0 || n.Addresses == nil || n.Addresses.Used != used[n.Name] || n.Addresses.Waiting != 0 {
			t.Errorf("node %s = %+v with addresses %+v, want a healthy node with %d in use", n.Name, n, n.Addresses, used[n.Name])
		}
		if isVPC := w.Mode != lab.PoolMode; isVPC && (n.ENIs == 0 || n.InstanceID == "") || !isVPC && n.Blocks == 0 {
			t.Errorf("node %s has no ENI or block: %+v", n.Name, n)
		}
	}
	if w.Mode != lab.NodeMode && (s.Operator == nil || s.Operator.Ready != w.OperatorCount || s.Operator.Leader == "") {
		t.Errorf("operator status = %+v, want all operators ready and a leader", s.Operator)
	}
	if d := berthJSON[kubectl.NodeDetails](t, w, 0, "node", calmNode); d.Document == nil || len(d.Document.Allocated) != used[calmNode] {
		t.Errorf("details of node %s = %+v, want all its addresses in use", calmNode, d)
	}

	d := berthJSON[kubectl.PodDetails](t, w, 0, "pod", inDefault+"/"+clientName)
	if d.Diagnosis.Verdict != diagnose.Works || len(d.Attachments) != 1 || !d.Attachments[0].Checked || d.Attachments[0].Fault != "" ||
		!slices.Contains(d.Addresses, d.Attachments[0].Address.String()) {
		t.Errorf("details of pod %s = %+v, want one checked attachment without a fault", clientName, d)
	}
	pools := berthJSON[kubectl.Pools](t, w, 0, "pools")
	if isPool := w.Mode == lab.PoolMode; isPool != (len(pools.Pools) > 0) || isPool && (pools.Pools[0].Name != "default" || len(pools.Pools[0].Trouble) > 0) {
		t.Errorf("pools = %+v, want only a healthy pool \"default\", and only in pool mode", pools)
	}
	top := berthJSON[kubectl.Top](t, w, 0, append([]string{"top"}, details...)...)
	for _, n := range top.Nodes {
		if n.Used != used[n.Name] {
			t.Errorf("top: addresses in use on %s = %d, want %d", n.Name, n.Used, used[n.Name])
		}
	}
	if len(top.Nodes) != len(w.Nodes()) || w.Mode != lab.PoolMode && (len(top.ENIs) == 0 || len(top.Subnets) == 0) {
		t.Errorf("top = %+v, want all nodes, and ENIs and subnets except in pool mode", top)
	}
	w.withoutAddress(t)
}

// withoutAddress creates pods that get no address, and checks the reasons given by `kubectl berth pod`.
func (w *world) withoutAddress(t *testing.T) {
	t.Helper()
	nowhere := plainPod("nowhere", "no-such-node")
	mounts := plainPod("mounts", brokenNode)
	mounts.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "no-such-secret"}}}}
	mounts.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	hostNetwork := plainPod("host-network", brokenNode)
	hostNetwork.Spec.HostNetwork = true
	for _, p := range []*corev1.Pod{nowhere, mounts, hostNetwork} {
		harness.OK(t, w.Kube.Client.Create(t.Context(), p))
	}
	w.finds(t, nowhere.Name, diagnose.NotScheduled, "node(s) didn't match")
	w.finds(t, mounts.Name, diagnose.NotAsked, "no-such-secret")
	w.finds(t, hostNetwork.Name, diagnose.HostNetwork, "its node's address")
	w.removePods(t, nowhere.Name, mounts.Name, hostNetwork.Name)
	if w.Mode == lab.PoolMode {
		w.withoutPool(t)
		return
	}

	// No subnet has a free address, and more pods are created than the node has addresses for.
	for _, action := range []string{"CreateNetworkInterface", "AssignPrivateIpAddresses"} {
		remove, err := w.Cloud.API.Inject(spec.Fault{Action: action, Kind: "error", Status: 400, Code: "InsufficientFreeAddressesInSubnet", Message: "there are too few free addresses"})
		harness.OK(t, err)
		defer remove()
	}
	doc := berthJSON[kubectl.NodeDetails](t, w, 0, "node", brokenNode).Document
	names := w.makePods(t, "short", brokenNode, doc.Totals.Available+doc.Totals.Cooling+2)
	verdict := diagnose.Waiting
	if w.Mode == lab.OperatorMode {
		verdict = diagnose.Degraded
	}
	var waits string
	harness.Eventually(t, soon, "two pods wait once others have got the addresses that cooled", func() error {
		var waiting []string
		for _, name := range names {
			pod := &corev1.Pod{}
			if err := w.Kube.Client.Get(t.Context(), client.ObjectKey{Namespace: inDefault, Name: name}, pod); err != nil {
				return err
			}
			if pod.Status.PodIP == "" {
				waiting = append(waiting, name)
			}
		}
		if len(waiting) != 2 {
			return fmt.Errorf("waiting: %v", waiting)
		}
		waits = waiting[0]
		return nil
	})
	w.finds(t, waits, verdict, "subnet")
	harness.Eventually(t, soon, "the node is short of addresses", func() error {
		var s kubectl.Status
		out, _ := w.Kube.Kubectl(t.Context(), "berth", "--quiet", "status", "--output=json")
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			return err
		}
		for _, n := range s.Nodes {
			if n.Name == brokenNode && n.Short && n.Addresses.Waiting > 0 && !s.Healthy {
				return nil
			}
		}
		return fmt.Errorf("no shortage: %s", out)
	})
	w.shows(t, []string{"WaitingForAddress", waits}, "berth", "events")
	w.Cloud.API.ClearFaults()
	w.podReady(t, names...)
	w.finds(t, waits, diagnose.Works, "")
	w.removePods(t, names...)
	w.rest(t)
}

// withoutPool creates pods that use a pool that does not exist, and one without a free block.
func (w *world) withoutPool(t *testing.T) {
	t.Helper()
	small := lab.Pool("small", 3, v1alpha1.PoolSubnet{IPv4: "10.77.0.0/29"}) // one block
	small.Spec.PodNamespaces = []string{inDefault}
	harness.OK(t, w.Kube.Client.Create(t.Context(), &small))
	of := func(name, node, pool string) string {
		p := plainPod(name, node)
		p.Annotations = map[string]string{v1alpha1.AnnotationPool: pool}
		harness.OK(t, w.Kube.Client.Create(t.Context(), p))
		return name
	}
	first := of("has-block", calmNode, small.Name)
	w.podReady(t, first)
	unknown, late := of("no-pool", brokenNode, "no-such-pool"), of("no-block", brokenNode, small.Name)
	w.finds(t, unknown, diagnose.NoPool, "no-such-pool")
	w.finds(t, late, diagnose.PoolExhausted, small.Name)
	if d, err := w.diagnosis(t, late); err != nil || len(d.Waiting) == 0 || d.Waiting[0].Message == "" {
		t.Errorf("diagnosis gives no reason why the pod is waiting: %+v, %v", d.Waiting, err)
	}
	if table := w.berth(t, 2, "pools", small.Name); !strings.Contains(table, small.Name) {
		t.Errorf("the table lacks the pool:\n%s", table)
	}
	w.removePods(t, first, unknown, late)
	harness.OK(t, client.IgnoreNotFound(w.Kube.Client.Delete(t.Context(), &small)))
	w.rest(t)
}

// diagnosis returns the diagnosis of a pod.
func (w *world) diagnosis(t *testing.T, name string) (d kubectl.PodDetails, err error) {
	t.Helper()
	out, err := w.Kube.Kubectl(t.Context(), "berth", "--quiet", "pod", inDefault+"/"+name, "--output=json")
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 2 {
		err = nil
	}
	return d, errors.Join(err, json.Unmarshal([]byte(out), &d))
}

// finds waits until the diagnosis of a pod has a verdict and contains some words.
func (w *world) finds(t *testing.T, name string, want diagnose.Verdict, words string) {
	t.Helper()
	harness.Eventually(t, soon, "kubectl berth pod "+name, func() error {
		d, err := w.diagnosis(t, name)
		if err == nil && (d.Diagnosis.Verdict != want || !strings.Contains(d.Diagnosis.Summary+d.Diagnosis.Remedy, words)) {
			err = fmt.Errorf("diagnosis = %+v, want %s and %q", d.Diagnosis, want, words)
		}
		return err
	})
}
