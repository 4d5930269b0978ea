package datapath

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Inventory is Berth's state in the kernel, including that of earlier processes.
type Inventory struct {
	Links   []LinkInfo
	Routes  []RouteInfo  // routes of PodTable
	Uplinks []UplinkInfo // secondary, by number
	Rules   []RuleInfo
	Blocks  []BlockInfo
	// Branches are the addresses of pods whose first interface is a branch interface (StrictTable, StandardTable).
	// Package routedvlan owns their routes.
	Branches []netip.Addr
}

// LinkInfo is the host end of a pod link.
type LinkInfo struct {
	Name  string
	Index int
	MAC   string
	MTU   int
	Up    bool
}

// RouteInfo is the route of one pod address.
type RouteInfo struct {
	Addr      netip.Addr
	LinkIndex int
	Link      string // empty if the link is gone, or was added while Inventory ran
}

// UplinkInfo is the kernel state of one uplink number.
type UplinkInfo struct {
	Number  int
	Routes  []netip.Prefix // destinations in its table
	Sources []netip.Prefix // addresses that the nftables maps lead to it
}

// BlockInfo is one prefix of a block.
type BlockInfo struct {
	Prefix      netip.Prefix
	Tables      []int // routes that announce it
	Unreachable bool  // routes for addresses that no pod has
}

// RuleInfo is one policy rule.
type RuleInfo struct {
	IPv6     bool
	Priority int
	Table    int
	Mark     uint32
	Mask     uint32
}

// Inventory lists Berth's state, sorted. It lists links, routes and rules, which is too slow for an ADD.
func (n *Node) Inventory(ctx context.Context) (Inventory, error) {
	if err := n.begin(ctx); err != nil {
		return Inventory{}, err
	}
	var inv Inventory
	names := map[int]string{}
	links, err := n.links()
	if err != nil {
		return inv, err
	}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		if isPodLink(l) {
			inv.Links = append(inv.Links, linkInfo(l.Attrs()))
		}
	}
	uplinks := map[int]*UplinkInfo{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := inv.addRoutes(n.routing, family, names, uplinks); err != nil {
			return inv, err
		}
		rules, err := n.routing.listRules(family)
		if err != nil {
			return inv, err
		}
		for _, r := range rules {
			id := rtnl.RuleOf(r)
			inv.Rules = append(inv.Rules, RuleInfo{family == unix.AF_INET6, id.Priority, id.Table, id.Mark, id.Mask})
			if id.Priority == RuleUplink {
				uplinkInfo(uplinks, id.Table-UplinkTableBase)
			}
		}
	}
	conn, err := n.nft()
	if err != nil {
		return inv, err
	}
	reader, err := newMapReader(conn)
	if err != nil {
		return inv, err
	}
	entries, err := reader.entries(uplinkMaps())
	if err != nil {
		return inv, err
	}
	for p, i := range entries {
		e := uplinkInfo(uplinks, i)
		e.Sources = append(e.Sources, p)
	}
	for _, e := range uplinks {
		slices.SortFunc(e.Sources, netip.Prefix.Compare)
		inv.Uplinks = append(inv.Uplinks, *e)
	}
	inv.sort()
	return inv, nil
}

// isPodLink reports whether a link is a pod link of Berth.
func isPodLink(l netlink.Link) bool { return l.Type() == "veth" && IsHostLinkName(l.Attrs().Name) }

func linkInfo(a *netlink.LinkAttrs) LinkInfo {
	return LinkInfo{a.Name, a.Index, a.HardwareAddr.String(), a.MTU, a.Flags&net.FlagUp != 0}
}

func uplinkInfo(uplinks map[int]*UplinkInfo, number int) *UplinkInfo {
	if uplinks[number] == nil {
		uplinks[number] = &UplinkInfo{Number: number}
	}
	return uplinks[number]
}

// addRoutes adds Berth's routes of a family.
func (inv *Inventory) addRoutes(t routing, family int, names map[int]string, uplinks map[int]*UplinkInfo) error {
	routes, err := t.list(family, unix.RT_TABLE_UNSPEC)
	if err != nil {
		return err
	}
	for _, r := range routes {
		switch i := r.Table - UplinkTableBase; {
		case isBlockRoute(r):
			inv.addBlockRoute(r)
		case r.Table == PodTable:
			inv.Routes = append(inv.Routes, RouteInfo{rtnl.RouteDst(r).Addr(), r.LinkIndex, names[r.LinkIndex]})
		case r.Table == StrictTable, r.Table == StandardTable:
			inv.Branches = append(inv.Branches, rtnl.RouteDst(r).Addr())
		case i >= 1 && i <= MaxUplink:
			e := uplinkInfo(uplinks, i)
			e.Routes = append(e.Routes, rtnl.RouteDst(r))
		}
	}
	return nil
}

func (inv *Inventory) addBlockRoute(r netlink.Route) {
	dst := rtnl.RouteDst(r)
	i := slices.IndexFunc(inv.Blocks, func(b BlockInfo) bool { return b.Prefix == dst })
	if i < 0 {
		i = len(inv.Blocks)
		inv.Blocks = append(inv.Blocks, BlockInfo{Prefix: dst})
	}
	if isUnreachable(r) {
		inv.Blocks[i].Unreachable = true
	} else {
		inv.Blocks[i].Tables = append(inv.Blocks[i].Tables, r.Table)
	}
}

func (inv *Inventory) sort() {
	slices.SortFunc(inv.Links, func(a, b LinkInfo) int { return a.Index - b.Index })
	slices.SortFunc(inv.Routes, func(a, b RouteInfo) int { return a.Addr.Compare(b.Addr) })
	slices.SortFunc(inv.Blocks, func(a, b BlockInfo) int { return a.Prefix.Compare(b.Prefix) })
	slices.SortFunc(inv.Uplinks, func(a, b UplinkInfo) int { return a.Number - b.Number })
}
