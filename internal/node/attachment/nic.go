package attachment

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/mac"
)

// NIC is an interface of the pod that is a port of a VPC, in addition to or instead of the interface
// with the lease's addresses. The record suffices to set it up again, compare it and remove it,
// even after the PodNIC is deleted.
type NIC struct {
	Object string   `json:"object"` // name of the PodNIC, in the pod's namespace
	UID    string   `json:"uid"`    // UID of the PodNIC, because a later one may have the same name
	Port   string   `json:"port"`   // the port's ID at its provider
	IfName string   `json:"ifName"` // interface name in the pod
	MAC    mac.Addr `json:"mac"`    // MAC address of the port, which the interface must have
	MTU    int      `json:"mtu"`    // MTU of the port's network, in bytes
	// Addresses are the port's addresses. Ports of different VPCs may have the same ones.
	Addresses []NICAddress `json:"addresses"`
	Routes    []NICRoute   `json:"routes,omitempty"` // routes of the port's subnets, except those to gateways
	// DefaultRoute sets the pod's default route through this NIC.
	DefaultRoute bool     `json:"defaultRoute,omitempty"`
	HostLink     string   `json:"hostLink,omitempty"` // link on the node, if there is one
	HostMAC      mac.Addr `json:"hostMAC,omitempty"`  // MAC address of that link
	Plug         Plug     `json:"plug"`
	// Binding is how a virtual machine in the pod uses the NIC, a value of the PodNIC's spec. It is empty if
	// the pod's containers use it.
	Binding string `json:"binding,omitempty"`
	Tap     Tap    `json:"tap,omitzero"` // with binding tap
	// State is the progress of a change. Only that of a ready record may differ from Plugged.
	State NICState `json:"state,omitempty"`
	// Later means that the NIC was added or changed after the ADD, so the runtime's prevResult does not describe it.
	Later bool `json:"later,omitempty"`
}

// NICState is the progress of a NIC change.
type NICState string

// The states of a NIC.
const (
	// Plugged means that the kernel matches the record.
	Plugged NICState = ""
	// Plugging means that the NIC is being added; the kernel may have all or part of it.
	Plugging NICState = "plugging"
	// Changing means that the NIC is plugged, and new addresses or other settings of its port are being
	// set up.
	Changing NICState = "changing"
)

// Is reports whether both are the same port, plugged in the same way and under the same name. Other
// fields can be changed in place.
func (n NIC) Is(o NIC) bool {
	return n.Port == o.Port && n.UID == o.UID && n.IfName == o.IfName &&
		n.Plug.Type == o.Plug.Type && n.Plug.Bridge == o.Plug.Bridge && n.Plug.Netns == o.Plug.Netns && n.Binding == o.Binding && n.Tap == o.Tap
}

// Tap describes the tap device of a NIC.
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

// Plug is how the node connects a port, from the PodNIC's status.
type Plug struct {
	Type   string `json:"type"` // OVS, OVSHybrid, Netns, VLAN or RoutedVLAN
	Bridge string `json:"bridge,omitempty"`
	Netns  string `json:"netns,omitempty"` // namespace where the provider's agent puts the link
	OVN    bool   `json:"ovn,omitempty"`   // OVN on the node reports when the port is active
	Trunk  string `json:"trunk,omitempty"` // the MAC address of the node's link that carries VLAN
	VLAN   int    `json:"vlan,omitempty"`  // IEEE 802.1Q, 1 to 4094
	// Enforcing is where the security groups of a RoutedVLAN are enforced, strict or standard. It does
	// not change while the pod runs.
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

// First returns the NIC that is the attachment's own interface, named Key.IfName, or nil if the
// lease provides it.
func (r Record) First() *NIC {
	for i := range r.NICs {
		if r.NICs[i].IfName == r.Key.IfName {
			return &r.NICs[i]
		}
	}
	return nil
}

// Settled reports whether the kernel should match the record of a NIC: it is set up, or is the
// attachment's own interface, without which the pod has no network. The state of other NICs is unknown
// while they are being plugged or changed.
func (r Record) Settled(n NIC) bool { return n.State == Plugged || n.IfName == r.Key.IfName }

// checkNICs validates the NICs.
func (r Record) checkNICs() error {
	for i, n := range r.NICs {
		if err := n.validate(); err != nil {
			return fmt.Errorf("nics[%d]: %w", i, err)
		}
		taken := n.IfName == r.Key.IfName && !r.Lease.Empty()
		if taken || slices.ContainsFunc(r.NICs[:i], func(o NIC) bool { return o.IfName == n.IfName || o.Port == n.Port }) {
			return fmt.Errorf("nics[%d]: interface %s or port %s is listed twice", i, n.IfName, n.Port)
		}
	}
	return nil
}
