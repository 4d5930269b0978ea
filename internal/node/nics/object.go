package nics

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// object is a PodNIC of this node, as far as it matters here.
type object struct {
	name    types.NamespacedName
	uid     types.UID
	version string // resourceVersion

	pod    string // the UID of the pod that has it
	ifName string
	port   string
	host   string
	phase  v1alpha1.PodNICPhase
	wrong  []condition          // those that are not true
	node   *v1alpha1.PodNICNode // status.node, which this node reported
	// givenUp: the pod gives it up, and it is to be unplugged.
	givenUp bool

	nic attachment.NIC
	err error // why nic cannot be plugged, if it is bound
}

// condition is a condition of a PodNIC that is not true.
type condition struct{ kind, reason, message string }

// bound reports whether the port may be plugged here.
func (o object) bound() bool {
	return o.phase == v1alpha1.PhaseBound || o.phase == v1alpha1.PhaseActive
}

// longestMessage bounds what is passed on of a condition's message, in bytes.
const longestMessage = 400

// read validates a PodNIC and keeps what matters of it. The object may be damaged, or written by somebody who should not
// have been able to.
func read(o *v1alpha1.PodNIC, bridges []string, r rules) object {
	s := o.Status
	out := object{
		name: types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, uid: o.UID, version: o.ResourceVersion,
		ifName: s.Interface, port: s.PortID, host: s.Host, phase: s.Phase, node: s.Node.DeepCopy(),
		givenUp: o.DeletionTimestamp != nil || s.Phase == v1alpha1.PhaseReleasing,
	}
	if s.Pod != nil {
		out.pod = s.Pod.UID
	}
	for _, c := range s.Conditions {
		if c.Status != metav1.ConditionTrue && c.Type != v1alpha1.ConditionPlugged && c.Type != v1alpha1.ConditionAllowed { // which this node sets itself, and which is about new ports
			out.wrong = append(out.wrong, condition{shown(c.Type, 64), shown(c.Reason, 64), shown(c.Message, longestMessage)})
		}
	}
	if out.bound() {
		if out.nic, out.err = nicOf(o, bridges, r); out.err != nil {
			out.err = fmt.Errorf("PodNIC %s: %w", out.name, out.err)
		}
	}
	return out
}

// nicOf returns the NIC of a PodNIC that is bound. The error names the field and what was expected, and is a
// plug.ErrInvalid.
func nicOf(o *v1alpha1.PodNIC, bridges []string, r rules) (attachment.NIC, error) {
	s := o.Status
	var zero attachment.NIC
	if s.Plug == nil {
		return zero, invalid("status.plug", "", "how the port is plugged")
	}
	if o.Spec.Pod != nil && (s.Pod == nil || s.Pod.UID != o.Spec.Pod.UID) {
		return zero, invalid("status.pod", "", "the pod of spec.pod, which is the only one that may have it")
	}
	if o.Spec.PortID != "" && o.Spec.PortID != s.PortID {
		return zero, invalid("status.portID", s.PortID, "that of spec.portID, %s", o.Spec.PortID)
	}
	hw, err := net.ParseMAC(s.MAC)
	if err != nil || len(hw) != 6 {
		return zero, invalid("status.mac", s.MAC, "an Ethernet address such as fa:16:3e:00:00:01")
	}
	n := attachment.NIC{
		Object: o.Name, UID: string(o.UID), Port: s.PortID, IfName: s.Interface, MAC: mac.Addr(hw), MTU: int(s.MTU), DefaultRoute: s.DefaultRoute,
		Plug:    attachment.Plug{Type: string(s.Plug.Type), Bridge: s.Plug.Bridge, Netns: s.Plug.Netns, OVN: s.Plug.OVN, Trunk: s.Plug.TrunkMAC, VLAN: int(s.Plug.VLAN)},
		Binding: string(o.Spec.Binding),
	}
	if o.Spec.Binding == v1alpha1.BindingTap {
		if n.Tap, err = tapOf(o.Spec.Tap); err != nil {
			return zero, err
		}
	}
	if len(s.Addresses) == 0 {
		return zero, invalid("status.addresses", "", "one at least")
	}
	for i, a := range s.Addresses {
		field := fmt.Sprintf("status.addresses[%d]", i)
		cidr, err := netip.ParsePrefix(a.CIDR)
		if err != nil {
			return zero, invalid(field+".cidr", a.CIDR, "an address with a prefix length, such as 192.168.0.12/24")
		}
		gateway, err := optionalAddr(field+".gateway", a.Gateway)
		if err != nil {
			return zero, err
		}
		n.Addresses = append(n.Addresses, attachment.NICAddress{CIDR: cidr, Gateway: gateway})
	}
	for i, r := range s.Routes {
		field := fmt.Sprintf("status.routes[%d]", i)
		to, err := netip.ParsePrefix(r.Destination)
		if err != nil {
			return zero, invalid(field+".destination", r.Destination, "a network such as 10.1.0.0/16")
		}
		via, err := optionalAddr(field+".gateway", r.Gateway)
		if err != nil {
			return zero, err
		}
		n.Routes = append(n.Routes, attachment.NICRoute{Destination: to.Masked(), Gateway: via})
	}
	if err := checkBridge(n.Plug, bridges); err != nil {
		return zero, err
	}
	if err := r.route(&n); err != nil {
		return zero, err
	}
	// plug checks the rest.
	w := want(attachment.Record{HostLink: "bth0", Netns: attachment.Netns{Path: "/"}}, n)
	return n, w.Validate()
}

