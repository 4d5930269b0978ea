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

// EgressClient is a pod that uses Egresses, or would.
type EgressClient struct {
	Namespace string             `json:"namespace"`
	Pod       string             `json:"pod"`
	Egresses  []string           `json:"egresses"` // that it uses, by namespace and name
	Refused   []string           `json:"refused"`  // that it would use and may not; of an annotation that names none its key
	Node      string             `json:"node,omitempty"`
	Addresses []string           `json:"addresses"`           // that it sends from, as its node says
	NodeState string             `json:"nodeState,omitempty"` // what its node says of it: SetUp, Failed or Gone
	Diagnosis diagnose.Diagnosis `json:"diagnosis"`
}

func (c EgressClient) id() string                    { return c.Namespace + "/" + c.Pod }
func (c EgressClient) diagnosis() diagnose.Diagnosis { return c.Diagnosis }

// uses tells whether it is, or would be, a client of an Egress.
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

// clientRows are the pods that use Egresses, or would, by namespace and name.
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

// wanted are the Egresses that are to be there, as pods use them or lack them.
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

// strays are the clients that somebody has to see to and that no Egress lists.
func strays(o objects, egresses []Egress) []EgressClient {
	has := map[string]bool{}
	for _, e := range egresses {
		for _, c := range e.Troubled {
			has[c.id()] = true
		}
	}
	return slices.DeleteFunc(unwell(clientRows(o)), func(c EgressClient) bool {
		return has[c.id()] || c.Diagnosis.Verdict == diagnose.NoGateway // which its Egress says
	})
}

// egressFacts reads what there is of a pod's Egresses. One of its node's network is selected by
// none, and is told if it names some.
func (a *api) egressFacts(ctx context.Context, pod *corev1.Pod, f *diagnose.Facts) {
	if !pod.Spec.HostNetwork || membership.Annotated(pod.Annotations) {
		f.EgressClient = one[v1alpha1.EgressClient](ctx, a, "EgressClients", egressclientsIn(pod.Namespace)+join(pod.Name))
	}
}

// clientGrid is a table of clients.
func clientGrid(clients []EgressClient, ofPod bool) *view.Grid {
	var head []string
	if !ofPod {
		head = []string{"POD"}
	}
	g := view.NewGrid(append(head, "EGRESSES", "REFUSED", "ADDRESSES", "NODE", "ON ITS NODE", "STATE")...)
	for _, c := range clients {
		var row []string
		if !ofPod {
			row = []string{c.id()}
		}
		row = append(row, strings.Join(c.Egresses, " "), strings.Join(c.Refused, " "), strings.Join(c.Addresses, " "), c.Node, c.NodeState, string(c.Diagnosis.Verdict))
		g.Add(row...)
		tone := view.Good
		if !c.Diagnosis.OK {
			tone = view.Bad
		}
		g.Tint(len(row)-1, tone)
	}
	return g
}
