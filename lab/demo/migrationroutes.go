package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/lab/run/poll"
)

// announced watches the routes by which the router of a recorded node reaches its blocks. The router learns them from the
// node's BIRD, which reads the export table.
type announced struct {
	blocks []netip.Prefix // with pods
	birds  func() error   // ends them
	done   chan struct{}  // ends the subscription
	end    sync.Once      // closes done

	mu   sync.Mutex // guards lost
	lost []error
}

// announce has BIRD announce the node's blocks to the router, in place of the replayed routes, and watches them.
func announce(ctx context.Context, r *replay.Raised, dir string) (_ *announced, err error) {
	var own site.Addrs
	for _, l := range r.Nodes[0].Links {
		for _, a := range l.Addresses {
			p, err := a.Prefix()
			switch {
			case l.Name != "eth0" || err != nil || p.Addr().IsLinkLocalUnicast():
			case p.Addr().Is4():
				own.IPv4 = p.Addr()
			default:
				own.IPv6 = p.Addr()
			}
		}
	}
	a := &announced{done: make(chan struct{})}
	for _, b := range r.Nodes[0].Blocks() {
		if slices.ContainsFunc(r.Pods, func(p replay.Pod) bool { return slices.ContainsFunc(p.Addresses(), b.Contains) }) {
			a.blocks = append(a.blocks, b)
		}
	}
	if err := ns.Netlink(r.Router(), func(h *netlink.Handle) error {
		for _, b := range r.Nodes[0].Blocks() {
			if err := h.RouteDel(&netlink.Route{Dst: rtnl.IPNet(b)}); err != nil && !rtnl.IsGone(err) {
				return fmt.Errorf("remove the replayed route to %s: %w", b, err)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	via := site.Addrs{IPv4: netip.MustParseAddr("172.30.0.1"), IPv6: netip.MustParseAddr("fd00:30::1")}
	if a.birds, err = site.Announce(dir, r.Netns(r.Nodes[0].Name), r.Router(), own, via); err != nil {
		return nil, err
	}
	err = poll.Until(ctx, func() error { return a.check(r.Router()) })
	if err == nil {
		err = a.watch(r.Router())
	}
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

// check returns an error if the router lacks a route that it learned from BIRD.
func (a *announced) check(router string) error {
	var has []netip.Prefix
	err := ns.Netlink(router, func(h *netlink.Handle) error {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			routes, err := h.RouteListFiltered(family, &netlink.Route{Protocol: unix.RTPROT_BIRD}, netlink.RT_FILTER_PROTOCOL)
			if err != nil {
				return err
			}
			for _, r := range routes {
				has = append(has, rtnl.RouteDst(r))
			}
		}
		return nil
	})
	for _, b := range a.blocks {
		if err == nil && !slices.Contains(has, b) {
			err = fmt.Errorf("the router has no route to %s from BIRD, only to %v", b, has)
		}
	}
	return err
}

// watch notes each route of a block that the router loses.
func (a *announced) watch(router string) error {
	at, err := netns.GetFromPath(router)
	if err != nil {
		return err
	}
	defer func() { _ = at.Close() }()
	updates := make(chan netlink.RouteUpdate, 1024)
	note := func(err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.lost = append(a.lost, err)
	}
	ended := func(err error) {
		select {
		case <-a.done:
		default:
			note(fmt.Errorf("watch the router's routes: %w", err))
		}
	}
	if err := netlink.RouteSubscribeWithOptions(updates, a.done, netlink.RouteSubscribeOptions{Namespace: &at, ErrorCallback: ended}); err != nil {
		return fmt.Errorf("watch the router's routes: %w", err)
	}
	go func() {
		for u := range updates {
			if dst := rtnl.RouteDst(u.Route); u.Type == unix.RTM_DELROUTE && u.Route.Table == unix.RT_TABLE_MAIN && slices.Contains(a.blocks, dst) {
				note(fmt.Errorf("the router lost its route to %s", dst))
			}
		}
	}()
	return nil
}

// stop ends the watch, and returns what was lost until then.
func (a *announced) stop() error {
	a.end.Do(func() { close(a.done) })
	a.mu.Lock()
	defer a.mu.Unlock()
	return errors.Join(a.lost...)
}

func (a *announced) close() error {
	_ = a.stop()
	return a.birds()
}

// asCoildStarts removes the routes of others from the export table, as coild does when it starts.
func asCoildStarts(node string) error {
	return ns.Netlink(node, func(h *netlink.Handle) error {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			routes, err := h.RouteListFiltered(family, &netlink.Route{Table: foreign.CoilExportTable}, netlink.RT_FILTER_TABLE)
			if err != nil {
				return err
			}
			for _, r := range routes {
				if r.Protocol == foreign.CoilProtocol {
					continue
				}
				if err := h.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
					return err
				}
			}
		}
		return nil
	})
}

func coilRoutes(_ context.Context, s *stage) string {
	a := s.coil.announced
	check(errors.Join(a.check(s.coil.Router()), a.stop()))
	return fmt.Sprintf("%d blocks with pods, announced by BIRD all the time", len(a.blocks))
}
