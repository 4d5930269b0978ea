package datapath

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// The address of a secondary ENI's link.
//
// Usually it is the ENI's own, which is the source of ARP requests for the router and of packets that kube-proxy
// masquerades. A VPC drops packets with any other source.
//
// If the ENI's own address is for pods, the link must not have it: the rule of priority 0 would deliver the pod's
// packets to the node. But without any address the kernel drops all packets from the link, even with loose rp_filter,
// and removes the link's routes (Linux: __fib_validate_source, fib_disable_ip). So the link gets standIn. ARP
// requests for the router then come from the primary address, which a VPC answers too.

// standIn is the gateway of pods, which no machine has. With host scope the kernel never uses it as a source.
var standIn = gateway4

// ownForPods reports whether pods may have the ENI's own address.
func (e Uplink) ownForPods() bool {
	return e.PrimaryIPv4.IsValid() && slices.Contains(e.Addresses, e.PrimaryIPv4)
}

// linkAddress is the IPv4 address of a secondary ENI's link; zero: none.
func (e Uplink) linkAddress() netip.Addr {
	if e.ownForPods() {
		return standIn
	}
	return e.PrimaryIPv4
}

// The IPv6 address of a secondary ENI's link, beside the link-local one.
//
// EC2 assigns none to a secondary ENI. From a link without one, the kernel masquerades packets with the address of
// another link, as when a pod sends to a node port of its own node, and a VPC drops these. So the link gets the last
// address of a prefix of the ENI. Pods never get it: the lowest addresses of a prefix are handed out first, and a /80
// has 2^48. An ENI with single addresses only, as on instance types without prefixes, has no address to spare.
//
// The address is deprecated (RFC 4862, section 5.5.4), so that the node prefers its primary address for its own
// connections, as to a pod. By this link the kernel uses it nevertheless, as use_oif_addrs_only allows no other.

// linkAddress6 is the IPv6 address of a secondary ENI's link; zero: none.
func (e Uplink) linkAddress6() netip.Addr {
	var first netip.Prefix
	for _, p := range e.Prefixes {
		if p.Addr().Is6() && (!first.IsValid() || p.Addr().Less(first.Addr())) {
			first = p
		}
	}
	if !first.IsValid() {
		return netip.Addr{}
	}
	return lastOf(first)
}

// forever is an infinite lifetime (rtnetlink, INFINITY_LIFE_TIME).
const forever = math.MaxUint32

// lastOf is the last address of a /80.
func lastOf(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().As16()
	for i := prefixBits6 / 8; i < len(a); i++ {
		a[i] = 0xff
	}
	return netip.AddrFrom16(a)
}

// isLastOfPrefix reports whether an address is one that linkAddress6 returns.
func isLastOfPrefix(a netip.Addr) bool {
	return rtnl.IsIPv6(a) && a == lastOf(netip.PrefixFrom(a, prefixBits6))
}

// desiredAddresses returns the addresses that a secondary ENI's link should have in a family, given its current ones.
//
// The node solicits the IPv6 router's MAC address from a link-local address (RFC 4861 section 4.3). The kernel adds
// one only when a link comes up. Without it, IPv6 of the ENI's pods stops when the router's neighbour entry expires.
// Any link-local address will do.
func (e Uplink) desiredAddresses(family int, observed []netlink.Addr) (list []netlink.Addr) {
	if family == unix.AF_INET {
		if a := e.linkAddress(); a.IsValid() {
			list = append(list, netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(a)), Flags: unix.IFA_F_NOPREFIXROUTE})
			if a == standIn {
				list[0].Scope = int(netlink.SCOPE_HOST)
			}
		}
		return list
	}
	// No other machine in a VPC can have these addresses, so duplicate address detection is skipped.
	if e.hasIPv6() && !slices.ContainsFunc(observed, func(a netlink.Addr) bool { return a.IP.IsLinkLocalUnicast() }) {
		list = append(list, netlink.Addr{IPNet: rtnl.IPNet(netip.PrefixFrom(rtnl.LinkLocal(e.MAC), 64)), Flags: unix.IFA_F_NODAD})
	}
	if a := e.linkAddress6(); a.IsValid() {
		list = append(list, netlink.Addr{
			IPNet: rtnl.IPNet(rtnl.HostPrefix(a)), Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE,
			ValidLft: forever, // the preferred lifetime is 0
		})
	}
	return list
}

