package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// The router sends all packets for an ENI, whatever their address, to a neighbour with the ENI's MAC address.
// These neighbours only exist on the router's links.
var (
	toENI  = netip.MustParseAddr("169.254.0.2")
	toENI6 = netip.MustParseAddr("fe80::2")
)

// Attach attaches an ENI to a node: its link appears there, down and without an address, except that the primary
// ENI (device index 0) is configured as by a DHCP client. Attaching an attached ENI is an error. An ENI of type
// "efa-only" gets no link, because it does not carry IP traffic.
func (f *Fabric) Attach(node string, e vpc.ENI) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case e.Type == "efa-only":
		return nil
	case e.Attachment == nil:
		return fmt.Errorf("attach %s: it has no attachment", e.ID)
	case f.enis[e.ID] != nil:
		return fmt.Errorf("attach %s: it is attached to %s", e.ID, f.enis[e.ID].node)
	case !f.nodes[node]:
		return fmt.Errorf("attach %s: node %s does not exist", e.ID, node)
	}
	p := &plugged{eni: e.Clone(), node: node, link: f.router.newLink()}
	err := ns.AddVeth(f.router.rt, p.link, f.NodePath(node), linkName(e.Attachment), e.MAC, ENIMTU)
	if err == nil {
		err = f.plug(p)
	}
	if err == nil && e.Attachment.Primary() {
		err = f.lease(p, linkName(e.Attachment))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("attach %s to %s: %w", e.ID, node, err), f.unplug(p))
	}
	f.enis[e.ID] = p
	return nil
}

// linkName returns the name of an ENI's link in its node. The kernel names the interfaces of Nitro instances by
// slot: ens5, ens6, … on network card 0, and with the bus of another card enp1s5, enp1s6, ….
func linkName(a *vpc.Attachment) string {
	if a.NetworkCard == 0 {
		return fmt.Sprintf("ens%d", 5+a.DeviceIndex)
	}
	return fmt.Sprintf("enp%ds%d", a.NetworkCard, 5+a.DeviceIndex)
}

// plug configures and brings up the router's side of a new link.
func (f *Fabric) plug(p *plugged) error {
	if err := f.router.answerAtOnce(p.link); err != nil {
		return err
	}
	l, err := f.router.rt.LinkByName(p.link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", p.link, err)
	}
	p.idx = l.Attrs().Index
	_ = f.router.rt.LinkSetAlias(l, p.eni.ID+" on "+p.node) // for debugging
	if err := f.rules.add(f.nft, p, f.groups); err != nil {
		return err
	}
	for _, a := range []netip.Addr{Router6, VPCRouter6} {
		if err := ns.AddAddr(f.router.rt, l, netip.PrefixFrom(a, 64)); err != nil {
			return err
		}
	}
	if err := f.router.rt.LinkSetUp(l); err != nil {
		return fmt.Errorf("set link %s up: %w", p.link, err)
	}
	for _, a := range []netip.Addr{toENI, toENI6} {
		n := &netlink.Neigh{LinkIndex: p.idx, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: p.eni.MAC}
		if err := f.router.rt.NeighSet(n); err != nil {
			return fmt.Errorf("add neighbour %s on %s: %w", a, p.link, err)
		}
	}
	if err := f.answerNDP(p); err != nil {
		return err
	}
	for _, dst := range owned(p.eni) {
		if err := f.addRoute(p, dst); err != nil {
			return err
		}
	}
	return nil
}

// lease configures a primary ENI's link like a DHCP client: it sets the primary addresses and the IPv4 default
// route (none in an IPv6-only subnet), and brings the link up. DHCP does not provide the IPv6 default route
// (RFC 8415, section 4): the node's kernel takes it from the router's advertisement before lease returns, if it
// accepts any.
func (f *Fabric) lease(p *plugged, link string) error {
	s, err := f.opts.subnet(p.eni)
	if err != nil {
		return err
	}
	var addrs []netip.Prefix
	var via []netip.Addr
	if !s.IPv6Native() {
		addrs, via = append(addrs, netip.PrefixFrom(p.eni.Primary, s.CIDR.Bits())), append(via, RouterOf(s.CIDR))
	}
	if len(p.eni.IPv6) > 0 {
		addrs = append(addrs, netip.PrefixFrom(p.eni.IPv6[0], 128)) // DHCPv6 leases have no prefix (RFC 8415)
	}
	return ns.Netlink(f.NodePath(p.node), func(h *netlink.Handle) error {
		if err := ns.Configure(h, link, addrs, via); err != nil || len(p.eni.IPv6) == 0 {
			return err
		}
		if takes, err := takesAdverts(link); err != nil || !takes {
			return err
		}
		return f.adverts.until(p, func() (bool, error) { return hasDefault6(h, link) })
	})
}

