package clients

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
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
