package egressclient

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// state is the observed state of Berth's egress in a namespace.
type state struct {
	filter string // in the format of filter.summary
	port   uint16 // the FoU port in the filter; 0: unknown
	links  map[int]netlink.Link
	routes []linkedRoute
	rules  []rtnl.Rule
	// numbered and loose report whether the IPv4 device has its tunnel's address, and loose reverse path filtering.
	numbered, loose bool
	loosened        loosened
}

// linkedRoute is a route and the index of the link that it leads to.
type linkedRoute struct {
	route
	link int
}

// fresh reports whether the namespace has no links and no filter of Berth's egress.
func (s state) fresh() bool { return s.filter == "" && len(s.links) == 0 }

// look reads the observed state. Without a device and without the nftables table, which is made first and removed
// last, it stops there.
func (k *kernel) look() (state, error) {
	s, err := k.lookFilter()
	if err != nil {
		return s, err
	}
	for _, f := range tunnel.Families {
		l, err := k.at.NL.LinkByName(tunnel.LinkOf(f))
		switch {
		case err == nil:
			s.links[f] = l
			s.port = cmp.Or(s.port, portOf(l))
		case !rtnl.IsNoLink(err):
			return s, fmt.Errorf("look for link %s: %w", tunnel.LinkOf(f), err)
		}
	}
	if s.fresh() {
		return s, nil
	}
	if err := k.lookSource(&s); err != nil {
		return s, err
	}
	err = k.lookWays(&s)
	return s, err
}

// lookTables is look without the devices.
func (k *kernel) lookTables() (state, error) {
	s, err := k.lookFilter()
	if err != nil {
		return s, err
	}
	err = k.lookWays(&s)
	return s, err
}

func (k *kernel) lookFilter() (state, error) {
	filter, err := k.filterSummary()
	return state{filter: filter, port: portIn(filter), loosened: loosenedIn(filter), links: map[int]netlink.Link{}}, err
}

// lookWays reads routes and rules.
func (k *kernel) lookWays(s *state) error {
	for _, f := range tunnel.Families {
		if err := k.lookRoutes(f, s); err != nil {
			return err
		}
		rules, err := rtnl.Rules(k.at.NL, f, isOurRule)
		if err != nil {
			return err
		}
		s.rules = append(s.rules, rules...)
	}
	return nil
}

func (k *kernel) lookSource(s *state) error {
	l, ok := s.links[unix.AF_INET].(*netlink.Iptun)
	if !ok {
		return nil
	}
	list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return k.at.NL.AddrList(l, unix.AF_INET) })
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", l.Name, err)
	}
	s.numbered = slices.ContainsFunc(list, func(a netlink.Addr) bool { return a.IPNet != nil && rtnl.AddrOf(a.IP) == rtnl.AddrOf(l.Local) })
	v, err := k.at.GetIPv4Setting(l.Index, tunnel.RPFilter)
	s.loose = v == looseFilter
	return err
}

// portOf is the FoU port to which a device sends.
func portOf(l netlink.Link) uint16 {
	switch l := l.(type) {
	case *netlink.Iptun:
		return l.EncapDport
	case *netlink.Ip6tnl:
		return l.EncapDport
	}
	return 0
}

func isOurTable(t int) bool {
	return t == tableDestinations || t == tableDefault || t > tableGateways && t <= tableGateways+maxGateway
}

func (k *kernel) lookRoutes(family int, s *state) error {
	filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: rtnl.Protocol}
	list, err := rtnl.Whole(func() ([]netlink.Route, error) {
		return k.at.NL.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range list {
		if !isOurTable(r.Table) {
			continue
		}
		h := linkedRoute{link: r.LinkIndex}
		h.table, h.metric, h.dst = r.Table, r.Priority, rtnl.RouteDst(r)
		if r.Type == unix.RTN_UNICAST {
			h.via, h.src = rtnl.AddrOf(r.Gw), rtnl.AddrOf(r.Src)
		}
		s.routes = append(s.routes, h)
	}
	return nil
}

func isOurRule(r netlink.Rule) bool {
	return r.Protocol == rtnl.Protocol && r.Priority >= priorityOthers && r.Priority <= priorityEnd && r.Priority != rtnl.LaterMetric
}

// links returns the pod's own link, and the names of the links with addresses of Others.
func (k *kernel) links(s Setup) (own ownLink, further []string, err error) {
	own.mtu = s.MTU
	if s.MTU == 0 || s.answersOwnWay() {
		l, err := k.at.NL.LinkByName(s.Link)
		if err != nil {
			return own, nil, fmt.Errorf("look at link %s: %w", s.Link, err)
		}
		own.index = l.Attrs().Index
		if s.MTU == 0 {
			own.mtu = l.Attrs().MTU
		}
	}
	if len(s.Others) == 0 {
		return own, nil, nil
	}
	list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return k.at.NL.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return own, nil, fmt.Errorf("list addresses: %w", err)
	}
	names := map[string]bool{}
	for _, a := range list {
		if a.IPNet == nil || !slices.Contains(s.Others, rtnl.AddrOf(a.IP)) {
			continue
		}
		l, err := k.at.NL.LinkByIndex(a.LinkIndex)
		if err != nil && !rtnl.IsNoLink(err) {
			return own, nil, fmt.Errorf("look at the link of %s: %w", a.IP, err)
		}
		if err == nil && l.Attrs().Name != s.Link {
			names[l.Attrs().Name] = true
		}
	}
	return own, slices.Sorted(maps.Keys(names)), nil
}

// ownLink is the pod's own interface. index is 0 if not needed.
type ownLink struct{ index, mtu int }
