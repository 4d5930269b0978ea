package ovn

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/lab/network/ns"
)

const (
	underlay = "underlay" // the bridge that joins the nodes
	// underlayMTU leaves room for Geneve around the packets of networks (60 bytes with
	// IPv4), and veths allow it.
	underlayMTU = 1600
	maxNodes    = 250
)

// tunnelAddr is a node's address on the underlay, by its number.
func tunnelAddr(number int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 29, 0, byte(number)}), 24)
}

func (v *OVN) raiseUnderlay() error {
	return ns.Netlink(v.opts.Netns, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = underlay, underlayMTU
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		if err := h.LinkAdd(bridge); err != nil {
			return fmt.Errorf("make the bridge between nodes: %w", err)
		}
		return h.LinkSetUp(bridge)
	})
}

// join leads a link of the underlay to a namespace, where it is called as told.
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
			return fmt.Errorf("join %s to the underlay: %w", name, err)
		}
		return h.LinkSetUp(end)
	})
}
