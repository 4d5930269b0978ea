package plug

import (
	"cmp"
	"context"
	"net"
	"net/netip"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Kind is how a port gets to a pod.
type Kind string

// The kinds, as the operator tells them by a PodNIC's status.
const (
	OVS       Kind = "OVS"       // straight on the integration bridge
	OVSHybrid Kind = "OVSHybrid" // by a Linux bridge of the port's own
	Netns     Kind = "Netns"     // from the VPC's namespace, where an agent put it
	VLAN      Kind = "VLAN"      // a VLAN on a link of the node's
	// RoutedVLAN is a VLAN on a link of the node's too, which stays on the node: the node routes
	// between it and the pod, as for pods with addresses of its ENIs. So Services are there.
	RoutedVLAN Kind = "RoutedVLAN"
)

// Enforcing is which of a pod's packets the security groups of its RoutedVLAN are enforced on, as
// POD_SECURITY_GROUP_ENFORCING_MODE of the Amazon VPC CNI says it.
type Enforcing string

// The modes.
const (
	// Strict: all packets from and to the pod take its VLAN, also between it and its own node, or
	// another pod there.
	Strict Enforcing = "strict"
	// Standard: what stays on the node does not leave it, and what leaves the VPC goes by the
	// node's own link, translated, where the node translates that of other pods.
	Standard Enforcing = "standard"
)

// Ref names one port that is, or is to be, plugged: all that Unplug needs, so it is to be
// recorded before Plug is called.
type Ref struct {
	Attachment string // the name of the attachment's record
	PortID     string // at the provider, whole
	Kind       Kind
	Bridge     string // OVS, OVSHybrid: the integration bridge
	VPCNetns   string // Netns: the file name of the VPC's namespace
	Trunk      string // VLAN, RoutedVLAN: the MAC address of the node's link that carries it
	VLAN       int    // VLAN, RoutedVLAN: its ID (IEEE 802.1Q)
	Pod        Pod
}

// Pod is the place of a port in a pod.
type Pod struct {
	Netns   string       // path of the pod's network namespace
	NetnsID rtnl.NetnsID // what must be there; zero takes what is
	IfName  string       // such as "eth0"
}

// Want is one port as it should be plugged.
type Want struct {
	Ref
	Interface Interface
	Binding   Binding   // who in the pod has it; empty: its containers
	Tap       TapDevice // with BindingTap
	VMUUID    string    // of OVSDB's external ID vm-uuid; empty: none
	OVN       bool      // OVS, OVSHybrid: OVN's controller says on the node when the port works
	Enforcing Enforcing // RoutedVLAN
}

// Binding is how a virtual machine in the pod gets the port, in KubeVirt's words.
type Binding string

// The bindings, as a PodNIC's spec tells them.
const (
	// BindingBridge: the interface is as for containers, and once it is, it is the machine's
	// runtime's, which renames it, takes its MAC address and addresses, and joins it to a bridge
	// of its own (KubeVirt's bridge binding and managedTap). From then on nothing is set or
	// compared in the pod.
	BindingBridge Binding = "bridge"
	// BindingTap: in the place of the interface is a tap device with the port's MAC address,
	// for runtimes that take one as it is (KubeVirt's domainAttachmentType tap). No link in the
	// pod has an address or a route: the machine has them.
	BindingTap Binding = "tap"
)

// TapDevice is what the tap device of BindingTap is like.
type TapDevice struct {
	Owner, Group uint32 // user and group that may open it; so may who has CAP_NET_ADMIN
	MultiQueue   bool   // it must be opened with IFF_MULTI_QUEUE, and cannot be without
}

// Interface is what the pod sees of a port.
type Interface struct {
	MAC       net.HardwareAddr // the port's
	MTU       int              // bytes; 0 keeps the link's
	Addresses []netip.Prefix   // with the prefix lengths of their subnets
	Gateways  []netip.Addr     // at most one a family
	Routes    []Route
	Default   bool // the pod's own connections leave by it
	Bare      bool // the pod's own namespace sends nothing by it: no addresses, not even IPv6's own
}

// Route is a further route of a subnet.
type Route struct {
	Dst netip.Prefix
	Via netip.Addr // zero: on link
}

// Done tells what Plug left.
type Done struct {
	HostIfName string // of the link on the node; empty where it is another's (Netns, VLAN)
	HostMAC    net.HardwareAddr
	MTU        int
}

// Found is a port of Berth's that List came across.
type Found struct {
	Ref             // as far as it can be told: Pod has more than IfName only where Link is in a pod (VLAN)
	HalfMade bool   // the program ended while it was made; Attachment and PortID are not known
	Link     string // on the node, or in Pod; empty: there is none any more
}

// Compare orders ports by ID, those half made first.
func (f Found) Compare(o Found) int {
	return cmp.Or(cmp.Compare(f.PortID, o.PortID), cmp.Compare(f.Attachment, o.Attachment), cmp.Compare(f.Link, o.Link))
}

// Plugger plugs ports of one kind. All methods are safe for concurrent use; calls about
// ports whose links have one name take turns. Each ends when its context does.
type Plugger interface {
	// Expect returns once there is on the node what Plug takes the port from, where another
	// brings that; at once where Plug makes all itself. It changes nothing, and may take as
	// long as the other is waited for: far longer than Plug, so hold nothing that others need.
	// Errors: as Plug's; ErrNotReady with what is missing.
	Expect(ctx context.Context, w Want) error
	// Plug puts a port into a pod. It is idempotent: what is there stays as it is, what is
	// half done is finished, and what is another's is an error. After a failure, or the end
	// of the program at any point, Plug or Unplug may be called again.
	//
	// Errors: ErrInvalid, rtnl.ErrNoNetns, rtnl.ErrNotNetns, ErrInterfaceExists, ErrNameTaken,
	// ErrPortInUse, ErrNoBridge, ErrUnreachable, ErrNotReady, ErrNoVLAN.
	Plug(ctx context.Context, w Want) (Done, error)
	// Await returns once the node's part of the VPC says that the port works, or at once
	// where nothing on the node can. Errors: ErrNotReady with what is missing, ErrUnreachable.
	Await(ctx context.Context, w Want) error
	// Unplug takes a port out of a pod again, with all that Plug made. It succeeds when
	// nothing is left, also the second time, for a port never seen, and for a namespace that
	// is gone. It touches nothing that carries another attachment or port.
	Unplug(ctx context.Context, r Ref) error
	// Check compares what is there with what is wanted and changes nothing. It fails with a
	// *Mismatch that names every difference, or as Plug does where it cannot look.
	Check(ctx context.Context, w Want) error
	// List names the ports of Berth's on the node, of this kind, in the order of their IDs.
	List(ctx context.Context) ([]Found, error)
	// Remove unplugs what List found and nobody wants any more.
	Remove(ctx context.Context, f Found) error
}
