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
	"github.com/berthnet/berth/internal/kernel/plug/hostlink"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// settings manages the sysctls of branches and the addresses of VLAN links in the node's namespace.
type settings struct{ node *hostlink.Node }

// sysctls are the sysctls of a branch (https://docs.kernel.org/networking/ip-sysctl.html).
//
// In mode strict, reverse path filtering (rp_filter) uses the rules for the packet's mark
// (src_valid_mark). Packets from the pod to sockets of the node must leave by the VLAN first, so
// early demultiplexing is off (tcp_early_demux, udp_early_demux): the kernel drops packets that
// have been assigned to a socket and are then forwarded.
//
// With IPv6 addresses, IPv6 is on for both links, even if the node turns it off for new links.
// Router advertisements of the VPC's router are ignored, so that it does not become the node's
// default router.
func (b branch) sysctls() (list []rtnl.Sysctl) {
	if b.enforcing == plug.Strict {
		if b.has(unix.AF_INET) {
			list = append(list, rtnl.Sysctl{Path: "net/ipv4/conf/" + b.pod + "/src_valid_mark", Value: "1"}, rtnl.Sysctl{Path: "net/ipv4/conf/" + b.vlan + "/src_valid_mark", Value: "1"})
		}
		// These two apply to both IP families.
		list = append(list, rtnl.Sysctl{Path: "net/ipv4/tcp_early_demux", Value: "0"}, rtnl.Sysctl{Path: "net/ipv4/udp_early_demux", Value: "0"})
	}
	if b.has(unix.AF_INET6) {
		for _, link := range []string{b.pod, b.vlan} {
			list = append(list, rtnl.Sysctl{Path: "net/ipv6/conf/" + link + "/accept_ra", Value: "0"}, rtnl.Sysctl{Path: "net/ipv6/conf/" + link + "/disable_ipv6", Value: "0"})
		}
	}
	return list
}

// own6 adds a link-local address to the VLAN link, with which the node resolves the router's MAC address. The kernel's
// own link-local address is unusable for some seconds, and is not restored after a removal.
func (n *settings) own6(b branch, vlan *netlink.Vlan) error {
	if !b.has(unix.AF_INET6) {
		return nil
	}
	if err := rtnl.AddAddress(own6(vlan), vlan.Index, vlan.Name, n.node.NS, n.node.NL, n.node.Sysctls); err != nil {
		return fmt.Errorf("add address %s to %s: %w", own6(vlan).IPNet, vlan.Name, err)
	}
	return nil
}

// own6 is the link-local address. It is unique in the VPC, so it needs no duplicate address detection.
func own6(vlan *netlink.Vlan) *netlink.Addr {
	return &netlink.Addr{IPNet: rtnl.IPNet(netip.PrefixFrom(rtnl.LinkLocal(vlan.HardwareAddr), 64)), Flags: unix.IFA_F_NODAD}
}

// checkOwn6 adds a missing link-local address of the VLAN link to the differences.
func (n *settings) checkOwn6(b branch, vlan *netlink.Vlan, found *plug.Differences) error {
	if !b.has(unix.AF_INET6) {
		return nil
	}
	list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return n.node.NL.AddrList(rtnl.LinkRef(vlan.Index), unix.AF_INET6) })
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", vlan.Name, err)
	}
	if want := own6(vlan); !slices.ContainsFunc(list, func(a netlink.Addr) bool { return a.IP.Equal(want.IP) }) {
		found.Add("%s lacks its own address %s", vlan.Name, want.IPNet)
	}
	return nil
}

// set writes the sysctls of a branch. Its links must exist.
func (n *settings) set(b branch) error {
	return rtnl.InNetns(n.node.NS, func() error {
		for _, s := range b.sysctls() {
			if _, err := s.Set(n.node.Sysctls); err != nil {
				return err
			}
		}
		return nil
	})
}

// check adds changed sysctls to the differences.
func (n *settings) check(b branch, found *plug.Differences) error {
	return rtnl.InNetns(n.node.NS, func() error {
		for _, s := range b.sysctls() {
			now, right, err := s.Look(n.node.Sysctls)
			switch {
			case errors.Is(err, os.ErrNotExist): // its link is missing, which is reported separately
			case err != nil:
				return err
			case !right:
				found.Add("sysctl %s is %s", s, now)
			}
		}
		return nil
	})
}
