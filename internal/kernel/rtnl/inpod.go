package rtnl

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// LaterMetric begins the metrics of the routes of a pod's further interfaces,
// to which the link's index is added: each interface keeps its own routes and
// the first one's are preferred. The same number is that of the routing table by
// which what has the interface's address goes out, and LaterMetric the priority of
// the rules that lead there.
const LaterMetric = 2048

// SetRoute puts a route of a pod's interface in place, beside one that another
// interface of the same pod may have to the same destination. first tells that there
// is none.
func SetRoute(r *netlink.Route, inPod *netlink.Handle) (first bool, err error) {
	err = inPod.RouteAdd(r)
	if !errors.Is(err, unix.EEXIST) {
		return true, err
	}
	routes, err := Whole(func() ([]netlink.Route, error) { return inPod.RouteList(nil, FamilyOf(RouteDst(*r).Addr())) })
	if err != nil {
		return false, err
	}
	first = true
	for _, other := range routes {
		if RouteDst(other) == RouteDst(*r) && other.LinkIndex != r.LinkIndex && other.Priority < LaterMetric {
			first = false
			r.Priority = LaterMetric + r.LinkIndex
		}
	}
	return first, inPod.RouteReplace(r)
}

// SourceTable is the routing table of what has an address of the link with an index.
func SourceTable(index int) int { return LaterMetric + index }

// RouteBySource makes packets from a further interface's address leave by it, of
// which def is the default route: by another interface the node would drop them.
// When the interface goes, its table goes with it and the rule leads nowhere.
func RouteBySource(def *netlink.Route, addr netip.Addr, inPod *netlink.Handle) error {
	own := *def
	own.Table, own.Priority = SourceTable(def.LinkIndex), 0
	if err := inPod.RouteReplace(&own); err != nil {
		return err
	}
	return AddSourceRule(def.LinkIndex, addr, inPod)
}

// AddSourceRule makes packets from an address of a link look up the link's SourceTable.
func AddSourceRule(index int, addr netip.Addr, inPod *netlink.Handle) error {
	if err := inPod.RuleAdd(sourceRule(index, addr)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the rule that packets from %s look up table %d: %w", addr, SourceTable(index), err)
	}
	return nil
}

func sourceRule(index int, addr netip.Addr) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Src = FamilyOf(addr), LaterMetric, SourceTable(index), IPNet(HostPrefix(addr))
	return rule
}

// SourceRules lists the addresses whose packets look up a link's SourceTable.
func SourceRules(index, family int, inPod *netlink.Handle) ([]netip.Addr, error) {
	rules, err := Whole(func() ([]netlink.Rule, error) { return inPod.RuleList(family) })
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	var from []netip.Addr
	for _, r := range rules {
		if r.Table != SourceTable(index) || r.Priority != LaterMetric || r.Src == nil {
			continue
		}
		if a, ok := netip.AddrFromSlice(r.Src.IP); ok {
			from = append(from, a.Unmap())
		}
	}
	return from, nil
}

// RemoveSourceRule takes back what AddSourceRule did. A rule that is not there is no error.
func RemoveSourceRule(index int, addr netip.Addr, inPod *netlink.Handle) error {
	if err := inPod.RuleDel(sourceRule(index, addr)); err != nil && !IsGone(err) {
		return fmt.Errorf("remove the rule that packets from %s look up table %d: %w", addr, SourceTable(index), err)
	}
	return nil
}

// SetIPv6 writes a setting of IPv6 of a link in its namespace, such as accept_ra. Settings
// are below a folder, /proc/sys if empty: in a container that is not privileged one can only
// read there. os.ErrNotExist tells of a kernel without IPv6.
func SetIPv6(ns netns.NsHandle, sysctls, link, setting, value string) error {
	return InNetns(ns, func() error {
		return os.WriteFile(filepath.Join(cmp.Or(sysctls, procSys), "net/ipv6/conf", link, setting), []byte(value), 0)
	})
}

// AddAddress gives a pod's interface an address, also in a sandbox that its runtime made
// with IPv6 switched off. Sysctls are below a folder, /proc/sys if empty.
func AddAddress(addr *netlink.Addr, index int, name string, ns netns.NsHandle, inPod *netlink.Handle, sysctls string) error {
	add := func() error { return inPod.AddrReplace(LinkRef(index), addr) }
	err := add()
	if errors.Is(err, unix.EACCES) && addr.IP.To4() == nil {
		if err = SetIPv6(ns, sysctls, name, "disable_ipv6", "0"); err == nil {
			err = add()
		}
	}
	return err
}
