package awsvpccni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/node/adopt"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/uplinks"
	"github.com/berthnet/berth/internal/source/nodelocal"
)

var families = []int{unix.AF_INET, unix.AF_INET6}

// links lists the veths whose other end is in another network namespace, and the MAC addresses of ENIs with VLANs, which
// are trunks.
func (n *Node) links() (list []link, trunks []string, err error) {
	all, err := rtnl.Whole(n.host.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	found, err := adopt.FindNamespaces(n.host, n.o.NetnsDirs, n.o.Proc)
	if err != nil {
		return nil, nil, err
	}
	for _, l := range all {
		parent := func(of netlink.Link) bool { return of.Attrs().Index == l.Attrs().ParentIndex }
		if i := slices.IndexFunc(all, parent); l.Type() == "vlan" && i >= 0 {
			trunks = append(trunks, all[i].Attrs().HardwareAddr.String())
		}
	}
	for _, l := range all {
		a := l.Attrs()
		if l.Type() != "veth" || a.NetNsID < 0 {
			continue
		}
		one := link{name: a.Name, index: a.Index}
		if ns, ok := found.Behind(l); ok {
			one.netns = ns
			if err := one.look(a.ParentIndex); err != nil {
				return nil, nil, fmt.Errorf("look at the other end of %s: %w", a.Name, err)
			}
		}
		list = append(list, one)
	}
	return list, trunks, nil
}

// look reads the other end of a link.
func (l *link) look(index int) error {
	ns, err := rtnl.OpenPodNetns(l.netns.Path, datapath.NetnsID{Dev: l.netns.Dev, Inode: l.netns.Inode}, datapath.NetnsID{})
	if errors.Is(err, datapath.ErrNoNetns) { // it ended
		l.netns = attachment.Netns{}
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	h, err := rtnl.Handle(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	peer, err := h.LinkByIndex(index)
	if rtnl.IsNoLink(err) {
		return nil
	}
	if err != nil {
		return err
	}
	l.peer = peer.Attrs().Name
	addrs, err := rtnl.Whole(func() ([]netlink.Addr, error) { return h.AddrList(peer, netlink.FAMILY_ALL) })
	for _, a := range addrs {
		if ip := rtnl.AddrOf(a.IP); ip.IsGlobalUnicast() {
			l.addresses = append(l.addresses, ip)
		}
	}
	return err
}

// allRules lists the rules of others than Berth.
func (n *Node) allRules() (list []netlink.Rule, err error) {
	for _, family := range families {
		rules, err := rtnl.Whole(func() ([]netlink.Rule, error) { return n.host.RuleList(family) })
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules {
			if r.Family = family; r.Protocol != datapath.Protocol {
				list = append(list, r)
			}
		}
	}
	return list, nil
}

// rules lists the rules of others for packets from or to single addresses.
func (n *Node) rules() (list []attachment.AdoptedRule, err error) {
	all, err := n.allRules()
	for _, r := range all {
		one := attachment.AdoptedRule{Priority: r.Priority, From: rtnl.PrefixOf(r.Src), To: rtnl.PrefixOf(r.Dst), Table: r.Table, Protocol: int(r.Protocol)}
		if one.From.IsValid() != one.To.IsValid() && one.Address().IsSingleIP() {
			list = append(list, one)
		}
	}
	return list, err
}

func kernelVersion() (v version, err error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return v, fmt.Errorf("read the kernel's version: %w", err)
	}
	words := strings.FieldsFunc(unix.ByteSliceToString(u.Release[:]), func(r rune) bool { return r < '0' || r > '9' })
	if len(words) > 1 {
		v.major, err = strconv.Atoi(words[0])
		v.minor, _ = strconv.Atoi(words[1])
	}
	return v, err
}

// setUp sets up Berth's data path of the node, as berthd does.
func (n *Node) setUp(ctx context.Context, s survey) (*datapath.Node, error) {
	data, err := datapath.Open("")
	if err != nil {
		return nil, err
	}
	c := n.o.Config
	six := c.IPFamilies.Has(ipfamily.IPv6) || !s.instance.PrimaryIPv4.IsValid()
	for _, a := range s.checkpoint.Allocations {
		six = six || a.IPv6.IsValid()
	}
	cidrs := slices.DeleteFunc(slices.Clone(s.instance.VPCCIDRs), func(p netip.Prefix) bool {
		return p.Addr().Is4() && !s.instance.PrimaryIPv4.IsValid() || p.Addr().Is6() && !six
	})
	var local []netip.Prefix
	if s.instance.PrimaryIPv4.IsValid() {
		local = append(local, nodelocal.Network4)
	}
	if c.IPv6Egress {
		local = append(local, nodelocal.Network6)
	}
	config := uplinks.Settings(c, n.o.Log)
	config.Uplinks = uplinks.VPCSettings(c, s.instance, cidrs, local)
	if err := data.Setup(ctx, config); err != nil {
		return nil, errors.Join(err, data.Close())
	}
	for _, e := range s.enis {
		if e.NetworkCard != 0 || !s.serves(e) {
			continue
		}
		u := datapath.Uplink{ID: e.ID, MAC: e.MAC, Number: e.DeviceIndex, Primary: e.DeviceIndex == 0, PrimaryIPv4: e.Primary, Subnet: e.Subnet}
		u.Addresses, u.Prefixes = cloud.Split(e.Held)
		if err := data.SetUplink(ctx, u); err != nil {
			return nil, errors.Join(err, data.Close())
		}
	}
	return data, nil
}

// serves reports whether pods have addresses of an ENI.
func (s survey) serves(e cloud.AttachedENI) bool {
	return e.DeviceIndex == 0 || slices.ContainsFunc(s.pods(), func(p pod) bool { return p.Uplink == e.ID }) ||
		slices.ContainsFunc(s.records, func(r attachment.Record) bool { return !r.Lease.Empty() && r.Lease.Uplink == e.DeviceIndex })
}

// removeStale removes rules for addresses that no pod of the Amazon VPC CNI has, which would mislead packets of a later
// pod. Pods ended while nobody served, or the tool was killed.
func (n *Node) removeStale(s survey) (changed []string, err error) {
	for _, r := range s.rules {
		if !s.isStale(r) {
			continue
		}
		if err := n.host.RuleDel(adopt.RuleOf(r)); err != nil && !rtnl.IsGone(err) {
			return changed, fmt.Errorf("remove the rule %d of %s: %w", r.Priority, r.Address(), err)
		}
		changed = append(changed, fmt.Sprintf("removed the rule %d of %s, which no pod has", r.Priority, r.Address().Addr()))
	}
	return changed, nil
}

// isStale reports whether a rule is for an address of the VPC that none of the Amazon VPC CNI's pods has. A pod whose
// namespace has no path has the addresses of its entry.
func (s survey) isStale(r attachment.AdoptedRule) bool {
	a := r.Address().Addr()
	if r.Priority != ruleToPod && r.Priority != ruleFromPod || !s.inVPC(a) {
		return false
	}
	_, held := s.byAddress(a)
	return !held && !slices.ContainsFunc(s.pods(), func(p pod) bool {
		return (p.Fate == migrate.Adopt || p.Fate == migrate.Replace) && slices.Contains(p.Addresses, a)
	})
}

func (s survey) inVPC(a netip.Addr) bool {
	return slices.ContainsFunc(s.instance.VPCCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// markRule sends packets with the connection mark of the primary ENI by the main table.
func markRule(priority int) *netlink.Rule {
	mask := uint32(connmark)
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Mark, r.Mask = unix.AF_INET, priority, mainTable, connmark, &mask
	return r
}

// clear removes Berth's state of the node. Berth's rule for connections of the primary ENI equals that of the Amazon VPC
// CNI, which takes its place.
func (n *Node) clear(ctx context.Context) (changed []string, err error) {
	data, err := datapath.Open("")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	add := func(priority int) error {
		if err := n.host.RuleAdd(markRule(priority)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add the rule %d of the connection mark: %w", priority, err)
		}
		return nil
	}
	if err := add(ruleMark + 1); err != nil {
		return nil, err
	}
	if changed, err = data.Clear(ctx); err == nil {
		err = add(ruleMark)
	}
	if gone := n.host.RuleDel(markRule(ruleMark + 1)); gone != nil && !rtnl.IsGone(gone) {
		err = cmp.Or(err, fmt.Errorf("remove the rule %d of the connection mark: %w", ruleMark+1, gone))
	}
	return changed, err
}

// setTables makes the routing tables of secondary ENIs whose pods Berth created, as ipamd does when it starts.
func (n *Node) setTables(s survey) error {
	for _, e := range s.enis {
		if e.DeviceIndex == 0 || e.NetworkCard != 0 || !e.Subnet.IsValid() || !s.serves(e) {
			continue
		}
		link, err := n.eniLink(e)
		if err != nil {
			return err
		}
		for _, r := range tableRoutes(e, link.Attrs().Index) {
			if err := n.host.RouteReplace(&r); err != nil {
				return fmt.Errorf("set the route %s of table %d: %w", rtnl.RouteDst(r), r.Table, err)
			}
		}
	}
	return nil
}

func tableRoutes(e cloud.AttachedENI, link int) []netlink.Route {
	gateway := e.Subnet.Masked().Addr().Next()
	return []netlink.Route{
		{LinkIndex: link, Dst: rtnl.IPNet(rtnl.HostPrefix(gateway)), Scope: netlink.SCOPE_LINK, Table: tableOf(e.DeviceIndex)},
		{LinkIndex: link, Dst: rtnl.IPNet(netip.PrefixFrom(netip.IPv4Unspecified(), 0)), Gw: gateway.AsSlice(), Table: tableOf(e.DeviceIndex), Flags: int(netlink.FLAG_ONLINK)},
	}
}

// eniLink finds the link of an ENI.
func (n *Node) eniLink(e cloud.AttachedENI) (netlink.Link, error) {
	all, err := rtnl.Whole(n.host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range all {
		if l.Attrs().HardwareAddr.String() == e.MAC.String() && l.Type() != "vlan" && !datapath.IsHostLinkName(l.Attrs().Name) {
			return l, nil
		}
	}
	return nil, fmt.Errorf("%s: %w: %s", e.ID, datapath.ErrNoLink, e.MAC)
}
