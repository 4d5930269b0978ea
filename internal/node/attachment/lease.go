// Package attachment is the record of every attachment on the node: which
// interface of which sandbox holds which address, and which released
// addresses still cool. Records are small files that outlive the daemon and
// vanish with the kernel state they describe.
package attachment

import (
	"fmt"
	"net/netip"

	"github.com/berthnet/berth/internal/node/introspect"
)

// Lease is one attachment's hold on its addresses. It is a value: the record
// of an attachment keeps it, and the same value restores it after a restart. The
// zero Lease is of an attachment whose addresses are all of its NICs.
type Lease struct {
	IPv4 netip.Addr `json:"ipv4,omitzero"` // zero without an IPv4 address
	IPv6 netip.Addr `json:"ipv6,omitzero"` // zero without an IPv6 address
	// NodeLocal is of the family that the pod has no address of, and nobody's outside
	// the node: by it the pod reaches the world of that family, translated. Zero without.
	NodeLocal netip.Addr `json:"nodeLocal,omitzero"`
	introspect.Origin
	// Uplink is the number of the uplink that carries the addresses; 0: the node's
	// own. Records have it under the name that it had when all were ENIs.
	Uplink int `json:"deviceIndex,omitempty"`
}

// Empty tells that no address is leased.
func (l Lease) Empty() bool { return !l.IPv4.IsValid() && !l.IPv6.IsValid() }

// Addrs returns the addresses by which others reach the pod, IPv4 first.
func (l Lease) Addrs() []netip.Addr { return valid(l.IPv4, l.IPv6) }

// Held returns all addresses that are the attachment's while it holds the lease: Addrs,
// and the node-local one.
func (l Lease) Held() []netip.Addr { return valid(l.IPv4, l.IPv6, l.NodeLocal) }

// validate finds an address of a wrong family.
func (l Lease) validate() error {
	switch local := l.NodeLocal; {
	case l.IPv4.IsValid() && !l.IPv4.Is4():
		return fmt.Errorf("lease.ipv4 is %s, expected an IPv4 address", l.IPv4)
	case l.IPv6.IsValid() && !isIPv6(l.IPv6):
		return fmt.Errorf("lease.ipv6 is %s, expected an IPv6 address", l.IPv6)
	case !local.IsValid():
		return nil
	case !local.Is4() && !isIPv6(local), len(l.Addrs()) != 1, local.Is4() == l.IPv4.IsValid():
		return fmt.Errorf("lease.nodeLocal is %s, expected an address of the one family that the lease lacks", local)
	}
	return nil
}

func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.Zone() == "" }

func valid(addrs ...netip.Addr) (out []netip.Addr) {
	for _, a := range addrs {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// Key names one attachment: one interface of one sandbox in one network
// (CNI specification 1.1, "attachment").
type Key struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// String reads "network/containerID/ifName".
func (k Key) String() string {
	return fmt.Sprintf("%s/%s/%s", k.Network, k.ContainerID, k.IfName)
}

// Pod is what the runtime tells of the pod behind a sandbox (CNI_ARGS of
// Kubernetes). All fields are empty outside Kubernetes.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}
