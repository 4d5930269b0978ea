package diagnose

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
)

// ClientFacts are the inputs for the diagnosis of an EgressClient.
type ClientFacts struct {
	Now       time.Time
	Client    *v1alpha1.EgressClient
	Daemon    Fact[Daemon] // of its node
	Operators Fact[Operators]
}

// EgressClient diagnoses a pod that uses Egresses, or requests Egresses that it may not use.
func EgressClient(f ClientFacts) Diagnosis {
	ready := meta.FindStatusCondition(f.Client.Status.Conditions, v1alpha1.ConditionReady)
	spec := f.Client.Spec
	switch {
	case f.Client.DeletionTimestamp != nil:
		return *fine(Ending, "Its pod is gone, or no longer uses an Egress.")
	case len(spec.Egresses)+len(spec.Refused) == 0:
		return *fine(Unused, "The pod uses no Egress.")
	case ready == nil:
		return *notLooked(f)
	case ready.Status == metav1.ConditionTrue:
		return *fine(Works, "Its tunnels are set up, and gateways serve it.")
	}
	return *kept(f, *ready)
}

// notLooked diagnoses a client whose status no operator has set.
func notLooked(f ClientFacts) *Diagnosis {
	since := f.Client.CreationTimestamp.Time
	if f.Now.Sub(since) < made {
		return fine(Starting, "It was just created.")
	}
	return trouble(NotLookedAt, fmt.Sprintf("berth-operator has not reported on it for %s.", f.Now.Sub(since).Round(time.Second)), operatorRemedy(f.Operators), seeNoEgress)
}

// kept diagnoses a client that is not ready.
func kept(f ClientFacts, c metav1.Condition) *Diagnosis {
	remedy := EgressRemedy(c.Reason)
	switch c.Reason {
	case v1alpha1.EgressNotFound, v1alpha1.EgressNotAllowed, v1alpha1.EgressOverlaps, v1alpha1.EgressInvalid:
		return trouble(EgressRefused, fmt.Sprintf("It may not use an Egress (%s): %s", c.Reason, c.Message), remedy, seeEgressClients)
	case "SetUpFailed":
		return trouble(NotSetUp, "Its tunnels are not set up: "+c.Message, remedy, seeNoEgress)
	case "WaitingForNode":
		return cmp.Or(withoutDaemon(NotSetUp, "Its tunnels are not set up", f.Daemon, f.Client.Spec.NodeName), slow(f, c))
	case "WaitingForMigration":
		return fine(Works, c.Message)
	case "NoGateway":
		return trouble(NoGateway, c.Message, remedy, seeEgresses)
	}
	return trouble(NotServed, fmt.Sprintf("Gateways do not serve it (%s): %s", c.Reason, c.Message), remedy, seeEgressClients)
}

// slow diagnoses a client whose node has not set it up. The condition's transition time is
// when the client ceased to be ready, possibly for another reason.
func slow(f ClientFacts, c metav1.Condition) *Diagnosis {
	waited := f.Now.Sub(c.LastTransitionTime.Time)
	if waited < patience {
		return fine(Starting, c.Message)
	}
	return trouble(NotSetUp, fmt.Sprintf("%s. It has not been ready for %s.", c.Message, waited.Round(time.Second)), EgressRemedy(c.Reason), seeNoEgress)
}

// EgressRemedy returns what to do about the reason of a condition of an Egress or EgressClient.
func EgressRemedy(reason string) string {
	return cmp.Or(egressRemedies[reason], "Fix what the message names; Berth retries.")
}

// egressRemedies are the remedies by reason, as in docs/troubleshoot/egress.md, "Troubleshoot Egresses".
var egressRemedies = map[string]string{
	"GatewaysReady":       "Nothing.",
	"Applied":             "Nothing.",
	"NoReplicas":          "Set spec.replicas: clients do not reach its destinations until then.",
	"NoGateways":          "Check the pods of its Deployment: their events and, if they run, their logs and /readyz.",
	"FamilyMissing":       "Remove the destination that the message names, or run gateways where pods have addresses of its family.",
	"ForeignPods":         "Delete the pod that the message names and the workload that creates it, or set tunnelTo to Gateways.",
	"InvalidTemplate":     "Correct the field of spec.template that the message names.",
	"NameTaken":           "Delete or rename the object that the message names, or name the Egress otherwise.",
	"PodsRefused":         "Move the Egress to a namespace whose Pod Security admits NET_ADMIN, or fix what else the message names.",
	"NotFound":            "Create the Egress that the message names, or correct the pod's annotation.",
	"NotAllowed":          "Allow the pod in allowedNamespaces or clients of the Egress, or remove the Egress from the annotation.",
	"Overlaps":            "Let the pod use only one of the two Egresses, or change their destinations.",
	"Invalid":             "Correct the pod's annotation, as the message says.",
	"WaitingForNode":      "Check berthd on the node: its log, and whether it runs with --egress.",
	"WaitingForMigration": "Continue the migration (kubectl berth migrate coil apply).",
	"SetUpFailed":         "Fix what the message of the node names; berthd retries.",
	"AddressConflict":     "Find out which of the two pods has the address, and which network assigned it twice.",
	"NoGateway":           "Check the Egress's condition Available (kubectl berth egresses).",
	"Refused":             "Check the object or the pod that the message names.",
	"Waiting":             "Check the EgressClient that the message names.",
	"InvalidSelector":     "Correct the selector that the message names: it selects nothing.",
	"NoConsent":           "Ask a cluster administrator to annotate the namespaces or label the Egress's namespace, or select fewer namespaces.",
	"TooManySelecting":    "Delete other Egresses of the namespace that select pods, or name this one in pods' annotations.",
}

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
