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
	"github.com/berthnet/berth/internal/nicrequest"
)

// NIC is one PodNIC.
type NIC struct {
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"` // of the PodNIC
	VPC       string             `json:"vpc"`
	Pod       string             `json:"pod,omitempty"` // that it is for, or that uses it
	Interface string             `json:"interface,omitempty"`
	Phase     string             `json:"phase"`
	Port      string             `json:"port,omitempty"` // its ID at the provider
	Addresses []string           `json:"addresses"`      // with the prefix length of their subnet
	MAC       string             `json:"mac,omitempty"`
	Node      string             `json:"node,omitempty"`
	Host      string             `json:"host,omitempty"`      // that the port is bound to, as the provider names it
	NodeState string             `json:"nodeState,omitempty"` // the node's report: Plugged, Unplugged or Failed
	Diagnosis diagnose.Diagnosis `json:"diagnosis"`
}

func (n NIC) id() string                    { return n.Namespace + "/" + n.Name }
func (n NIC) diagnosis() diagnose.Diagnosis { return n.Diagnosis }

func nicOf(o *v1alpha1.PodNIC, d diagnose.Diagnosis) NIC {
	st := o.Status
	n := NIC{
		Namespace: o.Namespace, Name: o.Name, VPC: o.Spec.VPC, Interface: cmp.Or(st.Interface, o.Spec.Interface), Phase: cmp.Or(string(st.Phase), string(v1alpha1.PhasePending)),
		Port: cmp.Or(st.PortID, o.Spec.PortID), Addresses: []string{}, MAC: st.MAC, Node: st.NodeName, Host: st.Host, Diagnosis: d,
	}
	if ref := diagnose.PodOf(o); ref != nil {
		n.Pod = ref.Name
	}
	for _, a := range st.Addresses {
		n.Addresses = append(n.Addresses, a.CIDR)
	}
	if st.Node != nil && st.Node.PortID == st.PortID {
		n.NodeState = string(st.Node.State)
	}
	return n
}

// nicRows returns the rows of all NICs, by namespace and name.
func (o objects) nicRows() []NIC {
	out := []NIC{}
	for i := range o.nics {
		out = append(out, nicOf(&o.nics[i], o.judge(&o.nics[i])))
	}
	slices.SortFunc(out, func(a, b NIC) int { return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) })
	return out
}

// judge diagnoses a NIC.
func (o objects) judge(n *v1alpha1.PodNIC) diagnose.Diagnosis {
	f := diagnose.NICFacts{
		Now: o.now, NIC: n, VPC: diagnose.Fact[v1alpha1.VPC]{Unread: o.unread.why("VPCs")}, Operators: operatorsFact(o),
		Pod: diagnose.Unread[corev1.Pod]("pods were not read"), Daemon: diagnose.Unread[diagnose.Daemon]("it has no node"),
	}
	if i := slices.IndexFunc(o.vpcs, func(v v1alpha1.VPC) bool { return v.Name == n.Spec.VPC }); i >= 0 {
		f.VPC = diagnose.Fact[v1alpha1.VPC]{Value: &o.vpcs[i]}
	}
	if ref := diagnose.PodOf(n); ref != nil && o.pods != nil {
		if f.Pod = (diagnose.Fact[corev1.Pod]{Value: o.pods[n.Namespace+"/"+ref.Name]}); f.Pod.Value == nil {
			f.Pod.Unread = o.unread.why("pods of namespace " + n.Namespace)
		}
	}
	if node := n.Status.NodeName; node != "" {
		f.Daemon = o.daemonFact(node)
	}
	return diagnose.NIC(f)
}

// podsOfNICs reads the pods of all namespaces that have PodNICs, by NAMESPACE/NAME.
func (a *api) podsOfNICs(ctx context.Context, nics []v1alpha1.PodNIC) map[string]*corev1.Pod {
	out, seen := map[string]*corev1.Pod{}, map[string]bool{}
	for _, n := range nics {
		if seen[n.Namespace] {
			continue
		}
		seen[n.Namespace] = true
		pods := list[corev1.Pod](ctx, a, "pods of namespace "+n.Namespace, podsPath(n.Namespace), nil)
		for i := range pods {
			out[n.Namespace+"/"+pods[i].Name] = &pods[i]
		}
	}
	return out
}

// nicFacts reads a pod's PodNICs and their VPCs.
func (a *api) nicFacts(ctx context.Context, pod *corev1.Pod, f *diagnose.Facts) {
	f.Namespace = a.namespace(ctx, pod.Namespace)
	vpc, _ := diagnose.AsksForNICs(*f)
	_, asks := pod.Annotations[v1alpha1.AnnotationNICs]
	if vpc == "" && !asks && f.Namespace.Unread == "" {
		return
	}
	var mine []v1alpha1.PodNIC
	for _, o := range a.nics(ctx, in(pod.Namespace, "podnics"), query{"labelSelector": v1alpha1.LabelPodUID + "=" + string(pod.UID)}) {
		if ref := diagnose.PodOf(&o); ref != nil && ref.UID == string(pod.UID) { // anyone may set the label
			mine = append(mine, o)
		}
	}
	entries, _ := nicrequest.Parse(pod.Annotations[v1alpha1.AnnotationNICs])
	for _, e := range entries {
		if e.NIC == "" {
			continue
		}
		if o := one[v1alpha1.PodNIC](ctx, a, "PodNICs", in(pod.Namespace, "podnics")+join(e.NIC)); o.Value != nil {
			mine = append(mine, *o.Value)
		}
	}
	slices.SortFunc(mine, func(x, y v1alpha1.PodNIC) int {
		return cmp.Or(cmp.Compare(x.Status.Interface, y.Status.Interface), cmp.Compare(x.Name, y.Name))
	})
	f.NICs = listFact(a, "PodNICs", mine)
	f.VPCs = map[string]diagnose.Fact[v1alpha1.VPC]{}
	read := func(name string) {
		if _, has := f.VPCs[name]; !has && name != "" {
			f.VPCs[name] = one[v1alpha1.VPC](ctx, a, "VPCs", vpcsPath+join(name))
		}
	}
	read(vpc)
	for _, n := range mine {
		read(n.Spec.VPC)
	}
}

// nicGrid returns a table of PodNICs. With ofPod it omits the columns that identify the pod.
func nicGrid(nics []NIC, ofPod, wide bool) *view.Grid {
	head := []string{"INTERFACE", "VPC", "ADDRESSES", "MAC", "PORT", "NODE", "HOST", "PHASE", "STATE"}
	if !ofPod {
		head = append([]string{"PODNIC", "POD"}, head...)
	} else if wide {
		head = append(head, "PODNIC")
	}
	g := view.NewGrid(head...)
	for _, n := range nics {
		row := []any{n.Interface, n.VPC, strings.Join(n.Addresses, " "), n.MAC, n.Port, n.Node, n.Host, n.Phase, n.Diagnosis.Verdict}
		if !ofPod {
			row = append([]any{n.id(), n.Pod}, row...)
		} else if wide {
			row = append(row, n.Name)
		}
		g.Add(row...)
		g.Tint(slices.Index(head, "STATE"), toneOf(n.Diagnosis.OK))
	}
	return g
}
