package gatewayplan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
)

// maxGateways is how many gateways an Egress's status can list (by its definition).
const maxGateways = 1024

// IsGateway reports whether a pod is a gateway of an Egress: by its label, and because its ReplicaSet
// belongs to the Egress's Deployment. The names and UIDs of both are compared, as whoever creates a
// pod may write any owner into it. of is the ReplicaSet that the pod names as its controller; nil:
// it does not exist. deployment is the UID of the Egress's Deployment.
func IsGateway(egress string, p *corev1.Pod, of *metav1.PartialObjectMetadata, deployment types.UID) bool {
	if p.Labels[v1alpha1.LabelEgress] != egress || p.Spec.HostNetwork || of == nil || deployment == "" || !metav1.IsControlledBy(p, of) {
		return false
	}
	owner := metav1.GetControllerOf(of)
	return owner != nil && owner.Kind == Deployment.Kind && owner.Name == egress && owner.UID == deployment
}

// Gateways are the pods of an Egress to which clients' tunnels may lead, by name: those that are
// ready; those that are being deleted and still answer their probe; and those that were gateways
// before and whose program is restarting. The kernel forwards the connections of the last meanwhile,
// so these stay with them, and new connections go there if no gateway is ready.
func Gateways(pods []*corev1.Pod, before []v1alpha1.EgressGateway) (out []v1alpha1.EgressGateway) {
	others := readyGateways(pods) > 0
	for _, p := range pods {
		addresses := addressesOf(p)
		was := slices.ContainsFunc(before, func(g v1alpha1.EgressGateway) bool { return g.UID == string(p.UID) })
		again := was && startsAgain(p)
		if !isReady(p) && !again || len(addresses) == 0 {
			continue
		}
		out = append(out, v1alpha1.EgressGateway{
			Name: p.Name, UID: string(p.UID), Addresses: addresses, Ending: p.DeletionTimestamp != nil || again && others,
		})
	}
	slices.SortFunc(out, func(a, b v1alpha1.EgressGateway) int {
		return cmp.Or(boolCompare(a.Ending, b.Ending), cmp.Compare(a.Name, b.Name))
	})
	out = out[:min(len(out), maxGateways)] // if there are too many, those that end are left out
	slices.SortFunc(out, func(a, b v1alpha1.EgressGateway) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// replicasOf counts the gateways that are not being deleted, as a Deployment does.
func replicasOf(pods []*corev1.Pod) (n int32) {
	for _, p := range pods {
		if p.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// readyGateways counts the pods that take new connections.
func readyGateways(pods []*corev1.Pod) (n int32) {
	for _, p := range pods {
		if isReady(p) && p.DeletionTimestamp == nil && len(addressesOf(p)) > 0 {
			n++
		}
	}
	return n
}

// startsAgain reports whether the program of a pod is restarting: the kubelet says that its container is
// not ready. On a node that is gone, the node controller changes the pod's condition Ready alone.
func startsAgain(p *corev1.Pod) bool {
	c := condition(p, corev1.ContainersReady)
	return p.DeletionTimestamp == nil && !isReady(p) && c != nil && c.Status == corev1.ConditionFalse
}

func isReady(p *corev1.Pod) bool {
	c := condition(p, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// addressesOf are a pod's addresses, the first of each family.
func addressesOf(p *corev1.Pod) (out []string) {
	four, six := false, false
	for _, a := range p.Status.PodIPs {
		ip, err := netip.ParseAddr(a.IP)
		if err != nil || ip.Is4() && four || ip.Is6() && six {
			continue
		}
		four, six = four || ip.Is4(), six || ip.Is6()
		out = append(out, ip.String())
	}
	return out
}

// maxExplained is how many pods that are not ready a message names.
const maxExplained = 3

// notReady is why pods are not ready; empty: all are.
func notReady(pods []*corev1.Pod) string {
	var why []string
	for _, p := range pods {
		if p.DeletionTimestamp == nil && !isReady(p) {
			why = append(why, fmt.Sprintf("pod %s %s", p.Name, unready(p)))
		}
	}
	slices.Sort(why)
	if more := len(why) - maxExplained; more > 0 {
		why = append(why[:maxExplained], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(why, "; ")
}

// unready is why a pod is not ready.
func unready(p *corev1.Pod) string {
	if c := condition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return fmt.Sprintf("has no node: %s: %s", c.Reason, c.Message)
	}
	for _, s := range p.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return strings.TrimSuffix(fmt.Sprintf("waits: container %s: %s: %s", s.Name, w.Reason, w.Message), ": ")
		}
	}
	if p.Status.PodIP == "" {
		return "starts"
	}
	return "is not ready: see its readiness probe and its log"
}
