package clients

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
)

// tell makes an Event of a pod for each refusal that its EgressClient did not say before. A
// refusal's message is no longer than an Event's note may be (plan.Most).
func (c *Controller) tell(p *corev1.Pod, before, now []v1alpha1.EgressRefusal) {
	for _, r := range now {
		if !slices.Contains(before, r) {
			c.events.Eventf(p, nil, corev1.EventTypeWarning, "Egress"+r.Reason, "UseEgress", "%s", r.Message)
		}
	}
}

// tellLost makes an Event of a pod for each Egress that selected it until its namespace, or the one
// of the Egress, said otherwise.
func (c *Controller) tellLost(s scene) {
	for _, r := range s.o.Spec.Egresses {
		if slices.Contains(s.decision.Egresses, r) {
			continue
		}
		if why := s.egresses.NotSelected(membership.Ref{Namespace: r.Namespace, Name: r.Name}, s.is); why != "" {
			c.events.Eventf(s.pod, nil, corev1.EventTypeWarning, "EgressNotSelected", "UseEgress", "%s", why)
		}
	}
}
