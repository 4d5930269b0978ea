package diagnose

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

// made is how long the operator may take to create a pod's PodNICs. It usually takes less than a second.
const made = 10 * time.Second

// AsksForNICs returns the VPC in which a pod requests NICs, or "". The error describes an invalid request.
func AsksForNICs(f Facts) (vpc string, err error) {
	p := nicrequest.Pod{Annotations: f.Pod.Annotations, HostNetwork: f.Pod.Spec.HostNetwork}
	_, p.Mirror = f.Pod.Annotations[corev1.MirrorPodAnnotationKey]
	if ns := f.Namespace.Value; ns != nil {
		p.NamespaceVPC = ns.Annotations[v1alpha1.AnnotationVPC]
	}
	vpc, errs := p.VPC()
	return vpc, errs.Err()
}

// besides returns the diagnosis of the pod's NICs or Egresses if they need attention and
// the pod's address, diagnosed by d, does not. Otherwise it returns d.
func besides(f Facts, d *Diagnosis) *Diagnosis {
	if d.OK {
		return cmp.Or(nics(f), egress(f), d)
	}
	return d
}

// nics diagnoses the first NIC of a pod that needs attention.
func nics(f Facts) *Diagnosis {
	if f.NICs.Value == nil {
		return nil
	}
	for i := range *f.NICs.Value {
		o := &(*f.NICs.Value)[i]
		if d := f.OfNIC(o); !d.OK {
			d.Summary = fmt.Sprintf("NIC %s (PodNIC %s): %s", cmp.Or(o.Status.Interface, o.Spec.Interface, "without a name"), o.Name, d.Summary)
			return &d
		}
	}
	vpc, err := AsksForNICs(f)
	switch {
	case len(*f.NICs.Value) > 0, vpc == "" && err == nil:
		return nil
	case err != nil:
		return trouble(NoPodNIC, fmt.Sprintf("The pod requests NICs that it cannot have: %v", err), "Correct its annotations.", seeNoNIC)
	case f.VPCs[vpc].Absent():
		return trouble(VPCNotReady, fmt.Sprintf("The pod requests NICs in VPC %s, which does not exist.", vpc), "Create it, or correct the annotation "+v1alpha1.AnnotationVPC+" of the pod or its namespace.", seeNICs)
	case f.Now.Sub(f.Pod.CreationTimestamp.Time) < made:
		return nil
	}
	remedy := "Check the pod's events, which say what is wrong with its annotations; then whether berth-operator is the leader, and its log."
	if o := f.Operators.Value; o != nil && o.Ready == 0 {
		remedy = fmt.Sprintf("None of %d berth-operator pods is ready: check them and their logs (app.kubernetes.io/name=berth-operator).", o.All)
	}
	return trouble(NoPodNIC, fmt.Sprintf("The pod requests NICs in VPC %s, but berth-operator has created no PodNIC for it.", vpc), remedy, seeNoNIC)
}

// OfNIC diagnoses one NIC of the pod.
func (f Facts) OfNIC(o *v1alpha1.PodNIC) Diagnosis {
	g := NICFacts{Now: f.Now, NIC: o, VPC: f.VPCs[o.Spec.VPC], Pod: Fact[corev1.Pod]{Value: f.Pod}, Node: f.Node, Daemon: f.Daemon, Operators: f.Operators}
	ref := PodOf(o)
	switch {
	case ref == nil && o.DeletionTimestamp == nil && f.Now.Sub(f.Pod.CreationTimestamp.Time) > patience:
		return *trouble(NotBound, "The pod names it, but berth-operator has not assigned it to the pod.", operatorRemedy(g.Operators), seeNICs)
	case ref != nil && ref.UID != string(f.Pod.UID):
		return *trouble(NotBound, fmt.Sprintf("Another pod uses it: %s.", ref.Name), "Nothing, if that pod ends: this pod waits until then. Otherwise name another PodNIC.", seeNICs)
	}
	if o.Status.NodeName != f.Pod.Spec.NodeName { // f has no daemon of that node
		g.Daemon = Unread[Daemon]("it is another node's")
	}
	return NIC(g)
}
