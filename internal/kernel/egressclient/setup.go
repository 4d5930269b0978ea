package egressclient

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// Setup is the desired egress state of a pod.
type Setup struct {
	// Link is the pod's own interface, by which the tunnels' packets leave.
	Link string
	// MTU is the MTU of Link in bytes; 0: the kernel's value.
	MTU int
	// Addrs are the pod's own addresses on Link, at most one of each family. They are the tunnels' ends; a family
	// without an address has no tunnels.
	Addrs []netip.Addr
	// NodeLocal is an address of a family that Addrs does not have, with which the pod reaches that family through
	// its node; zero: none. Tunnels cannot use it, so destinations of Egresses in the family are unreachable, and
	// packets do not bypass the gateways.
	NodeLocal netip.Addr
	// Others are addresses of the pod's further interfaces. Packets from them do not use Egresses.
	Others []netip.Addr
	// Port is the UDP port of Foo over UDP.
	Port uint16
	// ClusterNetworks are exempt from the default route of an Egress.
	ClusterNetworks []netip.Prefix
	// Adopted reports that another network made the pod, which may have tunnels of Coil.
	Adopted bool
	// Egresses are the Egresses that the pod uses. If empty, nothing is set up.
	Egresses []Egress
}

// Egress is an Egress that a pod uses.
type Egress struct {
	// Name is namespace/name.
	Name string
	// Destinations are reached through the gateways. 0.0.0.0/0 and ::/0 may contain destinations of
	// other Egresses; otherwise destinations do not overlap.
	Destinations []netip.Prefix
	// Gateways are all gateways, including terminating ones. If the Egress has a Service only their addresses matter.
	Gateways []Gateway
	// Service has the addresses of the Service, one of each family, if tunnels lead to it.
	Service []netip.Addr
	// SourcePortAuto derives the tunnels' UDP source port from the inner packet. A pod has one tunnel device of each
	// family, which does so if any of its Egresses has SourcePortAuto.
	SourcePortAuto bool
	// OriginatingOnly exempts replies of connections from outside.
	OriginatingOnly bool
}

// Gateway is a pod of an Egress.
type Gateway struct {
	// ID is 1 to 255, and unique among the gateways of all of the pod's Egresses without a Service. It is part of
	// the mark and of the number of the routing table. It must not change, as connections are marked with it.
	ID int
	// Addrs are its addresses, at most one of each family.
	Addrs []netip.Addr
	// Ending reports that the gateway serves its existing connections and takes no new ones.
	Ending bool
	// Chosen reports that new connections may use it.
	Chosen bool
}

// Validate returns an error with all invalid fields.
func (s Setup) Validate() error {
	if len(s.Egresses) == 0 {
		return nil
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !rtnl.ValidName(s.Link) {
		bad("Link %q is not the name of a link", s.Link)
	}
	if s.Port == 0 {
		bad("Port is 0, expected a UDP port")
	}
	if len(s.Addrs) == 0 {
		bad("Addrs is empty, expected an address of each family of the pod")
	}
	if !tunnel.OneOfFamily(s.Addrs) {
		bad("Addrs %v: expected one address of a family", s.Addrs)
	}
	if s.MTU != 0 {
		errs = append(errs, s.checkMTU(s.MTU))
	}
	owner := map[int]string{}
	names := map[string]bool{}
	for _, e := range s.Egresses {
		if names[e.Name] {
			bad("Egresses: %s is listed twice", e.Name)
		}
		names[e.Name] = true
		errs = append(errs, e.validate(owner))
	}
	return errors.Join(errs...)
}

func (e Egress) validate(owner map[int]string) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("Egress "+e.Name+": "+format, args...))
	}
	for _, d := range e.Destinations {
		if !tunnel.IsNetwork(d) {
			bad("destination %s is not a CIDR without host bits", d)
		}
	}
	if !tunnel.OneOfFamily(e.Service) {
		bad("Service %v: expected one address of a family", e.Service)
	}
	for _, g := range e.Gateways {
		if !tunnel.OneOfFamily(g.Addrs) {
			bad("gateway %d has addresses %v, expected one of a family", g.ID, g.Addrs)
		}
		if len(e.Service) > 0 {
			continue
		}
		if g.ID < 1 || g.ID > maxGateway {
			bad("a gateway has ID %d, expected 1 to %d", g.ID, maxGateway)
		}
		if other, taken := owner[g.ID]; taken {
			bad("a gateway has ID %d, as one of %s has", g.ID, other)
		}
		owner[g.ID] = e.Name
	}
	return errors.Join(errs...)
}

// checkMTU returns an error if an MTU is too small for tunnels. IPv6 needs 1280 bytes within the tunnel (RFC 8200,
// section 5), IPv4 68 (RFC 791).
func (s Setup) checkMTU(mtu int) error {
	for _, a := range s.Addrs {
		least := 68
		if rtnl.IsIPv6(a) {
			least = tunnel.MinMTU6
		}
		if inner := tunnel.MTU(mtu, a); inner < least {
			return fmt.Errorf("MTU of %d bytes leaves %d in a tunnel from %s, expected at least %d", mtu, inner, a, least)
		}
	}
	return nil
}

// sorted returns the Setup with sorted lists, so that the result does not depend on their order.
func (s Setup) sorted() Setup {
	s.Egresses = slices.Clone(s.Egresses)
	slices.SortFunc(s.Egresses, func(a, b Egress) int { return cmp.Compare(a.Name, b.Name) })
	for i, e := range s.Egresses {
		s.Egresses[i].Gateways = slices.Clone(e.Gateways)
		slices.SortStableFunc(s.Egresses[i].Gateways, func(a, b Gateway) int { return cmp.Compare(a.ID, b.ID) })
	}
	return s
}
