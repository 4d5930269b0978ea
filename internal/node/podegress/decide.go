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

// decision is what a pod is to have, that its ADD has to wait, or that it cannot be.
type decision struct {
	egress *attachment.Egress // nil: nothing
	wait   *source.Exhausted  // what is waited for
	err    *source.Exhausted
}

// decide tells what a pod is to have when it comes. The operator's word, the pod's
// EgressClient, is waited for where the pod names Egresses, and where one selects pods of
// its namespace. Other pods have nothing, without a look at the API server; one of which the
// operator says something all the same has that.
func (o *observed) decide(req source.Request) decision {
	if req.Key.IfName != firstInterface {
		return decision{}
	}
	named, errs := membership.Named(req.Wish.Annotations)
	if err := errs.Err(); err != nil {
		return decision{err: &source.Exhausted{Reason: "egress-annotation", Message: err.Error(), Err: err}}
	}
	m, there := o.member(req.Pod)
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
	e.Forward = req.Wish.Annotations[v1alpha1.AnnotationEgressGateway] == "true"
	if len(e.Egresses) == 0 && !e.Forward {
		return decision{}
	}
	return decision{egress: &e}
}

// mayBeClient is why it has to be waited whether the pod is a client that names no Egress;
// nil: it need not be.
func (o *observed) mayBeClient(pod attachment.Pod) *source.Exhausted {
	if !o.sync.Listed(watched...) {
		if o.late {
			return nil // it becomes one while it runs
		}
		return o.orUnreachable(exhausted("starting", "the API server has not told yet which Egresses there are, one of which may select the pod"))
	}
	n, known := o.egresses.namespaces[pod.Namespace]
	if !known {
		n.Name = pod.Namespace
	}
	if may := o.egresses.selectors.Of(n); len(may) > 0 {
		return o.orUnreachable(noClient(pod, "Egress "+may[0].String()+" selects pods of the namespace"))
	}
	if !known && o.egresses.selectors.ByLabels() {
		return o.orUnreachable(exhausted("starting", "the API server has not told of namespace %s yet, whose pods an Egress may select", shown(pod.Namespace, 80)))
	}
	return nil
}

// namedBy tells whether the operator said that a pod may use an Egress that it names.
func (o *observed) namedBy(pod attachment.Pod, m member, there bool, name membership.Ref) decision {
	if i := slices.IndexFunc(m.refused, func(r v1alpha1.EgressRefusal) bool { return r.Namespace == name.Namespace && r.Name == name.Name }); i >= 0 {
		return decision{err: refused(m.refused[i])}
	}
	if there && slices.ContainsFunc(m.uses, func(u use) bool { return u.name == types.NamespacedName(name) }) {
		return decision{}
	}
	if !o.sync.Listed(egressClients) {
		return decision{wait: o.orUnreachable(exhausted("starting", "Egress %s: the API server has not told yet which EgressClients this node has", name))}
	}
	return decision{wait: o.orUnreachable(noClient(pod, "the pod names Egress "+name.String()))}
}

// refused says why a pod that names an Egress may not use it.
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

// noClient says that the operator has not said yet what a pod is a client of.
func noClient(pod attachment.Pod, as string) *source.Exhausted {
	return exhausted("no-egressclient", "%s, and berth-operator has not said yet which ones pod %s/%s (%s) is to use, by an EgressClient of the pod's name",
		as, shown(pod.Namespace, 80), shown(pod.Name, 260), shown(pod.UID, 64))
}

// notUsable says what is wrong with an Egress that a pod is to use.
func (e *egressSet) notUsable(u use) *source.Exhausted {
	if t, ok := e.byName[u.name]; ok && t.uid == u.uid && t.err != nil {
		return &source.Exhausted{Reason: "egress-invalid", Message: t.err.Error(), Err: t.err}
	}
	return exhausted("egress-unknown", "Egress %s (%s), of which the pod is a client: the API server has not told of it yet, or it is gone", u.name, shown(string(u.uid), 64))
}

// orUnreachable returns why an ADD waits: for the API server while that cannot be reached.
func (o *observed) orUnreachable(why *source.Exhausted) *source.Exhausted {
	return waiters.Unreachable(o.sync.Err(), why)
}

func exhausted(reason, format string, args ...any) *source.Exhausted {
	return &source.Exhausted{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
