// Package rtnl contains the common parts of Berth's packages that program network namespaces: opening a namespace and
// running in it, comparing desired with observed objects (Kind), conversions for the netlink library, and the routes
// and rules of a pod with several interfaces. It keeps no state.
package rtnl

import (
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Whole repeats a dump that a change interrupted (NLM_F_DUMP_INTR) a few times, as objects may be missing from it.
func Whole[T any](dump func() ([]T, error)) ([]T, error) {
	for range 10 {
		list, err := dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return dump()
}

// LinkRef refers to a link by index without a look-up.
func LinkRef(index int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// IsNoLink reports whether an error means that a link does not exist.
func IsNoLink(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}

// IsGone reports whether an error means that a route, rule or address to remove did not exist.
func IsGone(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) ||
		errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// ValidName reports whether a link may have a name, as in the kernel's dev_valid_name.
func ValidName(name string) bool {
	return name != "" && len(name) <= 15 && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n\v\f\r\x00")
}

// FamilyOf is the address family of an address.
func FamilyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// IsIPv6 reports whether an address is IPv6, and not an IPv4-mapped one.
func IsIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }

// Unspecified is 0.0.0.0 or ::, depending on an address's family.
func Unspecified(a netip.Addr) netip.Addr {
	if IsIPv6(a) {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// ScopeFor is the scope of a route to an address. IPv6 routes have none.
func ScopeFor(a netip.Addr, scope netlink.Scope) netlink.Scope {
	if a.Is4() {
		return scope
	}
	return netlink.SCOPE_UNIVERSE
}

// LinkLocal is the IPv6 link-local address that the kernel derives from a link's MAC address (RFC 4291 appendix A).
func LinkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

// RouteDst is a route's destination; the default route is 0.0.0.0/0 or ::/0.
func RouteDst(r netlink.Route) netip.Prefix {
	if r.Dst == nil {
		if r.Family == unix.AF_INET6 {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	if !ok {
		return netip.Prefix{}
	}
	if r.Family != unix.AF_INET6 {
		addr = addr.Unmap()
	}
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(addr, bits)
}

// AddrOf converts an address of the netlink library; invalid if not set.
func AddrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// PrefixOf converts a prefix of the netlink library, with its host bits; invalid if not set.
func PrefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(AddrOf(n.IP), bits)
}

// HostPrefix is an address as a prefix of full length.
func HostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// IPNet converts for the netlink library. It keeps the host bits, which addresses of links need.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Errors that callers distinguish with errors.Is.
var (
	// ErrNoNetns: the network namespace does not exist, or no longer exists.
	ErrNoNetns = errors.New("network namespace does not exist")
	// ErrNotNetns: something else is at the path of a network namespace.
	ErrNotNetns = errors.New("is not a network namespace")
)

// Protocol marks every route and rule that Berth makes (rtnetlink's rtm_protocol and
// FRA_PROTOCOL).
const Protocol = 190

// Link groups (IFLA_GROUP): of the links of ports and branches (package plug), and of the devices of tunnels that are being
// removed. The groups of pod links start at Protocol times 2^16.
const (
	PortGroup          = Protocol<<16 - 1
	RemovedTunnelGroup = Protocol<<16 - 2
)
