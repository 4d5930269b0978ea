// Package adopt takes over the links of running pods from another network, and returns them. The pods keep their
// addresses, connections and network namespaces.
//
// berthd must not run at the same time. Every step can be repeated after the process was killed: the attachment's record is
// written before the kernel changes, and removed after the kernel has the former state again.
package adopt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon"
)

var _ = failpoint.Register("adopt.record.after", "adopt.link.after", "adopt.rules.after", "adopt.routes.after",
	"giveback.record.after", "giveback.routes.after", "giveback.rules.after", "giveback.rename.after", "giveback.clean.after")

// Kernel sets up pods on the node. *datapath.Node implements it, once it is set up.
type Kernel interface {
	AddPod(ctx context.Context, pod datapath.Pod) (datapath.PodLinks, error)
}

// Adopter takes over and gives back the attachments of one node. It is used by one goroutine at a time.
type Adopter struct {
	store  *attachment.Store
	kernel Kernel // may be nil if TakeOver is not used
	ns     netns.NsHandle
	host   *netlink.Handle
	log    *slog.Logger
	now    func() time.Time
}

// New returns an Adopter for the node's network namespace at a path; empty: the calling thread's. Close releases it.
func New(store *attachment.Store, kernel Kernel, path string, now func() time.Time, log *slog.Logger) (*Adopter, error) {
	ns, err := rtnl.OpenNodeNetns(path)
	if err != nil {
		return nil, err
	}
	host, err := rtnl.Handle(ns)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink in the node's network namespace: %w", err), ns.Close())
	}
	return &Adopter{store: store, kernel: kernel, ns: ns, host: host, log: log, now: now}, nil
}

// Close releases the sockets.
func (a *Adopter) Close() error {
	a.host.Close()
	return a.ns.Close()
}

// Pod is an attachment of another network.
type Pod struct {
	Key   attachment.Key
	Pod   attachment.Pod
	Lease attachment.Lease
	Netns attachment.Netns
	// Former is the former state. TakeOver adds the link's alias, and the routes and rules of the pod's addresses.
	Former attachment.Adopted
	// Keep keeps the former routes, rules and alias, until Settle.
	Keep bool
	// Inside changes the pod's side before the node ignores the pod's ARP requests, if AddPod does not do all that is
	// necessary; nil: it does. The pod's gateway has the MAC address of the link on the node.
	Inside func(hostMAC net.HardwareAddr) error
}

// TakeOver makes an attachment Berth's. It returns false if it was Berth's already, and nothing was left to do.
func (a *Adopter) TakeOver(ctx context.Context, p Pod) (changed bool, err error) {
	rec, known := a.store.Get(p.Key)
	switch {
	case known && rec.Adopted == nil:
		return false, nil
	case known && !slices.Equal(rec.Lease.Addrs(), p.Lease.Addrs()):
		return false, fmt.Errorf("adopt %s: its record has the addresses %v, expected %v", p.Key, rec.Lease.Addrs(), p.Lease.Addrs())
	case !known:
		if rec, err = a.record(p); err == nil {
			err = a.store.Put(rec)
		}
		if err != nil {
			return false, fmt.Errorf("adopt %s: %w", p.Key, err)
		}
	}
	changed = !known
	if err := failpoint.Hit("adopt.record.after"); err != nil {
		return changed, err
	}
	links, err := a.wire(ctx, p, rec)
	if err != nil {
		return changed, fmt.Errorf("adopt %s: %w", p.Key, err)
	}
	if as := withLinks(rec, links); as.PodMAC.String() != rec.PodMAC.String() || as.MTU != rec.MTU {
		if err := a.store.Put(as); err != nil {
			return changed, fmt.Errorf("adopt %s: %w", p.Key, err)
		}
	}
	if err := a.alignMTU(links); err != nil {
		return changed, fmt.Errorf("adopt %s: %w", p.Key, err)
	}
	leave := a.removeFormer
	if p.Keep {
		leave = a.keepFormer
	}
	removed, err := leave(*rec.Adopted, links.HostIndex)
	if err != nil {
		return changed, fmt.Errorf("adopt %s: %w", p.Key, err)
	}
	if changed = changed || removed; changed {
		a.log.Info("adopted a pod", rec.ForLog("link", rec.HostLink, "former-link", rec.Adopted.HostLink)...)
	}
	return changed, nil
}

