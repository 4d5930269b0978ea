package datapath

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// VPC is a node whose pods have addresses of its uplinks (SetUplink), which are ENIs. Packets to the VPC
// leave by the ENI of their source; others are translated to the primary address.
type VPC struct {
	// PrimaryMAC finds the primary link.
	PrimaryMAC net.HardwareAddr
	// PrimaryIPv4 is the source address of translated IPv4 packets, zero on an IPv6-only node. It is required unless
	// ExternalSNAT is set or LocalCIDRs has no IPv4.
	PrimaryIPv4 netip.Addr
	// PrimaryIPv6 is the source of translated IPv6 packets. It is usually zero: packets leave with the pod's own
	// global address.
	PrimaryIPv6 netip.Addr
	// LocalCIDRs are the VPC's CIDRs of both families. An IPv6 CIDR turns the IPv6 data path on.
	LocalCIDRs []netip.Prefix
	// ExcludeCIDRs are networks outside the VPC to which packets are not translated.
	ExcludeCIDRs []netip.Prefix
	// ExternalSNAT leaves translation to a NAT gateway: packets are not translated and leave by the ENI of their
	// source.
	ExternalSNAT bool
	// NodeLocal are networks of additional addresses of pods, of a family that they have no other address of. The
	// addresses are valid on the node only. Packets from them leave the node with the node's own address, whatever
	// their destination and ExternalSNAT, and only the node can open connections to them. IPv4 needs PrimaryIPv4;
	// IPv6 turns the IPv6 data path on.
	NodeLocal []netip.Prefix
	// MarkShift moves the eight mark bits left, 0 to 24.
	MarkShift uint
}

func (u VPC) kind() string { return "VPC" }

func (u VPC) validate() error {
	if len(u.PrimaryMAC) != 6 {
		return fmt.Errorf("PrimaryMAC %q: want six octets", u.PrimaryMAC)
	}
	if u.PrimaryIPv4.IsValid() && !u.PrimaryIPv4.Is4() {
		return fmt.Errorf("PrimaryIPv4 %s: not an IPv4 address", u.PrimaryIPv4)
	}
	if u.PrimaryIPv6.IsValid() && !rtnl.IsIPv6(u.PrimaryIPv6) {
		return fmt.Errorf("PrimaryIPv6 %s: not an IPv6 address", u.PrimaryIPv6)
	}
	if len(u.LocalCIDRs) == 0 {
		return fmt.Errorf("LocalCIDRs: want the CIDRs of the VPC, got none")
	}
	for _, f := range []struct {
		name     string
		prefixes []netip.Prefix
	}{{"LocalCIDRs", u.LocalCIDRs}, {"ExcludeCIDRs", u.ExcludeCIDRs}, {"NodeLocal", u.NodeLocal}} {
		if i := slices.IndexFunc(f.prefixes, isNoCIDR); i >= 0 {
			return fmt.Errorf("%s: %s is not a CIDR", f.name, f.prefixes[i])
		}
	}
	if translated := !u.ExternalSNAT && slices.ContainsFunc(u.LocalCIDRs, isCIDR4); translated && !u.PrimaryIPv4.IsValid() {
		return fmt.Errorf("PrimaryIPv4: want the source address for SNAT, or ExternalSNAT")
	}
	if slices.ContainsFunc(u.NodeLocal, isCIDR4) && !u.PrimaryIPv4.IsValid() {
		return fmt.Errorf("PrimaryIPv4: want the source address for SNAT of NodeLocal")
	}
	if u.MarkShift > 24 {
		return fmt.Errorf("MarkShift %d: want 0 to 24", u.MarkShift)
	}
	return nil
}

func isNoCIDR(p netip.Prefix) bool { return !p.IsValid() || p.Addr().Is4In6() }

func isCIDR4(p netip.Prefix) bool { return p.Addr().Is4() }

func isCIDR6(p netip.Prefix) bool { return p.Addr().Is6() }

func (u VPC) ipv6() bool {
	return u.PrimaryIPv6.IsValid() || slices.ContainsFunc(u.LocalCIDRs, isCIDR6) || slices.ContainsFunc(u.NodeLocal, isCIDR6)
}

func (u VPC) mark(m uint32) uint32 { return m << u.MarkShift }

// snat is the source of translated packets of a family; zero for no translation.
func (u VPC) snat(family int) netip.Addr {
	if u.ExternalSNAT {
		return netip.Addr{}
	}
	return u.primary(family)
}

// primary is the node's own address of a family; zero if it is not set.
func (u VPC) primary(family int) netip.Addr {
	if family == unix.AF_INET6 {
		return u.PrimaryIPv6
	}
	return u.PrimaryIPv4
}

// direct are the destinations of one family to which packets are not translated.
func (u VPC) direct(family int) []netip.Prefix {
	all := slices.Concat(u.LocalCIDRs, u.ExcludeCIDRs)
	if family == unix.AF_INET6 {
		all = append(all, netip.MustParsePrefix("fe80::/10")) // never leaves the link
	}
	return nft.Disjoint(all, family)
}

