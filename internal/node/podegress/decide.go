package podegress

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/waiters"
	"github.com/berthnet/berth/internal/source"
)

// decision is a pod's egress, or why its ADD has to wait or fails.
type decision struct {
	egress *attachment.Egress // nil: no egress
	wait   *source.Exhausted  // missing information
	err    *source.Exhausted
}

// decide decides a pod's egress when it starts. A pod that names Egresses, or in whose namespace an Egress selects
// pods, waits for its EgressClient. Other pods do not depend on the API server, and have no egress unless an
// EgressClient exists nevertheless.
func (o *observed) decide(req attachment.Request) decision {
	if req.Key.IfName != firstInterface {
		return decision{}
	}
	named, errs := membership.Named(req.Options.Annotations)
	if err := errs.Err(); err != nil {
		return decision{err: &source.Exhausted{Reason: "egress-annotation", Message: err.Error(), Err: err}}
	}
	m, there := o.egressClient(req.Pod)
	ofCoil, wait := namedForCoil(o, req.Options.Annotations)
	if wait != nil {
		return decision{wait: wait}
	}
	named = append(named, ofCoil...)
	if len(named) == 0 && !there {
		if why := o.mayBeClient(req.Pod); why != nil {
			return decision{wait: why}
		}
	}
	for _, name := range named {
		if v := o.namedBy(req.Pod, m, there, name); v.wait != nil || v.err != nil {
			return v
		}
	}
	for _, u := range o.uses(m) {
		if _, ok := o.egresses.find(u); !ok {
			return decision{wait: o.orUnreachable(o.egresses.notUsable(u))}
		}
	}
	e := plan(o.inputs(m, nil))
	e.Forward = req.Options.Annotations[v1alpha1.AnnotationEgressGateway] == "true"
	if len(e.Egresses) == 0 && !e.Forward {
		return decision{}
	}
	return decision{egress: &e}
}

// namedForCoil returns the Egresses that a pod names with Coil's annotation and that have such clients. A pod with the
// annotation waits until the Egresses are known.
func namedForCoil(o *observed, annotations map[string]string) (named []membership.Ref, wait *source.Exhausted) {
	all := membership.NamedForCoil(annotations)
	if len(all) > 0 && !o.sync.Listed(egresses) {
		return nil, o.orUnreachable(waiters.Missing("starting", "Egress %s, which the pod names for Coil: the API server has not listed the Egresses yet", all[0]))
	}
	for _, name := range all {
		if o.egresses.byName[types.NamespacedName(name)].coilClients {
			named = append(named, name)
		}
	}
	return named, nil
}

// mayBeClient returns why a pod that names no Egress has to wait, because one may select it; nil if it need not wait.
func (o *observed) mayBeClient(pod attachment.Pod) *source.Exhausted {
	if !o.sync.Listed(watched...) {
		if o.late {
			return nil // it may become a client after it has started
		}
		return o.orUnreachable(waiters.Missing("starting", "the API server has not listed the Egresses yet, one of which may select the pod"))
	}
	n, known := o.egresses.namespaces[pod.Namespace]
	if !known {
		n.Name = pod.Namespace
	}
	if may := o.egresses.selectors.Of(n); len(may) > 0 {
		return o.orUnreachable(noClient(pod, "Egress "+may[0].String()+" selects pods of the namespace"))
	}
	if !known && o.egresses.selectors.ByLabels() {
		return o.orUnreachable(waiters.Missing("starting", "the API server has not listed namespace %s yet, whose pods an Egress may select", shown(pod.Namespace, 80)))
	}
	return nil
}

// namedBy decides whether a pod may use an Egress that it names. The operator determines that.
func (o *observed) namedBy(pod attachment.Pod, m egressClient, there bool, name membership.Ref) decision {
	if i := slices.IndexFunc(m.refused, func(r v1alpha1.EgressRefusal) bool { return r.Namespace == name.Namespace && r.Name == name.Name }); i >= 0 {
		return decision{err: refused(m.refused[i])}
	}
	if there && slices.ContainsFunc(m.uses, func(u use) bool { return u.name == types.NamespacedName(name) }) {
		return decision{}
	}
	if !o.sync.Listed(egressClients) {
		return decision{wait: o.orUnreachable(waiters.Missing("starting", "Egress %s: the API server has not listed this node's EgressClients yet", name))}
	}
	return decision{wait: o.orUnreachable(noClient(pod, "the pod names Egress "+name.String()))}
}

// refused describes why a pod may not use an Egress that it names.
func refused(r v1alpha1.EgressRefusal) *source.Exhausted {
	reason := "egress-refused"
	switch r.Reason {
	case v1alpha1.EgressNotFound:
		reason = "egress-not-found"
	case v1alpha1.EgressNotAllowed:
		reason = "egress-not-allowed"
	case v1alpha1.EgressOverlaps:
		reason = "egress-overlaps"
	case v1alpha1.EgressInvalid:
		reason = "egress-annotation"
	}
	return &source.Exhausted{Reason: reason, Message: fmt.Sprintf("Egress %s/%s: %s: %s", shown(r.Namespace, 63), shown(r.Name, 80), shown(r.Reason, 64), shown(r.Message, 400))}
}

// noClient describes that a pod waits for its EgressClient.
func noClient(pod attachment.Pod, as string) *source.Exhausted {
	return waiters.Missing("no-egressclient", "%s, and berth-operator has not created an EgressClient for pod %s/%s (%s) yet, which lists the Egresses that the pod may use",
		as, shown(pod.Namespace, 80), shown(pod.Name, 260), shown(pod.UID, 64))
}

// notUsable describes why an Egress of a pod cannot be used.
func (e *egressSet) notUsable(u use) *source.Exhausted {
	if t, ok := e.byName[u.name]; ok && t.uid == u.uid && t.err != nil {
		return &source.Exhausted{Reason: "egress-invalid", Message: t.err.Error(), Err: t.err}
	}
	return waiters.Missing("egress-unknown", "Egress %s (%s), of which the pod is a client: the API server has not listed it yet, or it is gone", u.name, shown(string(u.uid), 64))
}

// orUnreachable replaces the reason for a wait by the API server's failure while it is unreachable.
func (o *observed) orUnreachable(why *source.Exhausted) *source.Exhausted {
	return waiters.Unreachable(o.sync.Err(), why)
}
