package gatewayplan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Seen is the observed state of an Egress.
type Seen struct {
	Service    *corev1.Service    // nil if unknown
	Deployment *appsv1.Deployment // nil if unknown
	Pods       []*corev1.Pod      // gateways according to IsGateway, ready or not
	Others     []*corev1.Pod      // pods with the label of the Egress that are not gateways
	Problem    *Problem           // of an object; nil if all are as desired
}

// maxMessage is the maximum length of a condition's message in bytes.
const maxMessage = 1024

// Status returns the desired status of an Egress at now, without the fields about clients, which have
// another writer.
func Status(e *v1alpha1.Egress, seen Seen, now metav1.Time) v1alpha1.EgressStatus {
	st := v1alpha1.EgressStatus{
		ObservedGeneration: e.Generation, Replicas: replicasOf(seen.Pods), Selector: Selector(e.Name),
		Gateways: Gateways(seen.Pods, e.Status.Gateways), ReadyGateways: readyGateways(seen.Pods), ServiceIPs: serviceIPs(seen.Service),
	}
	if e.Spec.TunnelTo == v1alpha1.TunnelToService && posing(seen.Others) != "" {
		st.ServiceIPs = nil // nodes then send nothing to the Service
	}
	for _, c := range []metav1.Condition{available(e, &st, seen), serviceReady(seen)} {
		if was := meta.FindStatusCondition(e.Status.Conditions, c.Type); was != nil {
			st.Conditions = append(st.Conditions, *was)
		}
		c.Message, c.ObservedGeneration, c.LastTransitionTime = shortened(c.Message, maxMessage), e.Generation, now
		meta.SetStatusCondition(&st.Conditions, c)
	}
	return st
}

func serviceIPs(s *corev1.Service) (out []string) {
	if s == nil {
		return nil
	}
	for _, text := range s.Spec.ClusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil {
			out = append(out, ip.String())
		}
	}
	return out
}

func available(e *v1alpha1.Egress, st *v1alpha1.EgressStatus, seen Seen) metav1.Condition {
	is := func(status metav1.ConditionStatus, reason, format string, args ...any) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionAvailable, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	if other := posing(seen.Others); e.Spec.TunnelTo == v1alpha1.TunnelToService && other != "" {
		return is(metav1.ConditionFalse, v1alpha1.EgressForeignPods,
			"Service %s would send clients' packets to pod %s, which does not belong to Deployment %s: destinations are unreachable for clients until you delete the pod, remove its label %s, or set spec.tunnelTo to Gateways",
			e.Name, other, e.Name, v1alpha1.LabelEgress)
	}
	if st.ReadyGateways == 0 {
		switch why := notReady(seen.Pods); {
		case e.Spec.Replicas != nil && *e.Spec.Replicas == 0:
			return is(metav1.ConditionFalse, v1alpha1.EgressNoReplicas, "spec.replicas is 0: destinations are unreachable for clients until there is a gateway")
		case why != "":
			return is(metav1.ConditionFalse, v1alpha1.EgressNoGateways, "no gateway is ready: %s", why)
		default:
			return is(metav1.ConditionFalse, v1alpha1.EgressNoGateways, "no gateway is ready: there is no pod of Deployment %s yet", e.Name)
		}
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		i := slices.IndexFunc(e.Spec.Destinations, func(d string) bool { return familyOf(d) == family })
		if i < 0 {
			continue
		}
		if !slices.ContainsFunc(st.Gateways, func(g v1alpha1.EgressGateway) bool { return !g.Ending && has(g.Addresses, family) }) {
			return is(metav1.ConditionFalse, v1alpha1.EgressFamilyMissing,
				"spec.destinations[%d]: %s is of %s, and no ready gateway has an address of that family: remove it, or give the gateways' pods such addresses", i, e.Spec.Destinations[i], family)
		}
		if e.Spec.TunnelTo == v1alpha1.TunnelToService && !has(st.ServiceIPs, family) {
			return is(metav1.ConditionFalse, v1alpha1.EgressFamilyMissing,
				"spec.destinations[%d]: %s is of %s, and Service %s has no address of that family: remove it, set spec.tunnelTo to Gateways, or give the cluster's Services such addresses", i, e.Spec.Destinations[i], family, e.Name)
		}
	}
	return is(metav1.ConditionTrue, v1alpha1.EgressGatewaysReady, "")
}

// posing returns the first pod, by name, that a Service would wrongly send packets to, or "".
func posing(pods []*corev1.Pod) (name string) {
	for _, p := range pods {
		if isReady(p) && p.DeletionTimestamp == nil && len(addressesOf(p)) > 0 && (name == "" || p.Name < name) {
			name = p.Name
		}
	}
	return name
}

// familyOf returns the family of an address or a CIDR, or "" if it is neither.
func familyOf(text string) string {
	address, _, _ := strings.Cut(text, "/")
	ip, err := netip.ParseAddr(address)
	switch {
	case err != nil:
		return ""
	case ip.Is4():
		return "IPv4"
	}
	return "IPv6"
}

func has(addresses []string, family string) bool {
	return slices.ContainsFunc(addresses, func(a string) bool { return familyOf(a) == family })
}

func serviceReady(seen Seen) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionServiceReady, Status: metav1.ConditionFalse}
	refused := refusedPods(seen.Deployment)
	switch {
	case seen.Problem != nil:
		c.Reason, c.Message = seen.Problem.Reason, seen.Problem.Message
	case refused != "":
		c.Reason, c.Message = v1alpha1.EgressPodsRefused, "gateways cannot be created: "+refused
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.EgressApplied
	}
	return c
}

// refusedPods returns why the API server rejects the gateways' pods, for example because the namespace
// forbids NET_ADMIN, or "" if it does not.
func refusedPods(d *appsv1.Deployment) string {
	if d == nil {
		return ""
	}
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// shortened limits a text to n bytes without cutting a character.
func shortened(text string, most int) string {
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "")
}
