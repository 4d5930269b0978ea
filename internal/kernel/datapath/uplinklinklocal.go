package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// setUplinkLinkLocal gives the link of a secondary ENI the address that the kernel
// asks the IPv6 router's MAC from (RFC 4861 section 4.3). The kernel makes one
// when a link comes up and never again: whoever flushes the link's addresses
// would cut off the IPv6 of its pods once the router's MAC is forgotten. Another
// one that is there does as well. Nobody else in a VPC can have it, so that no
// duplicate is looked for.
func (k *kernel) setUplinkLinkLocal(uplink Uplink, link netlink.Link, u VPC) (changed []string, err error) {
	if !u.ipv6() || !uplink.hasIPv6() {
		return nil, nil
	}
	name := link.Attrs().Name
	have, err := rtnl.Whole(func() ([]netlink.Addr, error) { return k.slow.AddrList(link, unix.AF_INET6) })
	if err != nil {
		return nil, fmt.Errorf("list IPv6 addresses of %s: %w", name, err)
	}
	if slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.IsLinkLocalUnicast() }) {
		return nil, nil
	}
	own := rtnl.LinkLocal(uplink.MAC)
	switch err := k.slow.AddrAdd(link, &netlink.Addr{IPNet: rtnl.IPNet(netip.PrefixFrom(own, 64)), Flags: unix.IFA_F_NODAD}); {
	case err == nil:
		return []string{fmt.Sprintf("address %s of %s", own, name)}, nil
	case errors.Is(err, unix.EEXIST): // the kernel was faster
		return nil, nil
	case errors.Is(err, unix.EACCES): // disable_ipv6: IPv4 works all the same
		return nil, nil
	default:
		return nil, fmt.Errorf("add address %s to %s: %w", own, name, err)
	}
}
