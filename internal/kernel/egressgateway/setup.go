package egressgateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// Setup is the desired state of a gateway.
type Setup struct {
	// Link is the gateway's interface to clients and to the outside.
	Link string
	// Addrs are its own addresses there, at most one of each family.
	Addrs []netip.Addr
	// Port is the UDP port of Foo over UDP.
	Port uint16
	// Destinations are the networks that clients may reach. Those of a family that the gateway has no address of have
	// no effect.
	Destinations []netip.Prefix
	// Clients are all pods that are served.
	Clients []Client
}

// Client is a pod that is served.
type Client struct {
	// UID distinguishes it from another pod that gets the address later.
	UID string
	// Addrs are its own, at most one of each family.
	Addrs []netip.Addr
}

// maxUID is the maximum length of a UID, which is an element's comment in the kernel (NFT_USERDATA_MAXLEN is 256).
const maxUID = 64

// ErrLeftOut: some clients are not served, as their addresses are invalid or also another client's.
var ErrLeftOut = errors.New("clients are left out")

// Validate returns an error with all invalid fields.
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

// isHost reports whether a pod may have an address.
func isHost(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && a.IsGlobalUnicast()
}

// members maps the addresses of clients to UIDs. It leaves out invalid addresses and those of two clients, and
// returns an error about them (ErrLeftOut) with the others.
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
		delete(of, a) // it is ambiguous
	}
	if len(problems) > 0 {
		return of, fmt.Errorf("%w: %w", ErrLeftOut, errors.Join(problems...))
	}
	return of, nil
}

// change has the addresses of clients to remove and to add.
type change struct {
	gone  []netip.Addr          // no longer served: their connections end
	added map[netip.Addr]string // served from now on, with their UIDs
}

// compare compares observed members with the desired ones. An address with another UID is another pod's now: it is
// both gone and added.
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

// own is the gateway's address of a family; invalid: it has none.
func (s Setup) own(family int) netip.Addr { return tunnel.AddrOf(s.Addrs, family) }

// destinations are those of a family, as the elements of a set.
func (s Setup) destinations(of int) []netip.Prefix { return nft.Disjoint(s.Destinations, of) }

// tunnels are the gateway's, one for each of its addresses. mtu is that of its link in bytes. It returns an error if
// that is too small for IPv6 in a tunnel.
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
