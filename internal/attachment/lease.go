package attachment

import (
	"net/netip"

	"github.com/berthnet/berth/internal/introspect"
)

// Lease is one attachment's hold on its addresses. It is a value: the record
// of an attachment keeps it, and the same value restores it after a restart. The
// zero Lease is of an attachment whose addresses are all of its NICs.
type Lease struct {
	IPv4 netip.Addr `json:"ipv4,omitzero"` // zero without an IPv4 address
	IPv6 netip.Addr `json:"ipv6,omitzero"` // zero without an IPv6 address
	introspect.Origin
	// Uplink is the number of the uplink that carries the addresses; 0: the node's
	// own. Records have it under the name that it had when all were ENIs.
	Uplink int `json:"deviceIndex,omitempty"`
}

// Empty tells that no address is leased.
func (l Lease) Empty() bool { return !l.IPv4.IsValid() && !l.IPv6.IsValid() }

// Addrs returns the addresses that are set, IPv4 first.
func (l Lease) Addrs() []netip.Addr {
	var out []netip.Addr
	for _, a := range [...]netip.Addr{l.IPv4, l.IPv6} {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}