// links is the primary ENI's.
func (u VPC) links(_ *Node, all []netlink.Link) ([]netlink.Link, error) {
	primary, err := linkByMAC(all, u.PrimaryMAC)
	if err != nil {
		return nil, fmt.Errorf("find the primary link: %w", err)
	}
	return []netlink.Link{primary}, nil
}

func (u VPC) rules(family int) []netlink.Rule {
	rules := []netlink.Rule{policyRule(family, RulePrimary, unix.RT_TABLE_MAIN, u.mark(MarkPrimary), u.mark(MarkPrimary))}
	if u.snat(family).IsValid() {
		rules = append(rules, policyRule(family, RuleOutside, unix.RT_TABLE_MAIN, u.mark(MarkOutside), u.mark(MarkOutside)))
	}
	return rules
}

func (u VPC) owns(r netlink.Rule) bool { return r.Priority != RuleUplink && !isBranchRule(r) }

// isBranchRule reports whether a rule is of branches, which package routedvlan owns.
func isBranchRule(r netlink.Rule) bool {
	return r.Priority <= RuleLocal || r.Priority == RuleBranchPod || r.Priority == RuleBranchStandard
}

// uplinkRules leads the marks of an ENI to its table.
func (u VPC) uplinkRules(uplink Uplink) []netlink.Rule {
	var rules []netlink.Rule
	for _, family := range families(u) {
		if family == unix.AF_INET && uplink.hasIPv4() || family == unix.AF_INET6 && uplink.hasIPv6() {
			rules = append(rules, policyRule(family, RuleUplink, uplink.table(), u.mark(uint32(uplink.Number)), u.mark(MarkUplink)))
		}
	}
	for a := range uplink.own(u) {
		r := policyRule(rtnl.FamilyOf(a.Addr()), RuleUplink, uplink.table(), 0, 0)
		r.Src = rtnl.IPNet(a)
		rules = append(rules, r)
	}
	return rules
}

// state is that of the kernel, which outlives the daemon, and that of the ENIs set up since, in case the table was
// removed.
func (u VPC) state(n *Node, conn *nftables.Conn) (s uplinkState, err error) {
	reader, err := newMapReader(conn)
	if err != nil {
		return s, err
	}
	if s.entries, err = reader.entries(uplinkMaps()); err != nil {
		return s, err
	}
	if s.own, err = reader.entries(ownMaps()); err != nil {
		return s, err
	}
	for _, uplink := range n.uplinks.list() {
		if !uplink.Primary {
			maps.Copy(s.entries, uplink.entries())
			maps.Copy(s.own, uplink.own(u))
		}
	}
	return s, nil
}

// replaced forgets unanswered connections of pods that lack their translation, as they began without the table or
// with other settings.
func (u VPC) replaced(n *Node) ([]string, error) {
	if !u.snat(unix.AF_INET).IsValid() && !u.snat(unix.AF_INET6).IsValid() && len(u.NodeLocal) == 0 {
		return nil, nil
	}
	return n.forgetUnanswered(u.translates)
}

// translates reports whether packets of a pod between two addresses get another source.
func (u VPC) translates(from, to netip.Addr) bool {
	if slices.ContainsFunc(u.NodeLocal, func(p netip.Prefix) bool { return p.Contains(from) }) {
		return true
	}
	family := rtnl.FamilyOf(from)
	return u.snat(family).IsValid() && !slices.ContainsFunc(u.direct(family), func(p netip.Prefix) bool { return p.Contains(to) })
}

// follow implements Uplinks: rules and chains of ENIs depend on the Config.
func (u VPC) follow(n *Node) error {
	var errs []error
	for _, uplink := range n.uplinks.list() {
		_, err := n.setUplink(uplink)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (u VPC) none() Supply { return UplinkList(nil) }

func (u VPC) clear(n *Node) ([]string, error) {
	for _, id := range n.uplinks.removeThat(func(Uplink) bool { return true }) {
		n.sysctls.forgetOwner(id)
	}
	return n.routing.removeThat(unix.RT_TABLE_UNSPEC, isUplinkRoute)
}

// isUplinkRoute reports whether a route is in the table of a secondary ENI.
func isUplinkRoute(r netlink.Route) bool {
	return r.Table > UplinkTableBase && r.Table <= UplinkTableBase+MaxUplink && !isUnreachable(r)
}

// UplinkList is all uplinks of a VPC's node.
type UplinkList []Uplink

func (l UplinkList) restore(n *Node) (did []string, err error) {
	var errs []error
	for _, uplink := range l {
		done, err := n.setUplink(uplink)
		did, errs = append(did, done...), append(errs, err)
	}
	return did, errors.Join(errs...)
}

func (l UplinkList) tidy(n *Node, has Inventory) (did []string, err error) {
	desired := map[int]bool{}
	for _, e := range l {
		if !e.Primary {
			desired[e.Number] = true
		}
	}
	var errs []error
	for _, e := range has.Uplinks {
		if desired[e.Number] || e.Number < 1 || e.Number > MaxUplink {
			continue
		}
		if err := n.removeUplink(e.Number); err != nil {
			errs = append(errs, err)
			continue
		}
		did = append(did, fmt.Sprintf("removed ENI %d", e.Number))
	}
	return did, errors.Join(errs...)
}
