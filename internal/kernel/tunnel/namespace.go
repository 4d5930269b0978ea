package tunnel

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Namespace is the network namespace of a client or gateway, with sockets to it.
type Namespace struct {
	Path string // empty: the process's own
	NL   *netlink.Handle

	ns  netns.NsHandle   // not open: the process's own, which cannot be entered without CAP_SYS_ADMIN (setns(2))
	raw *nl.SocketHandle // NETLINK_ROUTE socket for requests that the library lacks; opened on demand
}

// Open opens the network namespace at a path. It changes nothing. Entering a namespace, even the process's own, needs
// CAP_SYS_ADMIN (setns(2)). more are netlink families that NL speaks in addition to those that this package needs.
// Errors: rtnl.ErrNoNetns, rtnl.ErrNotNetns.
func Open(path string, more ...int) (*Namespace, error) {
	ns, err := rtnl.OpenNetns(path)
	if err != nil {
		return nil, err
	}
	h, err := netlink.NewHandleAt(ns, append(more, sockets...)...)
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("open netlink sockets in %s: %w", path, err)
	}
	return &Namespace{Path: path, NL: h, ns: ns}, nil
}

// OpenOwn opens the network namespace of the process, where changes need CAP_NET_ADMIN only. It changes nothing.
func OpenOwn(more ...int) (*Namespace, error) {
	h, err := netlink.NewHandle(append(more, sockets...)...)
	if err != nil {
		return nil, fmt.Errorf("open netlink sockets: %w", err)
	}
	return &Namespace{NL: h, ns: netns.None()}, nil
}

// sockets are the netlink families that the functions of this package use.
var sockets = []int{unix.NETLINK_ROUTE, unix.NETLINK_GENERIC}

// Close closes the sockets. The namespace stays as it is.
func (n *Namespace) Close() {
	n.NL.Close()
	if n.raw != nil {
		n.raw.Close()
	}
	if n.ns.IsOpen() {
		_ = n.ns.Close()
	}
}

// Inside runs f in the namespace.
func (n *Namespace) Inside(f func() error) error {
	if !n.ns.IsOpen() {
		return f()
	}
	return rtnl.InNetns(n.ns, f)
}

// FD is the namespace's file descriptor for netlink libraries; 0 for the process's own.
func (n *Namespace) FD() int {
	if !n.ns.IsOpen() {
		return 0
	}
	return int(n.ns)
}

// NFTables opens a connection to nftables in the namespace.
func (n *Namespace) NFTables(options ...nftables.ConnOption) (*nftables.Conn, error) {
	if n.ns.IsOpen() {
		options = append(options, nftables.WithNetNSFd(int(n.ns)))
	}
	conn, err := nftables.New(options...)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return conn, nil
}

// IPv4Setting is an IPv4 setting of a link. Changes by netlink need CAP_NET_ADMIN only, while /proc/sys is read-only in
// a container that is not privileged.
type IPv4Setting struct {
	inConfig  int    // IPV4_DEVCONF_… (linux/ip.h)
	inMessage uint16 // NETCONFA_… (linux/netconf.h)
}

// The settings.
var (
	RPFilter   = IPv4Setting{inConfig: 8, inMessage: 3}
	Forwarding = IPv4Setting{inConfig: 1, inMessage: 2}
)

// AllLinks is the index of the settings of all links in GetIPv4Setting.
const AllLinks = -1

// Attributes of linux/if_link.h and linux/netconf.h.
const (
	inetConf         = 1 // IFLA_INET_CONF
	netconfIndex     = 1 // NETCONFA_IFINDEX
	sizeofNetconfmsg = 4 // struct netconfmsg: the family, padded
)

type netconfmsg struct{}

func (netconfmsg) Len() int          { return sizeofNetconfmsg }
func (netconfmsg) Serialize() []byte { return []byte{unix.AF_INET, 0, 0, 0} }

