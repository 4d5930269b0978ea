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

// The router sends everything for an ENI to a neighbour with the
// ENI's MAC, whatever the address. They exist on the router's links only.
var (
	toENI  = netip.MustParseAddr("169.254.0.2")
	toENI6 = netip.MustParseAddr("fe80::2")
)

// Attach plugs an ENI into a node: its link appears there, down and without
// an address, except that the primary ENI (device index 0) is configured as a
// DHCP client would. Attaching an ENI that is attached is an error. One of type
// "efa-only" has no link: it is a device for other traffic than IP.
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
		return fmt.Errorf("attach %s: no node %s", e.ID, node)
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

// linkName is an ENI's link in its node, as the kernel names the interfaces of
// Nitro instances by slot: ens5, ens6, … on network card 0, and with the bus of
// another card enp1s5, enp1s6, ….
func linkName(a *vpc.Attachment) string {
	if a.NetworkCard == 0 {
		return fmt.Sprintf("ens%d", 5+a.DeviceIndex)
	}
	return fmt.Sprintf("enp%ds%d", a.NetworkCard, 5+a.DeviceIndex)
}

// plug sets the router's side of a link up that has been made.
func (f *Fabric) plug(p *plugged) error {
	if err := f.router.answerAtOnce(p.link); err != nil {
		return err
	}
	l, err := f.router.rt.LinkByName(p.link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", p.link, err)
	}
	p.idx = l.Attrs().Index
	_ = f.router.rt.LinkSetAlias(l, p.eni.ID+" on "+p.node) // for people who look around
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

// lease configures a primary ENI's link as a DHCP client does: the primary
// addresses, the IPv4 default route (none in an IPv6-only subnet), and
// the link up. That of IPv6 is not DHCP's
// affair (RFC 8415, section 4): the node's kernel learns it from the router's
// advertisement before this returns, if it takes any.
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

// Detach unplugs an ENI: its link vanishes from the node, and with a trunk go its
// branches. An ENI that is not attached is no error.
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

// forget unplugs an ENI, for which no link answers any more.
func (f *Fabric) forget(p *plugged) error {
	delete(f.enis, p.eni.ID)
	return errors.Join(f.unplug(p), f.forgetNDP(p))
}

// unplug deletes the link, with which routes and neighbours go, then its rules.
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

// Update takes over an ENI's or branch's addresses, prefixes, security groups
// and source/destination check. An ENI that is not attached is no error.
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

// SetGroups takes over the rules of all security groups.
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

// owned lists what EC2 delivers to an ENI.
func owned(e vpc.ENI) []netip.Prefix {
	var out []netip.Prefix
	for _, addrs := range [][]netip.Addr{e.IPv4(), e.IPv6} {
		for _, a := range addrs {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return append(append(out, e.Prefixes...), e.IPv6Prefixes...)
}

// route is the router's route to an address or prefix of an ENI.
func route(p *plugged, dst netip.Prefix) *netlink.Route {
	gw := toENI
	if dst.Addr().Is6() {
		gw = toENI6
	}
	return &netlink.Route{Dst: ns.IPNet(dst), Gw: gw.AsSlice(), LinkIndex: p.idx, Flags: int(netlink.FLAG_ONLINK)}
}

func (f *Fabric) addRoute(p *plugged, dst netip.Prefix) error {
	// Replace: an address that moved between ENIs (AllowReassignment) may
	// arrive before it leaves.
	if err := f.router.rt.RouteReplace(route(p, dst)); err != nil {
		return fmt.Errorf("add route to %s by %s: %w", dst, p.link, err)
	}
	return f.proxyNDP(p, dst, true)
}

func (f *Fabric) delRoute(p *plugged, dst netip.Prefix) error {
	if err := f.router.rt.RouteDel(route(p, dst)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete route to %s by %s: %w", dst, p.link, err)
	}
	return f.proxyNDP(p, dst, false)
}

// A branch is a VLAN on its trunk's link: the router has a link of its own for it there,
// which is all that distinguishes it from the link of an ENI. Frames without a VLAN are the
// trunk's. Frames of a VLAN that no branch has are dropped by the router's kernel, which has
// no link for them (packets for other hosts, to it). Nothing is made in the node: it has to
// make its end, with the VLAN and the branch's MAC.

// Associate makes an ENI a branch of a trunk that is attached. Associating one that is
// plugged in is an error.
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