// route has the node route to a NIC that is the pod's first interface, on a node where the first interfaces of other
// pods get addresses from an address source. It must be a branch.
func (r rules) route(n *attachment.NIC) error {
	p := &n.Plug
	switch {
	case r.firstIsPort || n.IfName != firstInterface:
		return nil
	case !r.firstMayBeBranch:
		return invalid("status.interface", firstInterface, "another: it is the name of the pods' first interface, which is not a port on this node")
	case p.Type != string(plug.VLAN):
		return invalid("status.plug.type", p.Type, "%s of %s: on this node, a pod's first interface that is a port must be a branch interface of EC2", plug.VLAN, firstInterface)
	}
	p.Type, p.Enforcing = string(plug.RoutedVLAN), string(r.enforcing)
	return nil
}

// checkBridge returns an error for a bridge of Open vSwitch that is not configured for the node.
func checkBridge(p attachment.Plug, bridges []string) error {
	if p.Type == string(plug.Netns) || isVLAN(p) || slices.Contains(bridges, p.Bridge) {
		return nil
	}
	return invalid("status.plug.bridge", p.Bridge, "one of %s, into which this node lets ports be plugged (--ovs-bridges)", strings.Join(bridges, ", "))
}

// isVLAN reports whether a port is a VLAN on a link of the node.
func isVLAN(p attachment.Plug) bool {
	return p.Type == string(plug.VLAN) || p.Type == string(plug.RoutedVLAN)
}

// tapOf returns a tap device with its defaults.
func tapOf(t *v1alpha1.TapDevice) (attachment.Tap, error) {
	if t == nil {
		t = &v1alpha1.TapDevice{}
	}
	owner := int64(v1alpha1.DefaultTapOwner)
	if t.Owner != nil {
		owner = *t.Owner
	}
	group := owner
	if t.Group != nil {
		group = *t.Group
	}
	for _, id := range []struct {
		field  string
		number int64
	}{{"spec.tap.owner", owner}, {"spec.tap.group", group}} {
		if id.number < 0 || id.number >= math.MaxUint32 { // the maximum means no change to chown(2)
			return attachment.Tap{}, invalid(id.field, fmt.Sprint(id.number), "0 to %d", math.MaxUint32-1)
		}
	}
	return attachment.Tap{Owner: uint32(owner), Group: uint32(group), MultiQueue: t.MultiQueue}, nil
}

func optionalAddr(field, s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return a, invalid(field, s, "an IP address")
	}
	return a, nil
}

func invalid(field, value, expected string, args ...any) error {
	is := "is missing"
	if value != "" {
		is = fmt.Sprintf("is %q", shown(value, 80))
	}
	return fmt.Errorf("%s %s, expected %s: %w", field, is, fmt.Sprintf(expected, args...), plug.ErrInvalid)
}

// shown returns a text of others in a form that is safe in messages.
func shown(s string, most int) string { return source.OneLine(s, most) }

// want returns how a recorded NIC is to be plugged.
func want(rec attachment.Record, n attachment.NIC) plug.Want {
	i := plug.Interface{MAC: net.HardwareAddr(n.MAC), MTU: n.MTU, Default: n.DefaultRoute}
	family := map[bool]bool{}
	for _, a := range n.Addresses {
		i.Addresses = append(i.Addresses, a.CIDR)
		// A port may have several addresses of a subnet, or of two: the first gateway of a
		// family is the next hop.
		if g := a.Gateway; g.IsValid() && !family[g.Is4()] {
			family[g.Is4()] = true
			i.Gateways = append(i.Gateways, g)
		}
	}
	for _, r := range n.Routes {
		i.Routes = append(i.Routes, plug.Route{Dst: r.Destination, Via: r.Gateway})
	}
	return plug.Want{
		Ref: ref(rec, n), Interface: i, OVN: n.Plug.OVN, VMUUID: rec.Pod.UID,
		Binding: plug.Binding(n.Binding), Tap: plug.TapDevice(n.Tap), Enforcing: plug.Enforcing(n.Plug.Enforcing),
	}
}

// ref identifies a recorded NIC and where it is plugged.
func ref(rec attachment.Record, n attachment.NIC) plug.Ref {
	return plug.Ref{
		Attachment: rec.HostLink, PortID: n.Port, Kind: plug.Kind(n.Plug.Type), Bridge: n.Plug.Bridge, VPCNetns: n.Plug.Netns,
		Trunk: n.Plug.Trunk, VLAN: n.Plug.VLAN,
		Pod: plug.Pod{Netns: rec.Netns.Path, NetnsID: rtnl.NetnsID{Dev: rec.Netns.Dev, Inode: rec.Netns.Inode}, IfName: n.IfName},
	}
}
