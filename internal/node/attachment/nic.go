package attachment

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/mac"
)

// NIC is an interface of the pod that is a port of a VPC: beside the one that has the
// lease's addresses or, where there is no lease, in its place. The record has all that it takes to set it up again, compare it and
// remove it, also when the object that told it is gone.
type NIC struct {
	Object string   `json:"object"` // name of the PodNIC, in the pod's namespace
	UID    string   `json:"uid"`    // of the PodNIC: one of the same name may follow
	Port   string   `json:"port"`   // the port's ID at its provider
	IfName string   `json:"ifName"` // in the pod
	MAC    mac.Addr `json:"mac"`    // the port's, which the interface must have
	MTU    int      `json:"mtu"`    // of the port's network, in bytes
	// Addresses are the port's. Those of two VPCs may be the same.
	Addresses []NICAddress `json:"addresses"`
	Routes    []NICRoute   `json:"routes,omitempty"` // of the port's subnets, besides those to gateways
	// DefaultRoute: the pod's packets to elsewhere leave by this NIC.
	DefaultRoute bool     `json:"defaultRoute,omitempty"`
	HostLink     string   `json:"hostLink,omitempty"` // on the node, where there is one
	HostMAC      mac.Addr `json:"hostMAC,omitempty"`  // of that link
	Plug         Plug     `json:"plug"`
	// Binding is how a virtual machine in the pod gets the NIC, in the words of the PodNIC's
	// spec; empty: it is the pod's containers'.
	Binding string `json:"binding,omitempty"`
	Tap     Tap    `json:"tap,omitzero"` // with binding tap
	// State is how far it has come. That of a ready record alone may be other than Plugged.
	State NICState `json:"state,omitempty"`
	// Later: it came, or became another, after the ADD: what the runtime remembers of the
	// interface is not what it is.
	Later bool `json:"later,omitempty"`
}

// NICState is how far a NIC of a ready attachment has come.
type NICState string

// The states.
const (
	// Plugged: it was set up as recorded.
	Plugged NICState = ""
	// Plugging: it is being added; the kernel may or may not have been touched.
	Plugging NICState = "plugging"
	// Changing: it was set up, and is being given the addresses, or what else is recorded,
	// that its port has now.
	Changing NICState = "changing"
)

// Is tells whether both are one port, plugged in one way under one name: what differs
// besides can be changed in place.
func (n NIC) Is(o NIC) bool {
	return n.Port == o.Port && n.UID == o.UID && n.IfName == o.IfName &&
		n.Plug.Type == o.Plug.Type && n.Plug.Bridge == o.Plug.Bridge && n.Plug.Netns == o.Plug.Netns && n.Binding == o.Binding && n.Tap == o.Tap
}

// Tap is what the tap device of a NIC is like.
type Tap struct {
	Owner      uint32 `json:"owner"` // user that may open it
	Group      uint32 `json:"group"`
	MultiQueue bool   `json:"multiQueue,omitempty"`
}

// NICAddress is an address of a port.
type NICAddress struct {
	CIDR    netip.Prefix `json:"cidr"`             // with the length of its subnet's prefix
	Gateway netip.Addr   `json:"gateway,omitzero"` // the subnet's router; zero without one
}

// NICRoute is a route of a port's subnet.
type NICRoute struct {
	Destination netip.Prefix `json:"destination"`
	Gateway     netip.Addr   `json:"gateway,omitzero"` // zero: on link
}

// Plug says how the node connects a port, in the words of the PodNIC's status.
type Plug struct {
	Type   string `json:"type"` // OVS, OVSHybrid, Netns, VLAN or RoutedVLAN
	Bridge string `json:"bridge,omitempty"`
	Netns  string `json:"netns,omitempty"` // where the provider's agent puts the link
	OVN    bool   `json:"ovn,omitempty"`   // the node's OVN tells when the port carries packets
	Trunk  string `json:"trunk,omitempty"` // the MAC address of the node's link that carries VLAN
	VLAN   int    `json:"vlan,omitempty"`  // IEEE 802.1Q, 1 to 4094
	// Enforcing of a RoutedVLAN is on what its security groups are enforced, strict or standard. It
	// stays as it is while the pod lives.
	Enforcing string `json:"enforcing,omitempty"`
}

func (n NIC) validate() error {
	switch {
	case n.Object == "" || n.UID == "" || n.Port == "" || n.Plug.Type == "":
		return errors.New("object, uid, port or plug.type is empty")
	case n.IfName == "" || n.HostLink != "" && !linkName.MatchString(n.HostLink):
		return fmt.Errorf("ifName is %q and hostLink %q, expected names of links", n.IfName, n.HostLink)
	case len(n.MAC) != 6 || len(n.HostMAC) != 0 && len(n.HostMAC) != 6:
		return fmt.Errorf("mac is %q and hostMAC %q, expected six octets", n.MAC, n.HostMAC)
	case len(n.Addresses) == 0 || slices.ContainsFunc(n.Addresses, func(a NICAddress) bool { return !a.CIDR.IsValid() }):
		return fmt.Errorf("addresses are %v, expected CIDRs", n.Addresses)
	case slices.ContainsFunc(n.Routes, func(r NICRoute) bool { return !r.Destination.IsValid() }):
		return fmt.Errorf("routes are %v, expected those to CIDRs", n.Routes)
	case n.State != Plugged && n.State != Plugging && n.State != Changing:
		return fmt.Errorf("state is %q, expected plugging, changing or none", n.State)
	}
	return nil
}

// First is the NIC that is the attachment's own interface, the one named Key.IfName; nil
// where the lease's addresses have that name.
func (r Record) First() *NIC {
	for i := range r.NICs {
		if r.NICs[i].IfName == r.Key.IfName {
			return &r.NICs[i]
		}
	}
	return nil
}

// Settled tells whether a NIC of the record is to be as recorded: it is set up so, or is the
// attachment's own interface, without which the pod has no network. Of others it is not
// known while they are plugged or changed.
func (r Record) Settled(n NIC) bool { return n.State == Plugged || n.IfName == r.Key.IfName }

// checkNICs finds what is wrong with a record's NICs.
func (r Record) checkNICs() error {
	for i, n := range r.NICs {
		if err := n.validate(); err != nil {
			return fmt.Errorf("nics[%d]: %w", i, err)
		}
		taken := n.IfName == r.Key.IfName && !r.Lease.Empty()
		if taken || slices.ContainsFunc(r.NICs[:i], func(o NIC) bool { return o.IfName == n.IfName || o.Port == n.Port }) {
			return fmt.Errorf("nics[%d]: interface %s or port %s is there twice", i, n.IfName, n.Port)
		}
	}
	return nil
}
