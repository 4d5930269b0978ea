//go:build e2e

package cluster

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/test/harness"
)

// Annotations of pods and namespaces.
const (
	vpcAnnotation  = "berth.dev/vpc"
	nicsAnnotation = "berth.dev/nics"
)

// webPod is a web server on a node.
func webPod(name, node string, annotations map[string]string) *corev1.Pod {
	p := plainPod(name, node)
	p.Annotations = annotations
	p.Spec.Containers[0].Args = []string{"netexec", fmt.Sprintf("--http-port=%d", webPort)}
	return p
}

// nicOf is the PodNIC of a pod's eth0.
func (w *world) nicOf(t *testing.T, p *corev1.Pod) (v1alpha1.PodNIC, error) {
	t.Helper()
	if err := w.Kube.Client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		return v1alpha1.PodNIC{}, err
	}
	all, err := w.Kube.PodNICs(t.Context())
	for _, n := range all {
		if n.Status.Pod != nil && n.Status.Pod.UID == string(p.UID) && n.Status.Interface == "eth0" {
			return n, err
		}
	}
	return v1alpha1.PodNIC{}, errors.Join(err, fmt.Errorf("pod %s has no PodNIC for eth0", p.Name))
}

// asks calls an address from the client.
func (w *world) asks(t *testing.T, address string) error {
	t.Helper()
	out, err := w.Kube.Kubectl(t.Context(), "exec", clientName, "--", "curl", "-sf", "-m", "2", "http://"+net.JoinHostPort(address, strconv.Itoa(webPort))+"/hostname")
	if err != nil {
		return fmt.Errorf("ask %s: %w: %s", address, err, out)
	}
	return nil
}

// namespacesVPC creates pods in a namespace without the annotation, whose VPC is the cluster's default one, and then
// with another VPC.
func namespacesVPC(t *testing.T, w *world) {
	const shop = "shop"
	w.kubectl(t, "create", "namespace", shop)
	defer w.kubectl(t, "delete", "namespace", shop, "--timeout=120s")
	for i, vpc := range w.VPCs {
		if i > 0 {
			w.kubectl(t, "annotate", "namespace", shop, vpcAnnotation+"="+vpc.Name, "--overwrite")
			n := &corev1.Namespace{}
			harness.OK(t, w.Kube.Client.Get(t.Context(), client.ObjectKey{Name: shop}, n))
		}
		p := webPod(fmt.Sprintf("plain-%d", i), brokenNode, nil)
		p.Namespace = shop
		harness.OK(t, w.Kube.Client.Create(t.Context(), p))
		harness.Eventually(t, soon, "the pod has an address", func() error {
			nic, err := w.nicOf(t, p)
			if err == nil && (nic.Spec.VPC != vpc.Name || p.Status.PodIP == "" || !strings.HasPrefix(nic.Status.Addresses[0].CIDR, p.Status.PodIP+"/")) {
				err = fmt.Errorf("pod %s has %q of %s, want one of %s", p.Name, p.Status.PodIP, nic.Spec.VPC, vpc.Name)
			}
			return err
		})
	}
}

// apartPort is served in the VPC without a route only.
const apartPort = 8099

// probesAndRoutes creates pods in a VPC to which no node has a route: HTTP probes fail, and exec probes succeed.
func probesAndRoutes(t *testing.T, w *world) {
	apart := map[string]string{vpcAnnotation: w.VPCs[1].Name}
	byHTTP, byCommand := webPod("by-http", brokenNode, apart), webPod("by-command", brokenNode, apart)
	byHTTP.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(apartPort)}}, PeriodSeconds: 1, TimeoutSeconds: 1,
	}
	byCommand.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"curl", "-sf", fmt.Sprintf("http://127.0.0.1:%d/healthz", apartPort)}}}, PeriodSeconds: 1, TimeoutSeconds: 5,
	}
	for _, p := range []*corev1.Pod{byHTTP, byCommand} {
		// A port that no pod serves which has the same address in the VPC that is routed.
		p.Spec.Containers[0].Args = []string{"netexec", fmt.Sprintf("--http-port=%d", apartPort)}
		harness.OK(t, w.Kube.Client.Create(t.Context(), p))
	}
	w.podReady(t, byCommand.Name)
	w.shows(t, []string{"Readiness probe failed"}, "describe", "pod", byHTTP.Name)
	if w.isReady(t.Context(), inDefault, byHTTP.Name) == nil {
		t.Error("a probe by HTTP reached a pod of a VPC that no node has a route to")
	}
	w.removePods(t, byHTTP.Name, byCommand.Name)
	w.rest(t)
}

