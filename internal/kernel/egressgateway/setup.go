package egressgateway

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// Setup is all that a gateway is to be.
type Setup struct {
	// Link is the gateway's interface, to clients and to the outside.
	Link string
	// Addrs are its own addresses there, one of a family at most.
	Addrs []netip.Addr
	// Port is the UDP port of Foo over UDP.
	Port uint16
	// Destinations are the networks that clients may reach. Those of a family that the gateway has
	// no address of are left alone.
	Destinations []netip.Prefix
	// Clients are those that are served, and nobody else.
	Clients []Client
}

// Client is a pod that is served.
type Client struct {
	// UID tells it from another pod that has the address later.
	UID string
	// Addrs are its own, one of a family at most.
	Addrs []netip.Addr
}

// maxUID bounds a UID, which is an element's comment in the kernel (NFT_USERDATA_MAXLEN is 256).
const maxUID = 64

// ErrLeftOut tells that clients are not served that should be, as nobody can tell whose packets are theirs.
var ErrLeftOut = errors.New("clients are left out")

// Validate finds what cannot be set up, by field.
func (s Setup) Validate() error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !rtnl.ValidName(s.Link) {
		add("Link %q: expected the name of a network interface", s.Link)
	}
	if s.Port == 0 {
		add("Port 0: expected a UDP port")
	}
	if len(s.Addrs) == 0 {
		add("Addrs: expected the gateway's address of at least one family")
	}
	if !tunnel.OneOfFamily(s.Addrs) {
		add("Addrs %v: expected one address of a family", s.Addrs)
	}
	for _, a := range s.Addrs {
		if !isHost(a) {
			add("Addrs: %s is not the address of a host", a)
		}
	}
	for _, p := range s.Destinations {
		if !tunnel.IsNetwork(p) {
			add("Destinations: %s is not a network without host bits", p)
		}
	}
	_, err := members(s.Clients)
	return errors.Join(append(problems, err)...)
}

// isHost tells addresses that a pod may have.
func isHost(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && a.IsGlobalUnicast()
}

// members gives each address of clients its client's UID. Errors: an address of two clients, or one
// that is no host's; it is left out, and the others stand.
func members(clients []Client) (map[netip.Addr]string, error) {
	var problems []error
	of, twice := map[netip.Addr]string{}, map[netip.Addr]bool{}
	for _, c := range clients {
		if c.UID == "" || len(c.UID) > maxUID {
			problems = append(problems, fmt.Errorf("Clients: UID %q: expected 1 to %d characters", c.UID, maxUID))
			continue
		}
		for _, a := range c.Addrs {
			switch other, taken := of[a]; {
			case !isHost(a):
				problems = append(problems, fmt.Errorf("Clients: %s of client %s is not the address of a host", a, c.UID))
			case taken && other != c.UID:
				problems = append(problems, fmt.Errorf("Clients: %s is the address of client %s and of client %s", a, other, c.UID))
				twice[a] = true
			default:
				of[a] = c.UID
			}
		}
	}
	for a := range twice {
		delete(of, a) // nobody knows whose it is
	}
	if len(problems) > 0 {
		return of, fmt.Errorf("%w: %w", ErrLeftOut, errors.Join(problems...))
	}
	return of, nil
}

// change is what is to be done about clients' addresses.
type change struct {
	gone  []netip.Addr          // no more served: what they have of connections goes
	added map[netip.Addr]string // served from now on, with their UIDs
}

// compare tells how to come from the members that there are to those that there should be. An
// address that has another UID is another pod's now: it is gone, and added.
func compare(have, want map[netip.Addr]string) change {
	c := change{added: map[netip.Addr]string{}}
	for a, uid := range have {
		if want[a] != uid {
			c.gone = append(c.gone, a)
		}
	}
	for a, uid := range want {
		if have[a] != uid {
			c.added[a] = uid
		}
	}
	slices.SortFunc(c.gone, netip.Addr.Compare)
	return c
}

// own is the gateway's address of a family; invalid, if it has none.
func (s Setup) own(family int) netip.Addr { return tunnel.AddrOf(s.Addrs, family) }

// destinations are those of a family in order, without those that others contain: elements of an
// nftables set must not overlap.
func (s Setup) destinations(of int) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range s.Destinations {
		if rtnl.FamilyOf(p.Addr()) == of {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	kept := list[:0]
	for _, p := range list {
		if n := len(kept); n == 0 || !kept[n-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// tunnels are the gateway's, of each family that it has an address of, over a link with an MTU in
// bytes. Errors: a link that cannot carry IPv6 in a tunnel.
func (s Setup) tunnels(mtu int) ([]tunnel.Tunnel, error) {
	var list []tunnel.Tunnel
	for _, a := range s.Addrs {
		t := tunnel.Tunnel{Local: a, MTU: tunnel.MTU(mtu, a), Port: s.Port, SourcePortAuto: true}
		if rtnl.IsIPv6(a) && t.MTU < tunnel.MinMTU6 {
			return nil, fmt.Errorf("the MTU of %s is %d: IPv6 through tunnels needs at least %d", s.Link, mtu, tunnel.MinMTU6+tunnel.Overhead6)
		}
		list = append(list, t)
	}
	return list, nil
}
