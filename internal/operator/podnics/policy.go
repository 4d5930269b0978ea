package podnics

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// aboutPolicies is in the place of a NIC's name in what was told of a pod: no NIC has it.
const aboutPolicies = "/policies"

// tellOfPolicies makes an Event of a pod that waits and that several policies select, or that
// came before those of its namespace were in force.
func (c *Controller) tellOfPolicies(ctx context.Context, p *corev1.Pod) {
	if p.Status.Phase != corev1.PodPending {
		return
	}
	since, some := c.o.PoliciesSince(ctx, p.Namespace)
	if reason, text := policyTrouble(p, since, some); reason != "" {
		c.warn(p, aboutPolicies, reason, errors.New(text))
	}
}

// policyTrouble is what is wrong with a pod in a namespace with policies since some time, or
// without any; empty: nothing is.
func policyTrouble(p *corev1.Pod, since time.Time, some bool) (reason, text string) {
	if over := p.Annotations[v1alpha1.AnnotationNICPolicyOverlap]; over != "" {
		return "NICPolicyOverlap", fmt.Sprintf("several policies select the pod: the oldest counts, %s; not counted: %s",
			strings.ReplaceAll(p.Annotations[v1alpha1.AnnotationNICPolicy], ",", ", "), strings.ReplaceAll(over, ",", ", "))
	}
	_, judged := p.Annotations[v1alpha1.AnnotationNICPolicy]
	// Times of objects are whole seconds.
	if !some || judged || !asking(p, "").MayBeSelected() || p.CreationTimestamp.Time.Before(since.Truncate(time.Second)) {
		return "", ""
	}
	return "NICPolicyMissed", "the pod came before the NICPolicies of its namespace were in force: if one is to count for it, make the pod anew"
}