// mustGo reports whether an observed, not desired address is for pods, or was added by an earlier call.
func (e Uplink) mustGo(a netlink.Addr) bool {
	ip := rtnl.AddrOf(a.IP)
	if ip.Is6() {
		return isLastOfPrefix(ip) && ip != e.linkAddress6()
	}
	want := e.linkAddress()
	return want.IsValid() && ip != want && (ip == e.PrimaryIPv4 || ip == standIn && a.Scope == int(netlink.SCOPE_HOST))
}

// addressKind describes the addresses of the link. A link may have an IPv4 address several times, with different
// prefix lengths, and an IPv6 address once.
func (e secondaryENI) addressKind() rtnl.Kind[netlink.Addr, netip.Prefix] {
	return rtnl.Kind[netlink.Addr, netip.Prefix]{
		Key: func(a netlink.Addr) netip.Prefix {
			if p := rtnl.PrefixOf(a.IPNet); p.Addr().Is4() {
				return p
			}
			return rtnl.HostPrefix(rtnl.AddrOf(a.IP))
		},
		Name: func(a netlink.Addr) string {
			p := rtnl.PrefixOf(a.IPNet)
			if p.IsSingleIP() {
				return fmt.Sprintf("address %s of %s", p.Addr(), e.link.Attrs().Name)
			}
			return fmt.Sprintf("address %s of %s", p, e.link.Attrs().Name)
		},
		Add: func(a netlink.Addr) error {
			if err := e.slow.AddrAdd(e.link, &a); !errors.Is(err, unix.EEXIST) { // the kernel may add the link-local one at the same time
				return err
			}
			return nil
		},
		Remove: func(a netlink.Addr) error { return e.slow.AddrDel(e.link, &a) },
	}
}

// setAddresses sets the addresses of the link. It adds first: a link without IPv4 addresses loses its routes.
func (e secondaryENI) setAddresses() (changed []string, err error) {
	for _, family := range families(e.vpc) {
		have, err := e.addresses(e.link, family)
		if err != nil {
			return changed, err
		}
		kind := e.addressKind()
		d := kind.Compare(e.desiredAddresses(family, have), have)
		added, err := kind.Set(d)
		changed = append(changed, added...)
		if family == unix.AF_INET6 && errors.Is(err, unix.EACCES) {
			err = nil // disable_ipv6 is set; IPv4 works nevertheless
		}
		if err != nil {
			return changed, err
		}
		removed, err := kind.RemoveAll(slices.DeleteFunc(d.Extra, func(a netlink.Addr) bool { return !e.mustGo(a) }))
		changed = append(changed, removed...)
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// A VPC delivers packets to an ENI's own address by that ENI, and drops packets with this source from any other.
// Packets of the node itself from this address use the ENI's table by a rule for the source. Other packets get this
// source from the kernel's NAT, after routing: replies of pods behind a node port, and packets that other software
// masquerades. They need the ENI's mark before that. So each connection's mark has the number of the ENI by which its
// first packet came in or left, or notePrimary. Connections that started without Berth's table, with other mark bits
// or under a release without these marks have none.

// own are the addresses of the ENI's link. They are not for pods.
func (e Uplink) own(u VPC) uplinkEntries {
	m := uplinkEntries{}
	if e.PrimaryIPv4.IsValid() && !e.ownForPods() {
		m[rtnl.HostPrefix(e.PrimaryIPv4)] = e.Number
	}
	if a := e.linkAddress6(); u.ipv6() && a.IsValid() {
		m[rtnl.HostPrefix(a)] = e.Number
	}
	return m
}
