package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// The kernel delivers packets to an address of the node's links locally, before it looks up any route. A pod with the
// same address is unreachable.

// NodeAddress is an address of one of the node's links that Berth did not add.
type NodeAddress struct {
	Addr netip.Addr
	Link string
	// Own tells that the node may need the address, so that it is never removed: a primary address, or one on a link
	// of the default route that no ENI has for pods.
	Own bool
}

// String is such as "10.0.0.7 on eth1".
func (a NodeAddress) String() string { return a.Addr.String() + " on " + a.Link }

// NodeAddresses lists the addresses that no pod of the node can use, sorted: those of all links except those that
// Berth added. It leaves out loopback and IPv6 link-local addresses, which pods never have.
func (n *Node) NodeAddresses(ctx context.Context) ([]NodeAddress, error) {
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	var found []NodeAddress
	err := nodeAddresses{n}.each(func(a NodeAddress, _ netlink.Addr) error {
		found = append(found, a)
		return nil
	})
	slices.SortFunc(found, func(a, b NodeAddress) int { return a.Addr.Compare(b.Addr) })
	return found, err
}

// RemoveNodeAddress removes an address that NodeAddresses lists from the node's links, unless it is Own. It succeeds
// if the address is already gone.
func (n *Node) RemoveNodeAddress(ctx context.Context, addr netip.Addr) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	return nodeAddresses{n}.each(func(a NodeAddress, has netlink.Addr) error {
		if a.Addr != addr || a.Own {
			return nil
		}
		if err := n.slow.AddrDel(rtnl.LinkRef(has.LinkIndex), &has); err != nil && !rtnl.IsGone(err) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s: %w", a, err)
		}
		return nil
	})
}

// nodeAddresses reads the addresses of a node's links.
type nodeAddresses struct{ node *Node }

func (t nodeAddresses) each(do func(NodeAddress, netlink.Addr) error) error {
	links, err := t.node.links()
	if err != nil {
		return err
	}
	of := map[int]*netlink.LinkAttrs{}
	for _, l := range links {
		if l.Attrs().Name == servicesLink {
			continue
		}
		of[l.Attrs().Index] = l.Attrs()
	}
	uplinks := t.node.uplinks.list()
	own, err := t.own(links, uplinks)
	if err != nil {
		return err
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return t.node.slow.AddrList(nil, family) })
		if isNoFamily(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s addresses: %w", familyName(family), err)
		}
		for _, has := range list {
			addr, _ := netip.AddrFromSlice(has.IP)
			addr = addr.Unmap()
			link := of[has.LinkIndex]
			if link == nil || !mayBePods(addr) || slices.ContainsFunc(uplinks, func(e Uplink) bool {
				return !e.Primary && string(e.MAC) == string(link.HardwareAddr) && addr == e.linkAddress()
			}) {
				continue
			}
			if err := do(NodeAddress{addr, link.Name, own(addr, link.Index)}, has); err != nil {
				return err
			}
		}
	}
	return nil
}

// servicesLink has the addresses of all Services when kube-proxy uses IPVS. These are not the node's own.
const servicesLink = "kube-ipvs0"

// own returns a function that reports whether the node may need an address on a link, given by its index. Before Setup
// it may need all.
func (t nodeAddresses) own(links []netlink.Link, uplinks []Uplink) (func(addr netip.Addr, link int) bool, error) {
	s := t.node.set.Load()
	if s == nil {
		return func(netip.Addr, int) bool { return true }, nil
	}
	defaults, err := s.config.Uplinks.links(t.node, links)
	if err != nil {
		return nil, err
	}
	vpc, _ := s.config.Uplinks.(VPC)
	return func(addr netip.Addr, link int) bool {
		if addr == vpc.PrimaryIPv4 || addr == vpc.PrimaryIPv6 {
			return true
		}
		for _, e := range uplinks {
			if addr == e.PrimaryIPv4 && (e.Primary || !e.ownForPods()) {
				return true
			}
		}
		return slices.ContainsFunc(defaults, func(l netlink.Link) bool { return l.Attrs().Index == link }) &&
			!slices.ContainsFunc(uplinks, func(e Uplink) bool { return e.lists(addr) })
	}, nil
}

// lists reports whether pods may have an address of the ENI.
func (e Uplink) lists(addr netip.Addr) bool {
	return slices.Contains(e.Addresses, addr) || slices.ContainsFunc(e.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// mayBePods reports whether a pod may have an address: not a loopback or IPv6 link-local one, nor one that Berth has
// for links (linkAddress, linkAddress6).
func mayBePods(a netip.Addr) bool {
	return a.IsValid() && !a.IsLoopback() && !(a.Is6() && a.IsLinkLocalUnicast()) && !isLastOfPrefix(a) && a != standIn
}
