// Package tunnel makes the devices and UDP ports of egress tunnels in the network namespace of a client (package
// egressclient) or of a gateway (package egressgateway). Packets of pods are sent in UDP (Foo over UDP,
// https://lwn.net/Articles/614348/): IPv4 in IPv4 by a device of type ipip, IPv6 in IPv6 by one of type ip6tnl. Each
// side has one device for each family, without a fixed peer (remote any). It sends to the next hop of the route, or
// to the packet's destination if the route has none, and accepts packets from any address. nftables decides which
// senders are trusted.
package tunnel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Sizes of the headers that a tunnel puts before each packet, in bytes: IPv4 (RFC 791, without options)
// or IPv6 (RFC 8200), and UDP (RFC 768).
const (
	Overhead4 = 20 + 8
	Overhead6 = 40 + 8
)

// MinMTU6 is the minimum MTU of a link that carries IPv6, in bytes (RFC 8200, section 5).
const MinMTU6 = 1280

// hopLimit is the TTL of outer packets. For the inner packet the tunnel is one hop (RFC 2003, section 3.1).
const hopLimit = 64

// Tunnel is one family's end of the tunnels in a network namespace.
type Tunnel struct {
	// Local is this end's own address, the outer source of packets. It determines the tunnel's family.
	Local netip.Addr
	// MTU is the device's in bytes, as the function MTU computes it.
	MTU int
	// Port is the UDP port of Foo over UDP, at both ends.
	Port uint16
	// SourcePortAuto derives the outer source port from the inner packet's addresses and ports. Otherwise it is Port.
	SourcePortAuto bool
}

// MTU returns the MTU of a tunnel's device in bytes, given that of the link. of is an address of the tunnel's family.
func MTU(link int, of netip.Addr) int {
	if rtnl.IsIPv6(of) {
		return link - Overhead6
	}
	return link - Overhead4
}

// Link is the name of the tunnel's device.
func (t Tunnel) Link() string {
	return LinkOf(rtnl.FamilyOf(t.Local))
}

func (t Tunnel) sourcePort() uint16 {
	if t.SourcePortAuto {
		return 0
	}
	return t.Port
}

// device is the device for the netlink library.
func (t Tunnel) device() netlink.Link {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = t.Link(), t.MTU
	if rtnl.IsIPv6(t.Local) {
		return &netlink.Ip6tnl{
			LinkAttrs: attrs, Local: t.Local.AsSlice(), Remote: netip.IPv6Unspecified().AsSlice(), Ttl: hopLimit,
			Proto: unix.IPPROTO_IPV6, Flags: ignoreEncapLimit,
			EncapType: encapFoU, EncapFlags: encapChecksum6, EncapSport: t.sourcePort(), EncapDport: t.Port,
		}
	}
	return &netlink.Iptun{
		LinkAttrs: attrs, Local: t.Local.AsSlice(), Remote: netip.IPv4Unspecified().AsSlice(), Ttl: hopLimit, PMtuDisc: 1,
		Proto: unix.IPPROTO_IPIP, EncapType: encapFoU, EncapSport: t.sourcePort(), EncapDport: t.Port,
	}
}

// receiver is the port for the netlink library.
func (t Tunnel) receiver() netlink.Fou {
	f := netlink.Fou{Family: rtnl.FamilyOf(t.Local), Port: int(t.Port), Protocol: unix.IPPROTO_IPIP, EncapType: netlink.FOU_ENCAP_DIRECT}
	if f.Family == unix.AF_INET6 {
		f.Protocol = unix.IPPROTO_IPV6
	}
	return f
}

// Constants of linux/if_tunnel.h and linux/ip6_tunnel.h that the netlink library lacks.
const (
	encapFoU         = 1          // TUNNEL_ENCAP_FOU
	encapChecksum6   = 2          // TUNNEL_ENCAP_FLAG_CSUM6: the receiver rejects UDP over IPv6 without a checksum (RFC 8200, section 8.1)
	stateFlags       = 0xffff0000 // IP6_TNL_F_CAP_XMIT and above, the kernel's own
	ignoreEncapLimit = 1          // IP6_TNL_F_IGN_ENCAP_LIMIT: no destination option before the inner packet (RFC 2473, section 4.1)
)

// ErrNoFoU: the kernel lacks Foo over UDP, or the device types ipip or ip6tnl. The error that wraps it names the
// module to load.
var ErrNoFoU = errors.New("the kernel does not support egress tunnels")

// Names of the tunnel devices, one of a family, in the network namespaces of clients and of
// gateways.
const (
	Link4 = "berth-egress4"
	Link6 = "berth-egress6"
)

// Table is the name of the nftables table (family inet) of Berth's egress on both sides.
const Table = "berth-egress"

// Supported returns ErrNoFoU if the kernel cannot receive FoU. The kernel loads the module if it exists. Missing
// device types are detected only when a device is added (Ensure).
func Supported() error {
	if _, err := netlink.GenlFamilyGet(netlink.FOU_GENL_NAME); err != nil {
		return noFoU(err, "fou")
	}
	return nil
}

// noFoU wraps the kernel's error for an unknown generic netlink family or link type with ErrNoFoU.
func noFoU(err error, module string) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("%w: module %s is missing (modprobe %s on the node): %w", ErrNoFoU, module, module, err)
	}
	return err
}

// noDevice does the same for a device: EOPNOTSUPP means an unknown link type, EINVAL an unknown encapsulation, as no
// other attribute can be invalid.
func noDevice(err error, link netlink.Link) error {
	device, encap := "ipip", "fou"
	if link.Type() == "ip6tnl" {
		device, encap = "ip6_tunnel", "fou6"
	}
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: module %s is missing (modprobe %s on the node): %w", ErrNoFoU, encap, encap, err)
	}
	return noFoU(err, device)
}
