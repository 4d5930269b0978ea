package routedvlan

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// settings are those of a branch (https://docs.kernel.org/networking/ip-sysctl.html).
//
// In mode strict the rules by which the kernel finds where a source is (rp_filter) are those of the packet's mark
// (src_valid_mark). And what a pod answers to the node's own sockets is on its way to the VLAN when it comes
// from the pod, and must not be given to them there: the kernel drops what has found a socket and is
// to be forwarded (tcp_early_demux, udp_early_demux).
//
// With addresses of IPv6 the links have it, also on a node that switches it off for new ones. The VPC's router
// advertises itself on the VLAN, and must not become the node's.
func (b branch) settings() (list []rtnl.Sysctl) {
	if b.enforcing == plug.Strict {
		if b.has(unix.AF_INET) {
			list = append(list, rtnl.Sysctl{Path: "net/ipv4/conf/" + b.pod + "/src_valid_mark", Value: "1"}, rtnl.Sysctl{Path: "net/ipv4/conf/" + b.vlan + "/src_valid_mark", Value: "1"})
		}
		// These two are of both families.
		list = append(list, rtnl.Sysctl{Path: "net/ipv4/tcp_early_demux", Value: "0"}, rtnl.Sysctl{Path: "net/ipv4/udp_early_demux", Value: "0"})
	}
	if b.has(unix.AF_INET6) {
		for _, link := range []string{b.pod, b.vlan} {
			list = append(list, rtnl.Sysctl{Path: "net/ipv6/conf/" + link + "/accept_ra", Value: "0"}, rtnl.Sysctl{Path: "net/ipv6/conf/" + link + "/disable_ipv6", Value: "0"})
		}
	}
	return list
}

// own6 gives the VLAN's link an address of its own by which the node asks the router for its MAC address. The kernel
// makes one too, which it does not use for seconds, and never again once somebody removed it.
func (p *Plugger) own6(b branch, vlan *netlink.Vlan) error {
	if !b.has(unix.AF_INET6) {
		return nil
	}
	if err := rtnl.AddAddress(own6(vlan), vlan.Index, vlan.Name, p.node.NS, p.node.NL, p.node.Sysctls); err != nil {
		return fmt.Errorf("add address %s to %s: %w", own6(vlan).IPNet, vlan.Name, err)
	}
	return nil
}

// own6 is that address. Nobody else in a VPC can have it, so that no duplicate is looked for.
func own6(vlan *netlink.Vlan) *netlink.Addr {
	return &netlink.Addr{IPNet: rtnl.IPNet(netip.PrefixFrom(rtnl.LinkLocal(vlan.HardwareAddr), 64)), Flags: unix.IFA_F_NODAD}
}

// checkOwn6 notes whether the VLAN's link lacks its own address.
func (p *Plugger) checkOwn6(b branch, vlan *netlink.Vlan, found *plug.Differences) error {
	if !b.has(unix.AF_INET6) {
		return nil
	}
	list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return p.node.NL.AddrList(rtnl.LinkRef(vlan.Index), unix.AF_INET6) })
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", vlan.Name, err)
	}
	if want := own6(vlan); !slices.ContainsFunc(list, func(a netlink.Addr) bool { return a.IP.Equal(want.IP) }) {
		found.Add("%s lacks its own address %s", vlan.Name, want.IPNet)
	}
	return nil
}

// set writes the settings of a branch whose links are there.
func (p *Plugger) set(b branch) error {
	return rtnl.InNetns(p.node.NS, func() error {
		for _, s := range b.settings() {
			if _, err := s.Set(p.node.Sysctls); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkSettings finds settings that somebody has changed.
func (p *Plugger) checkSettings(b branch, found *plug.Differences) error {
	return rtnl.InNetns(p.node.NS, func() error {
		for _, s := range b.settings() {
			now, right, err := s.Look(p.node.Sysctls)
			switch {
			case errors.Is(err, os.ErrNotExist): // with its link, which is found to be missing itself
			case err != nil:
				return err
			case !right:
				found.Add("sysctl %s is %s", s, now)
			}
		}
		return nil
	})
}
