package diagnose

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
)

// EgressClientOf returns the pod's own EgressClient, not that of an earlier pod with the
// same name, or nil.
func EgressClientOf(f Facts) *v1alpha1.EgressClient {
	// The operator identifies a static pod by the UID that the kubelet gave it, which its mirror pod carries.
	uid := cmp.Or(f.Pod.Annotations[corev1.MirrorPodAnnotationKey], string(f.Pod.UID))
	if o := f.EgressClient.Value; o != nil && o.Spec.PodUID == uid {
		return o
	}
	return nil
}

// OfEgress diagnoses the Egresses that the pod uses or requests. It returns nil if there are none.
func (f Facts) OfEgress() *Diagnosis {
	o := EgressClientOf(f)
	if o == nil {
		return noEgressClient(f)
	}
	d := EgressClient(ClientFacts{Now: f.Now, Client: o, Daemon: f.Daemon, Operators: f.Operators})
	return &d
}

// egress diagnoses a pod that has an address but does not reach its Egresses.
func egress(f Facts) *Diagnosis {
	d := f.OfEgress()
	if d == nil || d.OK {
		return nil
	}
	d.Summary = "Egress: " + d.Summary
	return d
}

// egressNamed diagnoses a pod that does not start because its annotation names an Egress
// that it may not use. Other problems of an Egress are reported by the ADD.
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

// noEgressClient diagnoses a pod that names Egresses but has no EgressClient. The operator
// creates one once the pod has a node.
func noEgressClient(f Facts) *Diagnosis {
	if f.Pod.Spec.NodeName == "" || f.EgressClient.Unread != "" || f.Pod.DeletionTimestamp != nil || !membership.Annotated(f.Pod.Annotations) || f.Now.Sub(f.Pod.CreationTimestamp.Time) < made {
		return nil
	}
	return trouble(NoEgressClient, "The pod names Egresses, but berth-operator has created no EgressClient for it.", operatorRemedy(f.Operators)+" It must run with the feature egress.", seeNoEgress)
}
