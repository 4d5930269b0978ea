package podnics

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
)

// Reasons of conditions, in addition to those of failed calls (vpcport.PolicyOf).
const (
	reasonReady       = "Ready"
	reasonBound       = "Bound"
	reasonVPC         = "VPCNotReady"
	reasonRefused     = "Refused"
	reasonLost        = "PortDeleted"
	reasonNoPod       = "NoPod"
	reasonUnscheduled = "Unscheduled"
	reasonNoHost      = "NoHost"
	reasonNodeLimit   = "NodeLimit"
	reasonLimit       = "NamespaceLimit"
	reasonNotAllowed  = "NotAllowed"
	reasonPlugged     = "StillPlugged"
	reasonBinding     = "BindingFailed"
	reasonUnplugged   = "Unplugged"
	reasonMoved       = "AddressChanged"
)

// maxMessage is the maximum length of a condition's message in bytes.
const maxMessage = 1024

// statusOf returns the status of a PodNIC while step is its next step.
func statusOf(s *observation, n nic, step nicplan.Step, now metav1.Time) v1alpha1.PodNICStatus {
	st := *s.o.Status.DeepCopy()
	assign(&st, s)
	p := n.observed.Port
	if p != nil && (!s.desired.Has(p) || p.NetworkID != s.desired.Port.NetworkID) {
		p = nil // not the NIC's port yet
	}
	if p == nil && unseen(s, n) {
		setPlugged(&st, s, now)
		return st
	}
	var lie error
	if p != nil && s.closed == nil {
		lie = s.describe(&st, p)
		st.Made = s.desired.Given == ""
	}
	here := s.next == assigned(st) && p != nil && lie == nil && s.host.name != "" && p.Host == s.host.name && p.Binding.Result == vpcport.Bound
	st.Phase = phaseOf(s, n, step, p, here)
	setPlugged(&st, s, now)
	if !here {
		st.Plug = nil
	}
	setCondition(&st, portReady(s, n, step, p, lie), now)
	setCondition(&st, bound(s, n, p, here), now)
	setAllowed(&st, s, p, now)
	return st
}

// unseen reports whether a NIC was bound to its desired host, but the provider has not been queried since: its VPC is not open, or this
// operator has just started. The status is then kept, so that a node can plug the port.
func unseen(s *observation, n nic) bool {
	return (s.closed != nil || !n.observed.Looked) && n.history.lost == "" && !s.desired.Over && s.now == s.next && s.o.Status.Plug != nil
}

// assign sets which pod has the NIC. As long as a node holds it, that is the previous pod.
func assign(st *v1alpha1.PodNICStatus, s *observation) {
	a := s.next
	if s.hold.held && s.now.pod.UID != "" && s.now.pod.UID != a.pod.UID {
		a = s.now
	}
	if a.pod != s.now.pod {
		st.Node = nil // it referred to the previous pod
	}
	st.Pod, st.Interface, st.DefaultRoute, st.NodeName = nil, a.name, a.defaultRoute, a.node
	if a.pod.UID != "" {
		st.Pod = &a.pod
	}
}

// phaseOf returns the phase of a PodNIC.
func phaseOf(s *observation, n nic, step nicplan.Step, p *vpcport.Port, here bool) v1alpha1.PodNICPhase {
	edit := n.attempts.Failed.Message != "" && vpcport.PolicyOf(n.attempts.Failed.Class).Edit
	switch {
	case s.desired.Over, s.leaves():
		return v1alpha1.PhaseReleasing
	case here && p.Status == vpcport.StatusActive:
		return v1alpha1.PhaseActive
	case here:
		return v1alpha1.PhaseBound
	case p == nil && (edit || s.refused != nil || step.Kind == nicplan.Impossible):
		return v1alpha1.PhaseFailed
	case p != nil:
		return v1alpha1.PhaseCreated
	case s.o.Status.PortID != "" && !n.observed.Looked:
		return cmp.Or(s.o.Status.Phase, v1alpha1.PhasePending) // until a change is seen
	}
	return v1alpha1.PhasePending
}

