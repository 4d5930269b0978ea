package rtnl

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Link is the desired state of a link. A nil MAC and MTU 0 match any value.
type Link struct {
	Name  string
	MAC   net.HardwareAddr
	MTU   int
	Where string // follows the name in Differences, such as " in the pod"
}

// Differences describes how an observed link differs.
func (l Link) Differences(have *netlink.LinkAttrs) (list []string) {
	if have.Flags&net.FlagUp == 0 {
		list = append(list, fmt.Sprintf("%s is down%s", l.Name, l.Where))
	}
	if l.hasOtherMAC(have) {
		list = append(list, fmt.Sprintf("%s has MAC address %s%s, not %s", l.Name, have.HardwareAddr, l.Where, l.MAC))
	}
	if l.hasOtherMTU(have) {
		list = append(list, fmt.Sprintf("%s has MTU %d%s, not %d", l.Name, have.MTU, l.Where, l.MTU))
	}
	return list
}

// Set sets MAC address and MTU of an observed link, and returns what it changed. It does not set the link up.
func (l Link) Set(h *netlink.Handle, have *netlink.LinkAttrs) (changed []string, err error) {
	if l.hasOtherMAC(have) {
		if err := h.LinkSetHardwareAddr(LinkRef(have.Index), l.MAC); err != nil {
			return nil, fmt.Errorf("set the MAC address of %s to %s: %w", l.Name, l.MAC, err)
		}
		changed = append(changed, "MAC address")
	}
	if l.hasOtherMTU(have) {
		if err := h.LinkSetMTU(LinkRef(have.Index), l.MTU); err != nil {
			return changed, fmt.Errorf("set the MTU of %s to %d: %w", l.Name, l.MTU, err)
		}
		changed = append(changed, "MTU")
	}
	return changed, nil
}

func (l Link) hasOtherMAC(have *netlink.LinkAttrs) bool {
	return l.MAC != nil && !bytes.Equal(have.HardwareAddr, l.MAC)
}

func (l Link) hasOtherMTU(have *netlink.LinkAttrs) bool { return l.MTU != 0 && have.MTU != l.MTU }

// Route identifies a route. Link is part of unicast routes only, and Metric of all others, such as unreachable ones,
// for which the kernel chooses the link.
type Route struct {
	Table, Type, Link, Metric int
	Dst                       netip.Prefix
	Via, Src                  netip.Addr
}

// RouteOf identifies a route of the netlink library, desired or observed.
func RouteOf(r netlink.Route) Route {
	id := Route{Table: r.Table, Type: r.Type, Dst: RouteDst(r), Via: AddrOf(r.Gw), Src: AddrOf(r.Src)}
	if id.Table == unix.RT_TABLE_UNSPEC {
		id.Table = unix.RT_TABLE_MAIN
	}
	if id.Type == unix.RTN_UNSPEC {
		id.Type = unix.RTN_UNICAST
	}
	if id.Type == unix.RTN_UNICAST {
		id.Link = r.LinkIndex
	} else {
		id.Metric = r.Priority
	}
	return id
}

// Rule identifies a policy rule. Table and Goto are 0 if the rule is only a target of other rules (nop).
type Rule struct {
	Family, Priority int
	From, To         netip.Prefix
	In, Out          string // names of links
	Invert           bool
	Mark, Mask       uint32
	Table            int
	Goto             int // the priority to continue with
}

// RuleOf identifies a rule of the netlink library, desired or observed.
func RuleOf(r netlink.Rule) Rule {
	id := Rule{
		Family: r.Family, Priority: max(r.Priority, 0), From: PrefixOf(r.Src), To: PrefixOf(r.Dst),
		In: r.IifName, Out: r.OifName, Invert: r.Invert, Table: max(r.Table, 0), Goto: max(r.Goto, 0),
	}
	if r.Mask != nil {
		id.Mark, id.Mask = r.Mark, *r.Mask
	}
	return id
}

