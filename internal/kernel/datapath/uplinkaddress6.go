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

// setUplinkAddress6 gives the link its address, and takes that of a prefix from it which the
// ENI has no more.
func (k *kernel) setUplinkAddress6(uplink Uplink, link netlink.Link, u VPC) (changed []string, err error) {
	if !u.ipv6() {
		return nil, nil
	}
	want, name := uplink.linkAddress6(), link.Attrs().Name
	have, err := rtnl.Whole(func() ([]netlink.Addr, error) { return k.slow.AddrList(link, unix.AF_INET6) })
	if err != nil {
		return nil, fmt.Errorf("list IPv6 addresses of %s: %w", name, err)
	}
	for _, a := range have {
		if ip, _ := netip.AddrFromSlice(a.IP); !isLastOfPrefix(ip) || ip == want {
			continue
		}
		if err := k.slow.AddrDel(link, &a); err != nil && !rtnl.IsGone(err) {
			return changed, fmt.Errorf("remove address %s from %s: %w", a.IPNet, name, err)
		}
		changed = append(changed, fmt.Sprintf("removed address %s of %s", a.IPNet, name))
	}
	if !want.IsValid() || slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(want.AsSlice()) }) {
		return changed, nil
	}
	// Nobody else in a VPC can have it, so that no duplicate is looked for.
	addr := &netlink.Addr{
		IPNet: rtnl.IPNet(rtnl.HostPrefix(want)), Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE,
		ValidLft: forever, // and preferred for no time
	}
	switch err := k.slow.AddrAdd(link, addr); {
	case err == nil:
		return append(changed, fmt.Sprintf("address %s of %s", want, name)), nil
	case errors.Is(err, unix.EACCES): // disable_ipv6: IPv4 works all the same
		return changed, nil
	default:
		return changed, fmt.Errorf("add address %s to %s: %w", want, name, err)
	}
}
