package plug

import (
	"cmp"
	"context"
	"net"
	"net/netip"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Kind is how a port is connected to a pod.
type Kind string

// The kinds, as in the status of a PodNIC.
const (
	OVS       Kind = "OVS"       // directly on the integration bridge
	OVSHybrid Kind = "OVSHybrid" // through a Linux bridge for each port
	Netns     Kind = "Netns"     // from the VPC's namespace, where an agent put it
	VLAN      Kind = "VLAN"      // a VLAN on a link of the node
	// RoutedVLAN is a VLAN on a link of the node that stays on the node. The node routes between it
	// and the pod, as for pods with ENI addresses, so Services work.
	RoutedVLAN Kind = "RoutedVLAN"
)

// Enforcing is the mode of a RoutedVLAN: which packets its security groups see. It corresponds to
// POD_SECURITY_GROUP_ENFORCING_MODE of the Amazon VPC CNI.
type Enforcing string

// The modes.
const (
	// Strict: all packets of the pod use its VLAN, including those to and from its own node and
	// other pods on it.
	Strict Enforcing = "strict"
	// Standard: packets between the pod and its node stay on the node. Packets that leave the VPC
	// use the node's own link with address translation, if the node translates those of other pods.
	Standard Enforcing = "standard"
)

// Ref identifies a port and contains all that Unplug needs. Record it before calling Plug.
type Ref struct {
	Attachment string // name of the attachment's record
	PortID     string // full ID at the provider
	Kind       Kind
	Bridge     string // OVS, OVSHybrid: the integration bridge
	VPCNetns   string // Netns: file name of the VPC's namespace
	Trunk      string // VLAN, RoutedVLAN: MAC address of the trunk, a link of the node
	VLAN       int    // VLAN, RoutedVLAN: VLAN ID (IEEE 802.1Q)
	Pod        Pod
}

// Pod is the place of a port in a pod.
type Pod struct {
	Netns   string       // path of the pod's network namespace
	NetnsID rtnl.NetnsID // the expected namespace; zero accepts any
	IfName  string       // such as "eth0"
}

// Want is the desired state of one port.
type Want struct {
	Ref
	Interface Interface
	Binding   Binding   // who uses the port in the pod; empty: its containers
	Tap       TapDevice // for BindingTap
	VMUUID    string    // OVSDB's external ID vm-uuid; empty: none
	OVN       bool      // OVS, OVSHybrid: OVN's controller reports on the node when the port works
	Enforcing Enforcing // RoutedVLAN
}

// Binding is the way in which a virtual machine in the pod gets the port, in KubeVirt's terms.
type Binding string

// The bindings, as in the spec of a PodNIC.
const (
	// BindingBridge: the interface is set up as for containers and then handed over to the VM
	// runtime, which renames it, takes its MAC address and addresses, and adds it to its own bridge
	// (KubeVirt's bridge binding and managedTap). After the handover, Berth neither changes nor
	// compares anything in the pod.
	BindingBridge Binding = "bridge"
	// BindingTap: a tap device with the port's MAC address takes the place of the interface, for
	// runtimes that use an existing tap device (KubeVirt's domainAttachmentType tap). The links in
	// the pod have no addresses or routes; the machine has them.
	BindingTap Binding = "tap"
)

// TapDevice describes the tap device of BindingTap.
type TapDevice struct {
	Owner, Group uint32 // user and group that may open it, besides CAP_NET_ADMIN
	MultiQueue   bool   // it can only be opened with IFF_MULTI_QUEUE
}

// Interface is the pod's view of a port.
type Interface struct {
	MAC       net.HardwareAddr // MAC address of the port
	MTU       int              // bytes; 0 keeps the MTU of the link
	Addresses []netip.Prefix   // with the prefix lengths of their subnets
	Gateways  []netip.Addr     // at most one for each IP family
	Routes    []Route
	Default   bool // connections of the pod use it by default
	Bare      bool // the pod's namespace sends nothing on it: no addresses, not even link-local ones
}

// Route is an additional route of a subnet.
type Route struct {
	Dst netip.Prefix
	Via netip.Addr // zero: on-link
}

// Done is the result of Plug.
type Done struct {
	HostIfName string // the link on the node; empty if it belongs to an agent or is in the pod (Netns, VLAN)
	HostMAC    net.HardwareAddr
	MTU        int
}

// Found is a port of Berth's that List found.
type Found struct {
	Ref             // as far as known; Pod has more than IfName only if Link is in a pod (VLAN)
	HalfMade bool   // creation was interrupted; Attachment and PortID are unknown
	Link     string // on the node, or in Pod; empty: the link is gone
}

// Compare orders ports by ID, incomplete ones first.
func (f Found) Compare(o Found) int {
	return cmp.Or(cmp.Compare(f.PortID, o.PortID), cmp.Compare(f.Attachment, o.Attachment), cmp.Compare(f.Link, o.Link))
}

// Plugger plugs ports of one kind. All methods are safe for concurrent use, and calls about ports
// with the same link name take turns. Each method ends when its context ends.
type Plugger interface {
	// Expect waits until the node has what Plug needs from another program, and returns immediately if Plug needs
	// nothing. It changes nothing. It may wait far longer than Plug, so call it without holding locks that other calls
	// need. Errors: those of Plug; ErrNotReady, which says what is missing.
	Expect(ctx context.Context, w Want) error
	// Plug puts a port into a pod. It is idempotent: it keeps what is correct, completes what is
	// incomplete, and fails if something belongs to another owner. After an error, or if the
	// program ended at any point, call Plug or Unplug again.
	//
	// Errors: ErrInvalid, rtnl.ErrNoNetns, rtnl.ErrNotNetns, ErrInterfaceExists, ErrNameTaken,
	// ErrPortInUse, ErrNoBridge, ErrUnreachable, ErrNotReady, ErrNoVLAN.
	Plug(ctx context.Context, w Want) (Done, error)
	// Await waits until the VPC's agent on the node reports that the port works. It returns immediately if no agent
	// reports that. Errors: ErrNotReady, which says what is missing; ErrUnreachable.
	Await(ctx context.Context, w Want) error
	// Unplug removes a port from a pod, with everything that Plug created. It is idempotent, and succeeds for unknown
	// ports and if the namespace is gone. It does not change objects of other attachments or ports.
	Unplug(ctx context.Context, r Ref) error
	// Check compares the observed with the desired state and changes nothing. It returns a
	// *Mismatch with all differences, or an error of Plug if it cannot read the observed state.
	Check(ctx context.Context, w Want) error
	// List lists Berth's ports of this kind on the node, ordered by ID.
	List(ctx context.Context) ([]Found, error)
	// Remove unplugs a port that List found and that no longer has a record.
	Remove(ctx context.Context, f Found) error
}
