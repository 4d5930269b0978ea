package kubectl

import (
	"cmp"
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/membership"
)

// EgressClient is a pod that uses Egresses, or requests Egresses that it may not use.
type EgressClient struct {
	Namespace string             `json:"namespace"`
	Pod       string             `json:"pod"`
	Egresses  []string           `json:"egresses"` // in use, as NAMESPACE/NAME
	Refused   []string           `json:"refused"`  // requested but not allowed, as NAMESPACE/NAME, or the key of an annotation that names none
	Node      string             `json:"node,omitempty"`
	Addresses []string           `json:"addresses"`           // source addresses, as its node reports them
	NodeState string             `json:"nodeState,omitempty"` // its node's report: SetUp, Failed or Gone
	Diagnosis diagnose.Diagnosis `json:"diagnosis"`
}

func (c EgressClient) id() string                    { return c.Namespace + "/" + c.Pod }
func (c EgressClient) diagnosis() diagnose.Diagnosis { return c.Diagnosis }

// uses reports whether it uses or requests an Egress.
func (c EgressClient) uses() bool { return len(c.Egresses)+len(c.Refused) > 0 }

func clientOf(o *v1alpha1.EgressClient, d diagnose.Diagnosis) EgressClient {
	c := EgressClient{Namespace: o.Namespace, Pod: o.Name, Egresses: []string{}, Refused: []string{}, Node: o.Spec.NodeName, Addresses: []string{}, Diagnosis: d}
	for _, r := range o.Spec.Egresses {
		c.Egresses = append(c.Egresses, r.Namespace+"/"+r.Name)
	}
	for _, r := range o.Spec.Refused {
		id := r.Namespace + "/" + r.Name
		if r.Name == "" {
			id = v1alpha1.AnnotationEgressPrefix + r.Namespace
		}
		c.Refused = append(c.Refused, id)
	}
	if n := o.Status.Node; n != nil {
		c.NodeState, c.Addresses = string(n.State), append(c.Addresses, n.Addresses...)
	}
	return c
}

// clientRows returns the pods that use or request Egresses, by namespace and name.
func clientRows(o objects) []EgressClient {
	out := []EgressClient{}
	operators := operatorsFact(o)
	for i := range o.clients {
		c := &o.clients[i]
		f := diagnose.ClientFacts{Now: o.now, Client: c, Daemon: o.daemonFact(c.Spec.NodeName), Operators: operators}
		if row := clientOf(c, diagnose.EgressClient(f)); row.uses() {
			out = append(out, row)
		}
	}
	slices.SortFunc(out, func(a, b EgressClient) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	return out
}

// wanted returns the Egresses that pods use or request, whether they exist or not.
func wanted(clients []v1alpha1.EgressClient) (ids []string) {
	for _, c := range clients {
		for _, r := range c.Spec.Egresses {
			ids = append(ids, r.Namespace+"/"+r.Name)
		}
		for _, r := range c.Spec.Refused {
			if r.Reason == v1alpha1.EgressNotFound && r.Name != "" {
				ids = append(ids, r.Namespace+"/"+r.Name)
			}
		}
	}
	return ids
}

// strays returns the clients that need attention and that no row of an Egress lists.
func strays(o objects, egresses []Egress) []EgressClient {
	has := map[string]bool{}
	for _, e := range egresses {
		for _, c := range e.Troubled {
			has[c.id()] = true
		}
	}
	return slices.DeleteFunc(unwell(clientRows(o)), func(c EgressClient) bool {
		return has[c.id()] || c.Diagnosis.Verdict == diagnose.NoGateway // reported by the Egress
	})
}

// egressFacts reads the EgressClient of a pod. Selectors never match a host-network pod,
// so it has one only if its annotations name Egresses.
func (a *api) egressFacts(ctx context.Context, pod *corev1.Pod, f *diagnose.Facts) {
	if !pod.Spec.HostNetwork || membership.Annotated(pod.Annotations) {
		f.EgressClient = one[v1alpha1.EgressClient](ctx, a, "EgressClients", in(pod.Namespace, "egressclients")+join(pod.Name))
	}
}

// clientGrid returns a table of clients. With ofPod it omits the pod.
func clientGrid(clients []EgressClient, ofPod bool) *view.Grid {
	head := []string{"EGRESSES", "REFUSED", "ADDRESSES", "NODE", "ON ITS NODE", "STATE"}
	if !ofPod {
		head = append([]string{"POD"}, head...)
	}
	g := view.NewGrid(head...)
	for _, c := range clients {
		row := []any{strings.Join(c.Egresses, " "), strings.Join(c.Refused, " "), strings.Join(c.Addresses, " "), c.Node, c.NodeState, c.Diagnosis.Verdict}
		if !ofPod {
			row = append([]any{c.id()}, row...)
		}
		g.Add(row...)
		g.Tint(len(row)-1, toneOf(c.Diagnosis.OK))
	}
	return g
}
