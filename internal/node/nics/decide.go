package nics

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/waiters"
	"github.com/berthnet/berth/internal/source"
)

// decision is whether a pod's NICs are all here: they are, or the pod has to wait, or it cannot start.
type decision struct {
	nics []attachment.NIC
	wait *source.Exhausted // what is missing
	err  error
}

// decide decides whether all NICs of a pod may be plugged now.
func (b *observed) decide(r rules, req attachment.Request) decision {
	vpc, known := b.namespaces[req.Pod.Namespace]
	w, err := r.of(req, vpc, known)
	switch {
	case err != nil:
		return decision{err: err}
	case w.waiting != "":
		return decision{wait: b.orUnreachable(waiters.Missing("starting", "%s", w.waiting))}
	}
	there := b.of(req.Pod)
	if !w.any && (req.Options.AnnotationsKnown || req.Key.IfName != firstInterface || len(there) == 0) {
		return decision{}
	}
	if err := checkTogether(there); err != nil {
		return decision{err: err}
	}
	var nics []attachment.NIC
	for _, name := range order(w.names, there) {
		i := slices.IndexFunc(there, func(o object) bool { return o.ifName == name })
		if i < 0 {
			return decision{wait: b.missing(req, w.vpc, name)}
		}
		o := there[i]
		switch {
		case !o.bound():
			return decision{wait: b.orUnreachable(unbound(o))}
		case o.err != nil:
			return decision{err: o.err}
		}
		nics = append(nics, o.nic)
	}
	return decision{nics: withDefaultRoute(nics, req.Key.IfName)}
}

// order returns the names that a pod asks for, in its order, and then those of its other PodNICs: the annotation as
// the runtime passes it may be older than the PodNICs.
func order(asked []string, there []object) []string {
	names := slices.Clone(asked)
	for _, o := range there {
		if !slices.Contains(names, o.ifName) && !o.givenUp {
			names = append(names, o.ifName)
		}
	}
	return names
}

// checkTogether returns an error if PodNICs of one pod exclude each other.
func checkTogether(there []object) error {
	route := ""
	for i, o := range there {
		for _, other := range there[:i] {
			switch {
			case o.ifName == other.ifName:
				return fmt.Errorf("PodNICs %s and %s: status.interface is %q in both: %w", other.name, o.name, shown(o.ifName, 20), plug.ErrInvalid)
			case o.port != "" && o.port == other.port:
				return fmt.Errorf("PodNICs %s and %s: status.portID is %q in both: %w", other.name, o.name, shown(o.port, 80), plug.ErrInvalid)
			}
		}
		if o.nic.DefaultRoute {
			if route != "" {
				return fmt.Errorf("PodNICs %s and %s: status.defaultRoute is true in both: %w", route, o.name, plug.ErrInvalid)
			}
			route = o.name.String()
		}
	}
	return nil
}

// withDefaultRoute gives the first interface the default route if it is a NIC and no NIC has the route.
func withDefaultRoute(nics []attachment.NIC, first string) []attachment.NIC {
	if slices.ContainsFunc(nics, func(n attachment.NIC) bool { return n.DefaultRoute }) {
		return nics
	}
	for i := range nics {
		nics[i].DefaultRoute = nics[i].IfName == first
	}
	return nics
}

// missing says that a NIC has no PodNIC here. Why the operator cannot create one, for example because the VPC does not
// exist, only the pod's Events say: a node may read PodNICs, but no VPCs.
func (b *observed) missing(req attachment.Request, vpc, name string) *source.Exhausted {
	if !b.sync.Listed(podNICs) {
		return b.orUnreachable(waiters.Missing("starting", "NIC %s: the API server has not listed this node's PodNICs yet", name))
	}
	namespace, pod := shown(req.Pod.Namespace, 80), shown(req.Pod.Name, 260)
	if vpc != "" {
		name += " in VPC " + shown(vpc, 260)
	}
	return b.orUnreachable(waiters.Missing("no-podnic", "NIC %s: the operator has not created a PodNIC with a port on this node for pod %s/%s (%s) yet; if it cannot, for example because the VPC does not exist, the pod's Events say so: kubectl -n %s describe pod %s",
		name, namespace, pod, shown(req.Pod.UID, 64), namespace, pod))
}

// unbound says why a PodNIC's port may not be plugged yet.
func unbound(o object) *source.Exhausted {
	var b strings.Builder
	fmt.Fprintf(&b, "NIC %s: ", o.ifName)
	if o.port == "" {
		b.WriteString("PodNIC " + o.name.String() + " has no port yet")
	} else {
		fmt.Fprintf(&b, "port %s of PodNIC %s", shown(o.port, 80), o.name)
		if o.host == "" {
			b.WriteString(" is bound to no host")
		} else {
			b.WriteString(" is at host " + shown(o.host, 80))
		}
	}
	fmt.Fprintf(&b, ", phase %s", orNone(shown(string(o.phase), 20)))
	reason := "not-bound"
	for i, c := range o.wrong {
		if c.reason != "" && (i == 0 || c.kind == v1alpha1.ConditionPortReady) {
			reason = source.ReasonOf(word(c.reason))
		}
		fmt.Fprintf(&b, "; %s: %s: %s", c.kind, c.reason, c.message)
	}
	return &source.Exhausted{Reason: reason, Message: b.String()}
}

// word returns a condition's reason as a label of a metric: letters and digits, 40 bytes at most.
func word(reason string) string {
	reason = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, reason)
	return reason[:min(len(reason), 40)]
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// orUnreachable returns why an ADD waits: for the API server while PodNICs cannot be watched.
func (b *observed) orUnreachable(why *source.Exhausted) *source.Exhausted {
	return waiters.Unreachable(b.sync.Err(podNICs), why)
}