// wire makes the pod's links, routes and rules those of Berth.
func (a *Adopter) wire(ctx context.Context, p Pod, rec attachment.Record) (links datapath.PodLinks, err error) {
	if p.Inside != nil {
		if err := p.Inside(net.HardwareAddr(rec.HostMAC)); err != nil {
			return links, err
		}
	}
	if links, err = a.kernel.AddPod(ctx, daemon.PodOf(rec)); err != nil {
		return links, err
	}
	return links, failpoint.Hit("adopt.link.after")
}

func withLinks(rec attachment.Record, links datapath.PodLinks) attachment.Record {
	rec.HostMAC, rec.PodMAC, rec.MTU = mac.Addr(links.HostMAC), mac.Addr(links.PodMAC), links.MTU
	return rec
}

// record is the first record of an adopted attachment.
func (a *Adopter) record(p Pod) (attachment.Record, error) {
	link, err := a.host.LinkByName(p.Former.HostLink)
	if err != nil {
		return attachment.Record{}, fmt.Errorf("look up %s: %w", p.Former.HostLink, err)
	}
	attrs, former := link.Attrs(), p.Former
	former.Alias, former.MTU = attrs.Alias, attrs.MTU
	if former.Routes, err = a.formerRoutes(attrs.Index, p.Lease.Addrs()); err != nil {
		return attachment.Record{}, err
	}
	if former.Rules, err = a.formerRules(p.Lease.Addrs()); err != nil {
		return attachment.Record{}, err
	}
	return attachment.Record{
		Key: p.Key, Pod: p.Pod, Lease: p.Lease, Netns: p.Netns, Adopted: &former,
		HostLink: datapath.HostLinkName(p.Key.Network, p.Key.ContainerID, p.Key.IfName),
		HostMAC:  mac.Addr(attrs.HardwareAddr), MTU: attrs.MTU, State: attachment.Ready, Since: a.now().UTC(),
	}, nil
}

// formerRoutes lists the routes of others to addresses that lead to a link.
func (a *Adopter) formerRoutes(link int, addrs []netip.Addr) (list []attachment.AdoptedRoute, err error) {
	for _, addr := range addrs {
		routes, err := a.routes(link, addr)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Protocol != datapath.Protocol {
				list = append(list, attachment.AdoptedRoute{Destination: rtnl.RouteDst(r), Table: r.Table, Protocol: int(r.Protocol), Metric: r.Priority, Gateway: rtnl.AddrOf(r.Gw)})
			}
		}
	}
	return list, nil
}