// Detach detaches an ENI: its link disappears from the node, for a trunk together with its branches. Detaching an
// ENI that is not attached is not an error.
func (f *Fabric) Detach(eniID string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.enis[eniID]
	if p == nil {
		return nil
	}
	var errs []error
	for _, id := range f.attached() {
		if b := f.enis[id]; b.eni.Trunk != nil && b.eni.Trunk.TrunkID == eniID {
			errs = append(errs, f.forget(b))
		}
	}
	if err := errors.Join(append(errs, f.forget(p))...); err != nil {
		return fmt.Errorf("detach %s from %s: %w", eniID, p.node, err)
	}
	return nil
}

// forget unplugs an ENI, and makes the router stop answering NDP for its addresses.
func (f *Fabric) forget(p *plugged) error {
	delete(f.enis, p.eni.ID)
	return errors.Join(f.unplug(p), f.forgetNDP(p))
}

// unplug deletes the link, which also removes routes and neighbours, and then its rules.
func (f *Fabric) unplug(p *plugged) error {
	var errs []error
	l, err := f.router.rt.LinkByName(p.link)
	if err == nil {
		err = f.router.rt.LinkDel(l)
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		errs = append(errs, fmt.Errorf("delete link %s: %w", p.link, err))
	}
	return errors.Join(append(errs, f.rules.remove(f.nft, p))...)
}

// Update applies changes of an ENI's or branch's addresses, prefixes, security groups and source/destination
// check. An ENI that is not attached is not an error.
func (f *Fabric) Update(e vpc.ENI) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.enis[e.ID]
	if p == nil {
		return nil
	}
	before, after := owned(p.eni), owned(e)
	p.eni = e.Clone()
	for _, dst := range before {
		if !slices.Contains(after, dst) {
			if err := f.delRoute(p, dst); err != nil {
				return err
			}
		}
	}
	for _, dst := range after {
		if !slices.Contains(before, dst) {
			if err := f.addRoute(p, dst); err != nil {
				return err
			}
		}
	}
	return f.rules.update(f.nft, p, f.groups)
}

// SetGroups applies the rules of all security groups.
func (f *Fabric) SetGroups(groups []vpc.SecurityGroup) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.groups)
	for _, g := range groups {
		f.groups[g.ID] = g.Clone()
	}
	for _, id := range f.attached() {
		if err := f.rules.update(f.nft, f.enis[id], f.groups); err != nil {
			return fmt.Errorf("security groups of %s: %w", id, err)
		}
	}
	return nil
}

// owned lists the destinations that EC2 delivers to an ENI.
func owned(e vpc.ENI) []netip.Prefix {
	var out []netip.Prefix
	for _, addrs := range [][]netip.Addr{e.IPv4(), e.IPv6} {
		for _, a := range addrs {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return append(append(out, e.Prefixes...), e.IPv6Prefixes...)
}

// route returns the router's route to an address or prefix of an ENI.
func route(p *plugged, dst netip.Prefix) *netlink.Route {
	gw := toENI
	if dst.Addr().Is6() {
		gw = toENI6
	}
	return &netlink.Route{Dst: ns.IPNet(dst), Gw: gw.AsSlice(), LinkIndex: p.idx, Flags: int(netlink.FLAG_ONLINK)}
}

func (f *Fabric) addRoute(p *plugged, dst netip.Prefix) error {
	// Replace: an address that moves between ENIs (AllowReassignment) may be added before it is removed.
	if err := f.router.rt.RouteReplace(route(p, dst)); err != nil {
		return fmt.Errorf("add route to %s through %s: %w", dst, p.link, err)
	}
	return f.proxyNDP(p, dst, true)
}

func (f *Fabric) delRoute(p *plugged, dst netip.Prefix) error {
	if err := f.router.rt.RouteDel(route(p, dst)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete route to %s through %s: %w", dst, p.link, err)
	}
	return f.proxyNDP(p, dst, false)
}

// A branch is a VLAN on its trunk's link. The router has a VLAN link for it there, which it otherwise treats like
// the link of an ENI. Frames without a VLAN belong to the trunk. The router's kernel drops frames of a VLAN without
// a branch, because it has no link for them. The fabric creates nothing in the node: the node must create its end,
// with the VLAN and the branch's MAC address.

// Associate makes an ENI a branch of an attached trunk. Associating a branch that is plugged in is an error.
func (f *Fabric) Associate(e vpc.ENI) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.Trunk == nil {
		return fmt.Errorf("associate %s: it has no association", e.ID)
	}
	t := f.enis[e.Trunk.TrunkID]
	switch {
	case t == nil:
		return fmt.Errorf("associate %s: its trunk %s is not attached", e.ID, e.Trunk.TrunkID)
	case f.enis[e.ID] != nil:
		return fmt.Errorf("associate %s: it is plugged into %s", e.ID, f.enis[e.ID].node)
	}
	p := &plugged{eni: e.Clone(), node: t.node, link: f.router.newLink()}
	err := f.router.addVLAN(p, t)
	if err == nil {
		err = f.plug(p)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("associate %s with %s: %w", e.ID, t.eni.ID, err), f.unplug(p))
	}
	f.enis[e.ID] = p
	return nil
}