// describe sets the fields of the NIC's port. The error says what a node could not use. If the provider gives ports one address of each
// family, the addresses are then left as they were, so that a new port gets them again.
func (s *observation) describe(st *v1alpha1.PodNICStatus, p *vpcport.Port) error {
	if !s.opened.Provider.Traits().OneEach {
		return describe(st, p, s.opened.Network)
	}
	lie := describe(st, s.own(p), s.opened.Network)
	if len(p.Addresses) == 0 {
		lie = fmt.Errorf("port %s has no address of the families of VPC %s (spec.ec2.ipFamilies)", p.ID, s.o.Spec.VPC)
	}
	if lie != nil {
		st.Addresses = s.o.Status.Addresses
	}
	return lie
}

// own returns a port with only the NIC's own addresses, one of each family: the address that the NIC had before, if the port still has
// it, otherwise the first. Addresses added by somebody else do not count: those of a family that the NIC did not have, or outside the
// known CIDRs of the subnet.
func (s *observation) own(p *vpcport.Port) *vpcport.Port {
	had := addrsOf(s.o.Status)
	has := s.o.Status.PortID == p.ID && len(had) > 0
	known := func(a vpcport.FixedIP) bool {
		return slices.ContainsFunc(s.opened.Network.Subnets, func(n vpcport.Subnet) bool {
			cidr, _ := n.For(a.IP)
			return n.ID == a.SubnetID && cidr.Contains(a.IP)
		})
	}
	only := *p
	only.Addresses = nil
	for _, f := range ipfamily.Dual.Families() {
		of := func(a netip.Addr) bool { return ipfamily.Of(a) == f }
		if has && !slices.ContainsFunc(had, of) {
			continue
		}
		all := slices.DeleteFunc(slices.Clone(p.Addresses), func(a vpcport.FixedIP) bool { return !of(a.IP) || has && !known(a) })
		i := slices.IndexFunc(all, func(a vpcport.FixedIP) bool { return slices.Contains(had, a.IP) })
		if len(all) > 0 {
			only.Addresses = append(only.Addresses, all[max(i, 0)])
		}
	}
	if len(only.Addresses) == 0 {
		return p // describe reports what is wrong with it
	}
	return &only
}

// addrsOf returns the valid addresses in a status.
func addrsOf(st v1alpha1.PodNICStatus) (list []netip.Addr) {
	for _, a := range st.Addresses {
		if cidr, err := netip.ParsePrefix(a.CIDR); err == nil {
			list = append(list, cidr.Addr())
		}
	}
	return list
}