// routes lists the routes to an address that lead to a link, in all tables.
func (a *Adopter) routes(link int, addr netip.Addr) ([]netlink.Route, error) {
	routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
		return a.host.RouteListFiltered(rtnl.FamilyOf(addr), &netlink.Route{LinkIndex: link, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes to %s: %w", addr, err)
	}
	return slices.DeleteFunc(routes, func(r netlink.Route) bool {
		return rtnl.RouteDst(r) != rtnl.HostPrefix(addr) || r.Table == unix.RT_TABLE_LOCAL
	}), nil
}

// formerRules lists the rules of others for packets from or to single addresses.
func (a *Adopter) formerRules(addrs []netip.Addr) (list []attachment.AdoptedRule, err error) {
	for _, addr := range addrs {
		rules, err := rtnl.Whole(func() ([]netlink.Rule, error) { return a.host.RuleList(rtnl.FamilyOf(addr)) })
		if err != nil {
			return nil, fmt.Errorf("list the rules of %s: %w", addr, err)
		}
		for _, r := range rules {
			from, to := rtnl.PrefixOf(r.Src), rtnl.PrefixOf(r.Dst)
			one := attachment.AdoptedRule{Priority: r.Priority, From: from, To: to, Table: r.Table, Protocol: int(r.Protocol)}
			if r.Protocol != datapath.Protocol && from.IsValid() != to.IsValid() && one.Address() == rtnl.HostPrefix(addr) && r.IifName == "" && r.OifName == "" && r.Mark == 0 {
				list = append(list, one)
			}
		}
	}
	return list, nil
}

// removeFormer removes rules and routes, and the alias, of a link that Berth has.
func (a *Adopter) removeFormer(former attachment.Adopted, link int) (removed bool, err error) {
	for _, r := range former.Rules {
		err := a.host.RuleDel(RuleOf(r))
		if err != nil && !rtnl.IsGone(err) {
			return removed, fmt.Errorf("remove the rule %+v: %w", r, err)
		}
		removed = removed || err == nil
	}
	if err := failpoint.Hit("adopt.rules.after"); err != nil {
		return removed, err
	}
	for _, r := range former.Routes {
		err := a.host.RouteDel(routeOf(r, link))
		if err != nil && !rtnl.IsGone(err) {
			return removed, fmt.Errorf("remove the route %+v: %w", r, err)
		}
		removed = removed || err == nil
	}
	if former.Alias != "" {
		if err := a.host.LinkSetAlias(rtnl.LinkRef(link), ""); err != nil {
			return removed, fmt.Errorf("remove the alias %q: %w", former.Alias, err)
		}
	}
	return removed, failpoint.Hit("adopt.routes.after")
}

// alignMTU sets the MTU of the link on the node to that of its end in the pod, because another plugin may have changed only one.
func (a *Adopter) alignMTU(links datapath.PodLinks) error {
	host, err := a.host.LinkByIndex(links.HostIndex)
	if err == nil && host.Attrs().MTU != links.MTU {
		err = a.host.LinkSetMTU(host, links.MTU)
	}
	if err != nil {
		return fmt.Errorf("set the MTU of link %d: %w", links.HostIndex, err)
	}
	return nil
}

// keepFormer restores routes that an old kernel removed when it renamed the link.
func (a *Adopter) keepFormer(former attachment.Adopted, link int) (changed bool, err error) {
	for _, r := range former.Routes {
		err := a.host.RouteAdd(routeOf(r, link))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return changed, fmt.Errorf("restore the route %+v: %w", r, err)
		}
		changed = changed || err == nil
	}
	return changed, nil
}

// Settle removes the former state that TakeOver kept. It does not change the record, and may be called while berthd runs.
func (a *Adopter) Settle(rec attachment.Record) (changed bool, err error) {
	if rec.Adopted == nil {
		return false, nil
	}
	link, err := a.link(rec)
	if err == nil && link != nil {
		changed, err = a.removeFormer(*rec.Adopted, link.Attrs().Index)
	}
	if err != nil {
		return changed, fmt.Errorf("remove the former state of %s: %w", rec.Key, err)
	}
	return changed, nil
}

// RuleOf returns a rule for the netlink library.
func RuleOf(r attachment.AdoptedRule) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Protocol = rtnl.FamilyOf(r.Address().Addr()), r.Priority, r.Table, uint8(r.Protocol)
	if r.From.IsValid() {
		rule.Src = rtnl.IPNet(r.From)
	} else {
		rule.Dst = rtnl.IPNet(r.To)
	}
	return rule
}

func routeOf(r attachment.AdoptedRoute, link int) *netlink.Route {
	route := &netlink.Route{
		LinkIndex: link, Dst: rtnl.IPNet(r.Destination), Table: r.Table, Priority: r.Metric, Protocol: netlink.RouteProtocol(r.Protocol),
		Scope: rtnl.ScopeFor(r.Destination.Addr(), netlink.SCOPE_LINK),
	}
	if r.Gateway.IsValid() {
		route.Gw, route.Scope = r.Gateway.AsSlice(), netlink.SCOPE_UNIVERSE
	}
	return route
}
