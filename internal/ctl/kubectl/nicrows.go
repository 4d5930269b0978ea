package kubectl

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

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

// around are the objects that NICs depend on, for their diagnosis.
type around struct {
	now       time.Time
	vpcs      map[string]*v1alpha1.VPC
	daemons   map[string]daemon
	pods      map[string]*corev1.Pod // by NAMESPACE/NAME; nil if pods were not read
	operators []corev1.Pod
	unread    []string
}

// known returns v as a fact. If v is nil, unread is why it could not be read, or "" if it does not exist.
func known[T any](v *T, unread string) diagnose.Fact[T] {
	if v == nil && unread != "" {
		return diagnose.Unread[T](unread)
	}
	return diagnose.Fact[T]{Value: v}
}

// whyUnread returns why something could not be read, or "".
func whyUnread(list []string, what string) string {
	i := slices.IndexFunc(list, func(why string) bool { return strings.HasPrefix(why, what) })
	if i < 0 {
		return ""
	}
	return list[i]
}

func (a around) judge(o *v1alpha1.PodNIC) diagnose.Diagnosis {
	f := diagnose.NICFacts{
		Now: a.now, NIC: o, VPC: known(a.vpcs[o.Spec.VPC], whyUnread(a.unread, "VPCs")),
		Pod: diagnose.Unread[corev1.Pod]("pods were not read"), Daemon: diagnose.Unread[diagnose.Daemon]("it has no node"),
	}
	if ref := diagnose.PodOf(o); ref != nil && a.pods != nil {
		f.Pod = known(a.pods[o.Namespace+"/"+ref.Name], whyUnread(a.unread, "pods of namespace "+o.Namespace))
	}
	if node := o.Status.NodeName; node != "" {
		f.Daemon = objects{daemons: a.daemons, unread: a.unread}.daemonFact(node)
	}
	f.Operators = operatorsFact(objects{operator: operatorObjects{pods: a.operators}, unread: a.unread})
	return diagnose.NIC(f)
}

// around returns the objects that NICs depend on.
func (o objects) around() around {
	a := around{now: o.now, vpcs: map[string]*v1alpha1.VPC{}, daemons: o.daemons, pods: o.pods, operators: o.operator.pods, unread: o.unread}
	for i := range o.vpcs {
		a.vpcs[o.vpcs[i].Name] = &o.vpcs[i]
	}
	return a
}

// podsOfNICs reads the pods of all namespaces that have PodNICs, by NAMESPACE/NAME.
func (a *api) podsOfNICs(ctx context.Context, nics []v1alpha1.PodNIC) map[string]*corev1.Pod {
	out, seen := map[string]*corev1.Pod{}, map[string]bool{}
	for _, n := range nics {
		if seen[n.Namespace] {
			continue
		}
		seen[n.Namespace] = true
		list, _ := all[corev1.Pod](ctx, a, "pods of namespace "+n.Namespace, podsPath(n.Namespace), nil)
		for i := range list {
			out[n.Namespace+"/"+list[i].Name] = &list[i]
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
	for _, o := range a.nics(ctx, podnicsIn(pod.Namespace), query{"labelSelector": v1alpha1.LabelPodUID + "=" + string(pod.UID)}) {
		if ref := diagnose.PodOf(&o); ref != nil && ref.UID == string(pod.UID) { // anyone may set the label
			mine = append(mine, o)
		}
	}
	entries, _ := nicrequest.Parse(pod.Annotations[v1alpha1.AnnotationNICs])
	for _, e := range entries {
		if e.NIC == "" {
			continue
		}
		if o := one[v1alpha1.PodNIC](ctx, a, "PodNICs", podnicsIn(pod.Namespace)+join(e.NIC)); o.Value != nil {
			mine = append(mine, *o.Value)
		}
	}
	slices.SortFunc(mine, func(x, y v1alpha1.PodNIC) int {
		return cmp.Or(cmp.Compare(x.Status.Interface, y.Status.Interface), cmp.Compare(x.Name, y.Name))
	})
	f.NICs = listFact(a, "PodNICs", mine)
	f.VPCs = map[string]diagnose.Fact[v1alpha1.VPC]{}
	for _, name := range append(vpcsOf(mine), vpc) {
		if _, read := f.VPCs[name]; !read && name != "" {
			f.VPCs[name] = one[v1alpha1.VPC](ctx, a, "VPCs", vpcsPath+join(name))
		}
	}
}

func vpcsOf(nics []v1alpha1.PodNIC) (names []string) {
	for _, n := range nics {
		names = append(names, n.Spec.VPC)
	}
	return names
}

// nicGrid returns a table of PodNICs. With ofPod it omits the columns that identify the pod.
func nicGrid(nics []NIC, ofPod, wide bool) *view.Grid {
	var head []string
	if !ofPod {
		head = []string{"PODNIC", "POD"}
	}
	head = append(head, "INTERFACE", "VPC", "ADDRESSES", "MAC", "PORT", "NODE", "HOST", "PHASE", "STATE")
	if wide && ofPod {
		head = append(head, "PODNIC")
	}
	g := view.NewGrid(head...)
	for _, n := range nics {
		var row []string
		if !ofPod {
			row = []string{n.Namespace + "/" + n.Name, n.Pod}
		}
		row = append(row, n.Interface, n.VPC, strings.Join(n.Addresses, " "), n.MAC, n.Port, n.Node, n.Host, n.Phase, string(n.Diagnosis.Verdict))
		state := len(row) - 1
		if wide && ofPod {
			row = append(row, n.Name)
		}
		g.Add(row...)
		tone := view.Good
		if !n.Diagnosis.OK {
			tone = view.Bad
		}
		g.Tint(state, tone)
	}
	return g
}