// describe sets the fields of a port in a status. The error says what a node could not use.
func describe(st *v1alpha1.PodNICStatus, p *vpcport.Port, net vpcport.Network) error {
	st.PortID, st.Host, st.MAC, st.MTU = p.ID, p.Host, p.MAC.String(), int32(min(net.MTU, 1<<16))
	st.Addresses, st.Routes = nil, nil
	var lie error
	for _, a := range p.Addresses {
		i := slices.IndexFunc(net.Subnets, func(s vpcport.Subnet) bool { return s.ID == a.SubnetID })
		if i < 0 {
			lie = fmt.Errorf("port %s has %s of subnet %s, which network %s did not have when it was looked up", p.ID, a.IP, a.SubnetID, net.ID)
			continue
		}
		s := net.Subnets[i]
		cidr, gateway := s.For(a.IP)
		out := v1alpha1.PortAddress{Subnet: s.ID}
		if p, err := a.IP.Prefix(cidr.Bits()); err == nil && p == cidr.Masked() {
			out.CIDR = fmt.Sprintf("%s/%d", a.IP, cidr.Bits())
		} else {
			lie = fmt.Errorf("%s is not of subnet %s (%s)", a.IP, s.ID, cidr)
			continue
		}
		if gateway.IsValid() {
			out.Gateway = gateway.String()
		}
		st.Addresses = append(st.Addresses, out)
		for _, r := range s.Routes {
			st.Routes = append(st.Routes, v1alpha1.PortRoute{Destination: r.Destination.String(), Gateway: r.Gateway.String()})
		}
	}
	if len(st.Addresses) > 16 || len(st.Routes) > 64 {
		lie = fmt.Errorf("port %s has %d addresses and %d routes, expected 16 and 64 at most", p.ID, len(st.Addresses), len(st.Routes))
		st.Addresses, st.Routes = st.Addresses[:min(16, len(st.Addresses))], st.Routes[:min(64, len(st.Routes))]
	}
	plug := p.Binding.Plug
	if p.Binding.Result != vpcport.Bound {
		return lie
	}
	if len(plug.Bridge) > 15 || len(plug.Netns) > 128 {
		return fmt.Errorf("port %s must be plugged into bridge %.40q, network namespace %.40q, which cannot exist on a node", p.ID, plug.Bridge, plug.Netns)
	}
	types := map[vpcport.PlugKind]v1alpha1.PlugType{
		vpcport.OVS: v1alpha1.PlugOVS, vpcport.OVSHybrid: v1alpha1.PlugOVSHybrid, vpcport.Netns: v1alpha1.PlugNetns,
		vpcport.VLAN: v1alpha1.PlugVLAN,
	}
	st.Plug = &v1alpha1.PortPlug{Type: types[plug.Kind], Bridge: plug.Bridge, Netns: plug.Netns, OVN: plug.OVN, TrunkMAC: plug.Trunk, VLAN: int32(plug.VLAN)}
	if st.Plug.Type == "" {
		st.Plug = nil
		return fmt.Errorf("port %s must be plugged in a way that Berth does not support", p.ID)
	}
	return lie
}

// portReady returns the condition PortReady; if it has no type, the condition is left as it is.
func portReady(s *observation, n nic, step nicplan.Step, p *vpcport.Port, lie error) metav1.Condition {
	is := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionPortReady, Status: status, Reason: reason, Message: message}
	}
	failed := n.attempts.Failed.Message != "" && n.attempts.Failed.Reason == ""
	switch {
	case s.closed != nil:
		return is(metav1.ConditionFalse, reasonVPC, s.closed.Error())
	case lie != nil:
		return is(metav1.ConditionFalse, vpcport.PolicyOf(vpcport.Bug).Reason, lie.Error())
	case p == nil && s.refused != nil && !s.desired.Over:
		return is(metav1.ConditionFalse, reasonRefused, s.refused.Error())
	case p == nil && s.full != nil:
		return is(metav1.ConditionFalse, reasonLimit, s.full.Error())
	case failed && (p == nil || n.observed.Recorded == "" || step.Change.Groups != nil || s.desired.Over):
		return is(metav1.ConditionFalse, reasonOf(n.attempts.Failed.Class), n.attempts.Failed.Message)
	case p == nil && n.history.lost != "":
		return is(metav1.ConditionFalse, reasonLost, fmt.Sprintf("somebody else deleted port %s; a new one is created", n.history.lost))
	case p == nil:
		return metav1.Condition{}
	}
	return is(metav1.ConditionTrue, reasonReady, "port "+p.ID)
}

// setAllowed sets the condition Allowed of a NIC whose port is no longer allowed for its namespace.
func setAllowed(st *v1alpha1.PodNICStatus, s *observation, p *vpcport.Port, now metav1.Time) {
	if p == nil || s.denied == nil || s.desired.Over {
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionAllowed)
		return
	}
	setCondition(st, metav1.Condition{
		Type: v1alpha1.ConditionAllowed, Status: metav1.ConditionFalse, Reason: reasonNotAllowed,
		Message: fmt.Sprintf("port %s stays as it is, but the namespace could not get it again: %s", p.ID, s.denied),
	}, now)
}

// reasonOf returns the reason for a class of failures.
func reasonOf(c vpcport.Class) string { return vpcport.PolicyOf(c).Reason }

