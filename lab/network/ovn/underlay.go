package ovn

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
)

const (
	underlay = "underlay" // the bridge that connects the nodes
	// underlayMTU leaves space for Geneve around the packets of networks (60 bytes with IPv4). veths support it.
	underlayMTU = 1600
	maxNodes    = 250
)

// tunnelAddr returns a node's address on the underlay from its number.
func tunnelAddr(number int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 29, 0, byte(number)}), 24)
}

func (v *OVN) raiseUnderlay() error {
	err := ns.Netlink(v.opts.Netns, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = underlay, underlayMTU
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("create the bridge between nodes: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := ns.Do(v.opts.Netns, leaveAlone); err != nil {
		return fmt.Errorf("disable filtering on the bridge between nodes: %w", err)
	}
	return ns.Netlink(v.opts.Netns, func(h *netlink.Handle) error { return ns.LinkUp(h, underlay) })
}

// leaveAlone prevents a router's namespace from affecting packets on the bridge, by answering for the nodes (proxy ARP) or
// by filtering (br_netfilter, if the kernel has it).
func leaveAlone() error {
	off := []ns.Sysctl{{Name: "net/ipv4/conf/" + underlay + "/proxy_arp", Value: "0"}}
	for _, name := range []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if _, err := os.Stat("/proc/sys/" + name); err == nil {
			off = append(off, ns.Sysctl{Name: name, Value: "0"})
		}
	}
	return ns.SetSysctls(off...)
}

// join creates a link from the underlay to a namespace, called name there.
func (v *OVN) join(number int, netns, link string) error {
	return ns.Netlink(v.opts.Netns, func(h *netlink.Handle) error {
		name := fmt.Sprintf("tun%d", number)
		if err := ns.AddVeth(h, name, netns, link, nil, underlayMTU); err != nil {
			return err
		}
		end, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		bridge, err := h.LinkByName(underlay)
		if err != nil {
			return err
		}
		if err := h.LinkSetMaster(end, bridge); err != nil {
			return fmt.Errorf("connect %s to the underlay: %w", name, err)
		}
		return h.LinkSetUp(end)
	})
}
