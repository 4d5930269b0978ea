package diagnose

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
)

// EgressClientOf is the pod's own EgressClient, and not that of an earlier pod of the name;
// nil: none is known.
func EgressClientOf(f Facts) *v1alpha1.EgressClient {
	// The operator tells a static pod by its kubelet's UID, which its mirror has.
	uid := cmp.Or(f.Pod.Annotations[corev1.MirrorPodAnnotationKey], string(f.Pod.UID))
	if o := f.EgressClient.Value; o != nil && o.Spec.PodUID == uid {
		return o
	}
	return nil
}

// OfEgress finds what there is to say about the Egresses that the pod uses, or would; nil: it
// uses none.
func (f Facts) OfEgress() *Diagnosis {
	o := EgressClientOf(f)
	if o == nil {
		return noEgressClient(f)
	}
	d := EgressClient(ClientFacts{Now: f.Now, Client: o, Daemon: f.Daemon, Operators: f.Operators})
	return &d
}

// egress is about a pod with an address that does not reach its Egresses.
func egress(f Facts) *Diagnosis {
	d := f.OfEgress()
	if d == nil || d.OK {
		return nil
	}
	d.Summary = "Egress: " + d.Summary
	return d
}

// egressNamed is about a pod that does not start, as its annotation names an Egress that it
// may not use: others are set up within its ADD, and their trouble is the ADD's.
func egressNamed(f Facts) *Diagnosis {
	o := EgressClientOf(f)
	if o == nil {
		return noEgressClient(f)
	}
	for _, r := range o.Spec.Refused {
		if r.Named {
			return trouble(EgressRefused, fmt.Sprintf("The pod names an Egress that it may not use (%s): %s", r.Reason, r.Message), EgressRemedy(r.Reason), seeEgressClients)
		}
	}
	return nil
}

// noEgressClient is about a pod that names Egresses, of which the operator knows nothing. It
// makes none before the pod has a node.
func noEgressClient(f Facts) *Diagnosis {
	if f.Pod.Spec.NodeName == "" || f.EgressClient.Unread != "" || f.Pod.DeletionTimestamp != nil || !membership.Annotated(f.Pod.Annotations) || f.Now.Sub(f.Pod.CreationTimestamp.Time) < made {
		return nil
	}
	return trouble(NoEgressClient, "The pod names Egresses, and the operator has made no EgressClient for it.", operatorRemedy(f.Operators)+" It must run with the feature egress.", seeNoEgress)
}
