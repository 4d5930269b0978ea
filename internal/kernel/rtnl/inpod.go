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

// LaterMetric plus a link's index is the metric of the routes of a pod's further interface, so that those of the
// first one are preferred. It is also the number of the interface's own routing table, for packets from its address.
// LaterMetric is the priority of the rules that lead there.
const LaterMetric = 2048

// SetRoute adds a route of a pod's interface, with a later metric if another interface of the pod has a route to the
// same destination. first tells that none has.
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

// SourceTable is the routing table for packets from addresses of a link, by its index.
func SourceTable(index int) int { return LaterMetric + index }

// RouteBySource routes packets from a further interface's address by this interface; the node drops them on another
// one. def is its default route. When the interface is removed, its table is removed with it.
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
	rules, err := Rules(inPod, family, func(r netlink.Rule) bool {
		return r.Table == SourceTable(index) && r.Priority == LaterMetric && r.Src != nil
	})
	var from []netip.Addr
	for _, r := range rules {
		from = append(from, r.From.Addr())
	}
	return from, err
}

// RemoveSourceRule removes what AddSourceRule added. It ignores a missing rule.
func RemoveSourceRule(index int, addr netip.Addr, inPod *netlink.Handle) error {
	if err := inPod.RuleDel(sourceRule(index, addr)); err != nil && !IsGone(err) {
		return fmt.Errorf("remove the rule that packets from %s look up table %d: %w", addr, SourceTable(index), err)
	}
	return nil
}

// SetIPv6 writes an IPv6 setting of a link in its namespace, such as accept_ra. Settings are below a folder,
// /proc/sys if empty, which is read-only in an unprivileged container. Errors: os.ErrNotExist, if the kernel lacks
// IPv6.
func SetIPv6(ns netns.NsHandle, sysctls, link, setting, value string) error {
	return InNetns(ns, func() error {
		return os.WriteFile(filepath.Join(cmp.Or(sysctls, procSys), "net/ipv6/conf", link, setting), []byte(value), 0)
	})
}

// AddAddress adds an address to a pod's interface, and turns IPv6 on if the runtime turned it off. Sysctls are below
// a folder, /proc/sys if empty.
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
