// Package attachment keeps a record of every attachment on the node, with the addresses that each
// sandbox interface holds, and of released addresses that cool. Records are small files that outlive
// the daemon and vanish with the kernel state they describe.
package attachment

import (
	"fmt"
	"net/netip"

	"github.com/berthnet/berth/internal/node/introspect"
)

// Lease is the addresses that an attachment holds. The attachment's record stores it, and it restores
// them after a restart. The zero Lease belongs to an attachment all of whose addresses are of NICs.
type Lease struct {
	IPv4 netip.Addr `json:"ipv4,omitzero"` // zero without an IPv4 address
	IPv6 netip.Addr `json:"ipv6,omitzero"` // zero without an IPv6 address
	// NodeLocal is an address of the family that the pod otherwise lacks, unknown outside the node:
	// through it the pod reaches that family's networks by NAT. Zero without.
	NodeLocal netip.Addr `json:"nodeLocal,omitzero"`
	introspect.Origin
	// Uplink is the number of the uplink that carries the addresses; 0: the node's own. Its JSON name
	// is from when all uplinks were ENIs.
	Uplink int `json:"deviceIndex,omitempty"`
}

// Empty reports whether no address is leased.
func (l Lease) Empty() bool { return !l.IPv4.IsValid() && !l.IPv6.IsValid() }

// Addrs returns the addresses by which the pod is reachable, IPv4 first.
func (l Lease) Addrs() []netip.Addr { return valid(l.IPv4, l.IPv6) }

// Held returns all addresses that the lease holds: Addrs and NodeLocal.
func (l Lease) Held() []netip.Addr { return valid(l.IPv4, l.IPv6, l.NodeLocal) }

// validate rejects addresses of a wrong family.
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

// Pod is the pod of a sandbox as the runtime names it (CNI_ARGS of Kubernetes). All fields are empty
// outside Kubernetes.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// Request is an attachment that an ADD asks for.
type Request struct {
	Key     Key
	Pod     Pod
	Options PodOptions
}

// PodOptions is what a user asks for, as the runtime passes it. The runtime is trusted for the pods of its own node.
type PodOptions struct {
	AnnotationsKnown bool // the runtime passes the pod's annotations; else they are not known
	// Annotations are those of the pod that the source or a part of the daemon reads, by key.
	Annotations map[string]string
	// NetworkPool is the pool that the network's configuration names, if any. It takes precedence over the annotation,
	// and is trusted as little: Multus reads configurations from objects in the pods' namespaces.
	NetworkPool string
}