// bound returns the condition Bound; if it has no type, the condition is left as it is.
func bound(s *observation, n nic, p *vpcport.Port, here bool) metav1.Condition {
	is := func(status metav1.ConditionStatus, reason, format string, args ...any) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionBound, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case p == nil:
		return metav1.Condition{}
	case here:
		return is(metav1.ConditionTrue, reasonBound, "at host %s", p.Host)
	case s.hold.held && s.desired.Over, s.leaves():
		return is(metav1.ConditionFalse, reasonPlugged, "node %s still has the port plugged, for pod %s", s.now.node, s.now.pod.Name)
	case s.pod == nil:
		return is(metav1.ConditionFalse, reasonNoPod, "no pod has it")
	case s.next.node == "":
		return is(metav1.ConditionFalse, reasonUnscheduled, "pod %s has no node yet", s.pod.Name)
	case s.host.full:
		return is(metav1.ConditionFalse, reasonNodeLimit, "%s", s.host.why)
	case s.host.why != "":
		return is(metav1.ConditionFalse, reasonNoHost, "%s", s.host.why)
	case n.attempts.Failed.Message != "":
		return is(metav1.ConditionFalse, cmp.Or(n.attempts.Failed.Reason, reasonOf(n.attempts.Failed.Class)), "%s", n.attempts.Failed.Message)
	}
	return metav1.Condition{} // the next step binds it
}

// leaves reports whether a node still has the port plugged for a pod that is no longer to have it.
func (s *observation) leaves() bool { return s.hold.held && s.now.pod != s.next.pod }

// soonActive is how long the condition Plugged is delayed to be combined with the write that the port is active. Most ports soon become
// active, which saves one write per PodNIC.
const soonActive = 5 * time.Second

// setPlugged sets the condition Plugged according to the node's report about the port.
func setPlugged(st *v1alpha1.PodNICStatus, s *observation, now metav1.Time) {
	says := st.Node
	if says == nil || says.PortID != st.PortID {
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionPlugged)
		return
	}
	c := metav1.Condition{Type: v1alpha1.ConditionPlugged, Status: metav1.ConditionFalse, Reason: cmp.Or(says.Reason, string(says.State)), Message: says.Message}
	switch {
	case says.State == v1alpha1.NodePlugged && says.Reason == "" && s.moved(*st):
		c.Reason = reasonMoved
		c.Message = fmt.Sprintf("port %s has %s, and Kubernetes knows the running pod by %s, which stays: recreate the pod", st.PortID, addressesOf(*st), s.pod.Status.PodIP)
	case says.State == v1alpha1.NodePlugged && says.Reason == "":
		c.Status, c.Message = metav1.ConditionTrue, strings.TrimSuffix("by node "+st.NodeName+" as "+says.HostInterface, " as ")
		if st.Phase != v1alpha1.PhaseActive && meta.FindStatusCondition(st.Conditions, c.Type) == nil && now.Sub(says.Since.Time) < soonActive {
			return
		}
	case says.State == v1alpha1.NodeUnplugged:
		c.Message = "the node has unplugged it"
	}
	setCondition(st, c, now)
}

// moved reports whether Kubernetes knows a running pod by another address than that of its first interface. A recreated port may have
// another address, and the kubelet queries it only when a pod starts.
func (s *observation) moved(st v1alpha1.PodNICStatus) bool {
	if !s.first || s.pod == nil || s.pod.Status.Phase != corev1.PodRunning || st.Pod == nil || st.Pod.UID != string(s.pod.UID) {
		return false
	}
	known, err := netip.ParseAddr(s.pod.Status.PodIP)
	return err == nil && len(st.Addresses) > 0 && !slices.Contains(addrsOf(st), known)
}

func addressesOf(st v1alpha1.PodNICStatus) string {
	var list []string
	for _, a := range st.Addresses {
		list = append(list, a.CIDR)
	}
	return strings.Join(list, " and ")
}

// setCondition sets a condition, unless it has no type.
func setCondition(st *v1alpha1.PodNICStatus, c metav1.Condition, now metav1.Time) {
	if c.Type == "" {
		return
	}
	// The API server replaces incomplete characters, so the message would never match the desired one.
	c.Message = vpcport.Cut(c.Message, maxMessage)
	c.LastTransitionTime = now
	meta.SetStatusCondition(&st.Conditions, c)
}