// String is similar to the syntax of ip(8), such as "rule 1850 fwmark 0x10000/0xff0000 lookup 11701".
func (r Rule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rule %d", r.Priority)
	if r.Invert {
		b.WriteString(" not")
	}
	if r.From.IsValid() {
		b.WriteString(" from " + r.From.String())
	}
	if r.To.IsValid() {
		b.WriteString(" to " + r.To.String())
	}
	if r.In != "" {
		b.WriteString(" iif " + r.In)
	}
	if r.Out != "" {
		b.WriteString(" oif " + r.Out)
	}
	if r.Mask != 0 {
		fmt.Fprintf(&b, " fwmark %#x/%#x", r.Mark, r.Mask)
	}
	switch {
	case r.Goto != 0:
		fmt.Fprintf(&b, " goto %d", r.Goto)
	case r.Table != 0:
		fmt.Fprintf(&b, " lookup %d", r.Table)
	default:
		b.WriteString(" nop")
	}
	return b.String()
}

// nop is FR_ACT_NOP (linux/fib_rules.h).
const nop = 3

// Kernel returns the rule for the netlink library, with Berth's Protocol.
func (r Rule) Kernel() netlink.Rule {
	n := netlink.NewRule()
	n.Family, n.Priority, n.Table, n.Protocol = r.Family, r.Priority, r.Table, Protocol
	n.IifName, n.OifName, n.Invert = r.In, r.Out, r.Invert
	if r.From.IsValid() {
		n.Src = IPNet(r.From)
	}
	if r.To.IsValid() {
		n.Dst = IPNet(r.To)
	}
	if r.Mask != 0 {
		n.Mark, n.Mask = r.Mark, &r.Mask
	}
	switch {
	case r.Goto != 0:
		n.Goto = r.Goto
	case r.Table == 0:
		n.Type = nop
	}
	return *n
}

// RuleKind describes policy rules. Add succeeds if the rule exists.
func RuleKind(h *netlink.Handle) Kind[Rule, Rule] {
	return Kind[Rule, Rule]{
		Key: func(r Rule) Rule { return r }, Name: Rule.String,
		Add: func(r Rule) error {
			n := r.Kernel()
			if err := h.RuleAdd(&n); !errors.Is(err, unix.EEXIST) {
				return err
			}
			return nil
		},
		Remove: func(r Rule) error {
			n := r.Kernel()
			return h.RuleDel(&n)
		},
	}
}

// Rules lists the policy rules of a family for which holds returns true.
func Rules(h *netlink.Handle, family int, holds func(netlink.Rule) bool) (rules []Rule, err error) {
	list, err := Whole(func() ([]netlink.Rule, error) { return h.RuleList(family) })
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	for _, r := range list {
		if holds(r) {
			rules = append(rules, RuleOf(r))
		}
	}
	return rules, nil
}

// PermanentNeighbour is the permanent neighbour entry of an address behind a link.
func PermanentNeighbour(link int, addr netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link, Family: FamilyOf(addr), State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: mac}
}

// Neighbour identifies a neighbour entry with its MAC address.
type Neighbour struct {
	Link int
	Addr netip.Addr
	MAC  string
}

// NeighbourOf identifies a neighbour entry of the netlink library.
func NeighbourOf(n netlink.Neigh) Neighbour {
	return Neighbour{n.LinkIndex, AddrOf(n.IP), n.HardwareAddr.String()}
}

// HasNeighbour reports whether a namespace has a permanent neighbour entry. It asks for this entry: a list has the entries
// of all links, as the kernel keeps one table for all namespaces.
func HasNeighbour(ns netns.NsHandle, desired *netlink.Neigh) (bool, error) {
	s, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return false, err
	}
	defer s.Close()
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	req.AddData(&netlink.Ndmsg{Family: uint8(desired.Family), Index: uint32(desired.LinkIndex)})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, desired.IP))
	replies, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) || err == nil && len(replies) == 0 {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	have, err := netlink.NeighDeserialize(replies[0])
	return err == nil && have.State&netlink.NUD_PERMANENT != 0 && NeighbourOf(*have) == NeighbourOf(*desired), err
}

// PermanentNeighbours lists the permanent neighbour entries of a family on a link, or on all links (0).
func PermanentNeighbours(h *netlink.Handle, link, family int) ([]netlink.Neigh, error) {
	list, err := Whole(func() ([]netlink.Neigh, error) { return h.NeighList(link, family) })
	return slices.DeleteFunc(list, func(n netlink.Neigh) bool { return n.State&netlink.NUD_PERMANENT == 0 }), err
}
