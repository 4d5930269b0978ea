package egressgateway

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// The table with a route into the tunnel for each client. Forwarded packets, and packets of the gateway itself with
// the mark, look it up before the main table. Others do not, above all the tunnels' own packets, which have the same
// destinations.
const (
	ReturnTable = 117
	returnPref  = 1900
	returnMark  = 117
)

// Routers returns the gateways of the main table's default routes. On many networks this is an address of the pod's
// node.
func (k *Kernel) Routers() (list []netip.Addr, err error) {
	for _, of := range tunnel.Families {
		routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return k.at.NL.RouteListFiltered(of, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		})
		if err != nil {
			return nil, fmt.Errorf("list default routes: %w", err)
		}
		for _, r := range routes {
			if a, ok := netip.AddrFromSlice(r.Gw); ok {
				list = append(list, a.Unmap())
			}
		}
	}
	return list, nil
}

// returnRules adds the rules of a family that are missing.
func (k *Kernel) returnRules(family int) error {
	desired := []rtnl.Rule{
		{Family: family, Priority: returnPref, Table: ReturnTable, In: "lo", Invert: true}, // what is forwarded
		{Family: family, Priority: returnPref, Table: ReturnTable, Mark: returnMark, Mask: math.MaxUint32},
	}
	observed, err := rtnl.Rules(k.at.NL, family, func(netlink.Rule) bool { return true })
	if err != nil {
		return err
	}
	kind := rtnl.RuleKind(k.at.NL)
	_, err = kind.Set(kind.Compare(desired, observed))
	return err
}

// listRoutes lists the clients that have a route in ReturnTable.
func (k *Kernel) listRoutes() (map[netip.Addr]bool, error) {
	list := map[netip.Addr]bool{}
	for _, of := range tunnel.Families {
		routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return k.at.NL.RouteListFiltered(of, &netlink.Route{Table: ReturnTable}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes to clients: %w", err)
		}
		for _, r := range routes {
			list[rtnl.RouteDst(r).Addr()] = true
		}
	}
	return list, nil
}

// setRoutes removes the routes of clients that are gone and adds those that are missing. A client of a family that
// the gateway has no address of has none.
func (k *Kernel) setRoutes(c change) error {
	var desired []netip.Addr
	for _, list := range []map[netip.Addr]string{k.known.members, c.added} {
		for a := range list {
			if k.known.index[rtnl.FamilyOf(a)] != 0 {
				desired = append(desired, a)
			}
		}
	}
	kind := rtnl.Kind[netip.Addr, netip.Addr]{
		Key:  func(a netip.Addr) netip.Addr { return a },
		Name: func(a netip.Addr) string { return "the route to client " + a.String() },
		Add: func(a netip.Addr) error {
			err := k.at.NL.RouteReplace(route(a, k.known.index[rtnl.FamilyOf(a)]))
			if err == nil {
				k.known.routes[a] = true
			}
			return err
		},
		Remove: func(a netip.Addr) error {
			err := k.at.NL.RouteDel(route(a, 0))
			if err == nil || rtnl.IsGone(err) {
				delete(k.known.routes, a)
			}
			return err
		},
	}
	d := kind.Compare(desired, slices.Collect(maps.Keys(k.known.routes)))
	if _, err := kind.RemoveAll(d.Extra); err != nil {
		return err
	}
	_, err := kind.Set(d)
	return err
}

func route(a netip.Addr, index int) *netlink.Route {
	return &netlink.Route{
		LinkIndex: index, Dst: rtnl.IPNet(rtnl.HostPrefix(a)), Table: ReturnTable, Protocol: rtnl.Protocol,
		Scope: rtnl.ScopeFor(a, netlink.SCOPE_LINK), Family: rtnl.FamilyOf(a),
	}
}

// ErrNotForwarded: forwarding is off in the namespace, which an unprivileged container cannot change.
var ErrNotForwarded = errors.New("packets are not forwarded")

// forwardFrom turns on IPv4 forwarding of packets from a link.
func (k *Kernel) forwardFrom(name string, index int) error {
	if err := k.at.SetIPv4Setting(index, tunnel.Forwarding, 1); err != nil {
		return fmt.Errorf("turn on forwarding of packets from %s: %w", name, err)
	}
	return nil
}

// forwarded returns ErrNotForwarded for families that have destinations and no forwarding.
func (k *Kernel) forwarded(s Setup) error {
	return k.at.Inside(func() error {
		var problems []error
		for _, of := range tunnel.Families {
			if len(s.destinations(of)) == 0 || !s.own(of).IsValid() {
				continue
			}
			// IPv4 has a setting for each link. IPv6 has one for all; that of a link only makes it a router's.
			setting := filepath.Join("net/ipv4/conf", s.Link, "forwarding")
			if of == unix.AF_INET6 {
				setting = "net/ipv6/conf/all/forwarding"
			}
			text, err := os.ReadFile(filepath.Join("/proc/sys", setting))
			if err != nil {
				problems = append(problems, err)
				continue
			}
			if strings.TrimSpace(string(text)) != "1" {
				problems = append(problems, fmt.Errorf("%w: IPv%d needs %s = 1 in the pod: berthd sets it for pods with the annotation berth.dev/egress-gateway, another network by securityContext.sysctls of the Egress's template",
					ErrNotForwarded, tunnel.Digit(of), strings.ReplaceAll(setting, "/", ".")))
			}
		}
		return errors.Join(problems...)
	})
}