// groupsChange changes the security group of a running pod's NIC, and then the group's rules.
func groupsChange(t *testing.T, w *world) {
	shut, err := w.Ports.AddGroup(t.Context(), "shut")
	harness.OK(t, err)
	p := webPod("groups", brokenNode, nil)
	harness.OK(t, w.Kube.Client.Create(t.Context(), p))
	w.podReady(t, p.Name)
	nic, err := w.nicOf(t, p)
	harness.OK(t, err)
	address := p.Status.PodIP
	harness.Eventually(t, soon, "the pod answers", func() error { return w.asks(t, address) })
	w.kubectl(t, "patch", "podnic", nic.Name, "--type=merge", `--patch={"spec":{"securityGroups":["`+shut+`"]}}`)
	harness.Eventually(t, soon, "nobody reaches the pod", func() error {
		if w.asks(t, address) == nil {
			return errors.New("it answers")
		}
		return nil
	})
	harness.OK(t, w.Ports.Allow(t.Context(), shut, portcloud.Rule{Protocol: "tcp", Port: webPort}))
	harness.Eventually(t, soon, "the group's new rule lets callers in", func() error { return w.asks(t, address) })
	w.removePods(t, p.Name)
	w.rest(t)
}

// wrong asks for the address of its subnet's gateway.
const wrong = `[{subnet: subnet-1, ip: 192.168.0.1}]`

// refusal is the webhook's answer.
const refusal = "metadata.annotations[berth.dev/nics][0].ip: 192.168.0.1 is the gateway of subnet subnet-1 (192.168.0.0/24)"

// webhookRefuses creates a pod and a PodNIC that the webhook rejects.
func webhookRefuses(t *testing.T, w *world) {
	err := w.Kube.Client.Create(t.Context(), webPod("refused", brokenNode, map[string]string{vpcAnnotation: w.VPCs[0].Name, nicsAnnotation: wrong}))
	if err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("creation of a wrong pod: %v, want %q", err, refusal)
	}
	nic := &v1alpha1.PodNIC{
		ObjectMeta: metav1.ObjectMeta{Namespace: inDefault, Name: "refused"},
		Spec:       v1alpha1.PodNICSpec{VPC: w.VPCs[0].Name, Addresses: []v1alpha1.NICAddress{{Subnet: "subnet-1", IP: "192.168.0.1"}}},
	}
	if err := w.Kube.Client.Create(t.Context(), nic); err == nil || !strings.Contains(err.Error(), "192.168.0.1 is the gateway of subnet subnet-1") {
		t.Errorf("creation of a wrong PodNIC: %v", err)
	}
}

// portOperatorAway removes the operator: pods keep running, new ones wait, and a wrong pod is
// admitted, and explained by an Event once an operator runs again.
func portOperatorAway(t *testing.T, w *world) {
	var good *corev1.Pod
	bad := webPod("wrong", brokenNode, map[string]string{vpcAnnotation: w.VPCs[0].Name, nicsAnnotation: wrong})
	w.underCalls(t, func() {
		w.scaleOperator(t, 0)
		good = webPod("waits", brokenNode, nil)
		for _, p := range []*corev1.Pod{good, bad} {
			harness.OK(t, w.Kube.Client.Create(t.Context(), p))
		}
		w.shows(t, []string{"FailedCreatePodSandBox", "PodNIC"}, "describe", "pod", good.Name)
		w.scaleOperator(t, max(w.OperatorCount, 1))
		harness.OK(t, w.Kube.WaitDeployment(harness.Deadline(t, soon), addons.Namespace, operator))
		w.podReady(t, good.Name)
		w.shows(t, []string{refusal}, "describe", "pod", bad.Name)
	})
	w.removePods(t, good.Name, bad.Name)
	webhookRefuses(t, w)
	w.rest(t)
}
