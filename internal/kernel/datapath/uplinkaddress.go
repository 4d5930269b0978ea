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
// As a rule it is the ENI's own: ARP requests for the router come from it, and
// what kube-proxy masquerades on its way out there, which with any other source
// a VPC drops.
//
// When the ENI's own address is among those for pods, the link must not have
// it: the rule of priority 0 would take a pod's packets for the node's. But the
// link must not be without any address either: the kernel then drops whatever
// comes in by it unless rp_filter is off, which loose is not, and forgets the
// link's routes (Linux: __fib_validate_source, fib_disable_ip). So it gets a
// stand-in. ARP requests for the router then come from the primary address; a VPC
// answers whoever asks.

// standIn is the address that pods have for the node anyhow. With host scope
// the kernel never takes it for a source.
var standIn = gateway4

// ownForPods tells whether pods may have the ENI's own address.
func (e Uplink) ownForPods() bool {
	return e.PrimaryIPv4.IsValid() && slices.Contains(e.Addresses, e.PrimaryIPv4)
}

// linkAddress is what a secondary ENI's link should have; zero: nothing.
func (e Uplink) linkAddress() netip.Addr {
	if e.ownForPods() {
		return standIn
	}
	return e.PrimaryIPv4
}

// The IPv6 address of a secondary ENI's link, beside the link-local one.
//
// EC2 gives a secondary ENI none of its own, and the kernel masquerades what leaves by a link
// without one with the address of another: a VPC drops that, as when kube-proxy
// masquerades what a pod sends to a node port of its own node. So the link has the last
// address of a prefix of the ENI. No pod ever gets that: of a prefix the lowest
// addresses are handed out first, and a /80 has 2^48 of them. An ENI with single addresses
// only, of an instance type without prefixes, has none to spare.
//
// The address is deprecated (RFC 4862, section 5.5.4), so that the node takes its own for
// connections of its own, as to a pod; by this link it is taken all the same, as no other
// may be (use_oif_addrs_only).

// linkAddress6 is what a secondary ENI's link should have; zero: nothing.
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

// forever is a lifetime in seconds that does not end (rtnetlink, INFINITY_LIFE_TIME).
const forever = math.MaxUint32

// lastOf is the last address of a /80.
func lastOf(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().As16()
	for i := prefixBits6 / 8; i < len(a); i++ {
		a[i] = 0xff
	}
	return netip.AddrFrom16(a)
}

// isLastOfPrefix tells the addresses that setUplinkAddress6 gives to links.
func isLastOfPrefix(a netip.Addr) bool {
	return rtnl.IsIPv6(a) && a == lastOf(netip.PrefixFrom(a, prefixBits6))
}

// desiredAddresses are those of a secondary ENI's link in a family, given what it has.
//
// The IPv6 router's MAC address is asked from a link-local address (RFC 4861 section 4.3). The kernel makes one when a
// link comes up and never again, so whoever removes it cuts off the IPv6 of the ENI's pods once the router's MAC address is
// forgotten. Any link-local address will do.
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
	// No other machine of a VPC can have these addresses, so duplicate address detection is skipped.
	if e.hasIPv6() && !slices.ContainsFunc(observed, func(a netlink.Addr) bool { return a.IP.IsLinkLocalUnicast() }) {
		list = append(list, netlink.Addr{IPNet: rtnl.IPNet(netip.PrefixFrom(rtnl.LinkLocal(e.MAC), 64)), Flags: unix.IFA_F_NODAD})
	}
	if a := e.linkAddress6(); a.IsValid() {
		list = append(list, netlink.Addr{
			IPNet: rtnl.IPNet(rtnl.HostPrefix(a)), Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE,
			ValidLft: forever, // and preferred for no time
		})
	}
	return list
}

// mustGo tells whether an observed address that is not desired is one that pods may have, whoever added it, or that
// an earlier call added.
func (e Uplink) mustGo(a netlink.Addr) bool {
	ip := rtnl.AddrOf(a.IP)
	if ip.Is6() {
		return isLastOfPrefix(ip) && ip != e.linkAddress6()
	}
	want := e.linkAddress()
	return want.IsValid() && ip != want && (ip == e.PrimaryIPv4 || ip == standIn && a.Scope == int(netlink.SCOPE_HOST))
}

// addressKind describes the addresses of a link. The kernel has an IPv4 address more than once, with several prefix
// lengths, and one of IPv6 once.
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
			if err := e.slow.AddrAdd(e.link, &a); !errors.Is(err, unix.EEXIST) { // the kernel adds a link-local one too
				return err
			}
			return nil
		},
		Remove: func(a netlink.Addr) error { return e.slow.AddrDel(e.link, &a) },
	}
}

// setAddresses gives the link its addresses. It adds first: with its last IPv4 address a link loses
// its routes.
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

// A VPC delivers by an ENI what is sent to the ENI's own address, and takes by no other link what has this source. What the
// node itself sends from there looks up the ENI's table by a rule for this source. What gets this source only from the
// kernel's NAT, behind routing, needs the ENI's mark before: answers of pods to which a node port leads, and what others
// masquerade on its way out. So connections are noted: in their mark they have the number of the ENI that the
// first packet came in or left by, or notePrimary. Connections that began without Berth's table, with other mark bits or under a
// release without notes have none.

// own are the addresses of the ENI's link that no pod has and that others may send to.
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