// SetIPv4Setting changes a setting of a link.
func (n *Namespace) SetIPv4Setting(link int, s IPv4Setting, value uint32) error {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil).AddRtAttr(s.inConfig, nl.Uint32Attr(value))
	_, err := n.request(unix.RTM_SETLINK, unix.NLM_F_ACK, msg, spec)
	return err
}

// GetIPv4Setting reads a setting of a link, or of AllLinks.
func (n *Namespace) GetIPv4Setting(link int, s IPv4Setting) (uint32, error) {
	replies, err := n.request(unix.RTM_GETNETCONF, 0, netconfmsg{}, nl.NewRtAttr(netconfIndex, nl.Uint32Attr(uint32(link))))
	if err != nil {
		return 0, fmt.Errorf("read the IPv4 settings of link %d: %w", link, err)
	}
	for _, m := range replies {
		attrs, err := nl.ParseRouteAttr(m[sizeofNetconfmsg:])
		if err != nil {
			return 0, fmt.Errorf("read the IPv4 settings of link %d: %w", link, err)
		}
		for _, a := range attrs {
			if a.Attr.Type == s.inMessage && len(a.Value) == 4 {
				return nl.NativeEndian().Uint32(a.Value), nil
			}
		}
	}
	return 0, fmt.Errorf("the kernel's IPv4 settings of link %d lack attribute %d", link, s.inMessage)
}

// request sends a message of NETLINK_ROUTE.
func (n *Namespace) request(kind, flags int, parts ...nl.NetlinkRequestData) ([][]byte, error) {
	socket, err := n.rawSocket()
	if err != nil {
		return nil, err
	}
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: socket}
	for _, p := range parts {
		req.AddData(p)
	}
	return req.Execute(unix.NETLINK_ROUTE, 0)
}

// RemoveDevices removes the devices of tunnels of the given families together. It ignores missing ones.
func (n *Namespace) RemoveDevices(families ...int) error {
	socket, err := n.rawSocket()
	if err != nil {
		return err
	}
	var names []string
	for _, f := range families {
		names = append(names, LinkOf(f))
	}
	_, err = rtnl.RemoveLinks(socket, rtnl.RemovedTunnelGroup, names)
	return err
}

func (n *Namespace) rawSocket() (*nl.SocketHandle, error) {
	if n.raw == nil {
		socket, err := nl.GetNetlinkSocketAt(n.ns, netns.None(), unix.NETLINK_ROUTE)
		if err != nil {
			return nil, fmt.Errorf("open netlink: %w", err)
		}
		n.raw = &nl.SocketHandle{Socket: socket}
	}
	return n.raw, nil
}

// Families are the address families of tunnels.
var Families = []int{unix.AF_INET, unix.AF_INET6}

// Digit is the digit of a family's name: 4 or 6.
func Digit(family int) int {
	if family == unix.AF_INET6 {
		return 6
	}
	return 4
}

// LinkOf is the name of a family's tunnel device.
func LinkOf(family int) string {
	if family == unix.AF_INET6 {
		return Link6
	}
	return Link4
}

// AddrOf is the first address of a family; invalid if there is none.
func AddrOf(addrs []netip.Addr, family int) netip.Addr {
	for _, a := range addrs {
		if rtnl.FamilyOf(a) == family {
			return a
		}
	}
	return netip.Addr{}
}

// OneOfFamily reports whether there is at most one address of each family, and all are usable on a wire.
func OneOfFamily(addrs []netip.Addr) bool {
	count := map[int]int{}
	for _, a := range addrs {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
			return false
		}
		count[rtnl.FamilyOf(a)]++
	}
	return count[unix.AF_INET] <= 1 && count[unix.AF_INET6] <= 1
}

// IsNetwork reports whether a prefix is one of IPv4 or IPv6 without host bits.
func IsNetwork(p netip.Prefix) bool { return p.IsValid() && !p.Addr().Is4In6() && p == p.Masked() }
