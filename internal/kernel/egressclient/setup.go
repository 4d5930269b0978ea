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

// Setup is all that is to be set up in a pod.
type Setup struct {
	// Link is the pod's own interface, by which tunnels leave.
	Link string
	// MTU is that of Link in bytes; 0: as the kernel has it.
	MTU int
	// Addrs are the pod's own addresses on Link, one of a family: the tunnels' ends. Of a
	// family without one there are no tunnels.
	Addrs []netip.Addr
	// NodeLocal is an address of a family that the pod has none of in Addrs, by which it reaches
	// that family as its node; zero without. No tunnel begins there: destinations of
	// Egresses in the family are unreachable, rather than reached past the gateways.
	NodeLocal netip.Addr
	// Others are addresses of the pod's further interfaces: what comes from these keeps its
	// way.
	Others []netip.Addr
	// Port is the UDP port of Foo over UDP.
	Port uint16
	// ClusterNetworks keep their way although the default route of an Egress has them.
	ClusterNetworks []netip.Prefix
	// Egresses are those that the pod uses. Without any, nothing is set up.
	Egresses []Egress
}

// Egress is one of those that a pod uses.
type Egress struct {
	// Name is namespace/name.
	Name string
	// Destinations go by the gateways. 0.0.0.0/0 and ::/0 may contain those of other
	// Egresses; others do not overlap.
	Destinations []netip.Prefix
	// Gateways are those that there are, also those that are about to end. Of an Egress with
	// Service only their addresses matter.
	Gateways []Gateway
	// Service is the Service's addresses, one of a family, if tunnels lead there.
	Service []netip.Addr
	// SourcePortAuto has the tunnels' UDP source port follow from the inner packet. A pod has
	// one tunnel device of a family: it does so if one of the Egresses asks for it.
	SourcePortAuto bool
	// OriginatingOnly has answers to connections from outside keep their way.
	OriginatingOnly bool
}

// Gateway is a pod of an Egress.
type Gateway struct {
	// ID is 1 to 255, a number of its own among all gateways of all Egresses without Service
	// of the pod: its part of the mark, and of the number of its routing table. While it is
	// there it keeps its ID, as connections are marked with it.
	ID int
	// Addrs are its addresses, one of a family.
	Addrs []netip.Addr
	// Ending tells that it serves the connections that it has, and is given no new ones.
	Ending bool
	// Chosen tells that new connections may go by it.
	Chosen bool
}

// Validate tells what cannot be set up, by field.
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
			bad("Egresses: %s is there twice", e.Name)
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

// checkMTU: IPv6 needs 1280 bytes within the tunnel (RFC 8200, section 5); IPv4 68 (RFC 791).
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

// sorted is the same Setup with all lists in order, so that the same comes out of it.
func (s Setup) sorted() Setup {
	s.Egresses = slices.Clone(s.Egresses)
	slices.SortFunc(s.Egresses, func(a, b Egress) int { return cmp.Compare(a.Name, b.Name) })
	for i, e := range s.Egresses {
		s.Egresses[i].Gateways = slices.Clone(e.Gateways)
		slices.SortStableFunc(s.Egresses[i].Gateways, func(a, b Gateway) int { return cmp.Compare(a.ID, b.ID) })
	}
	return s
}
