package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// foreignPods is the number of pods of another network on a node.
const foreignPods = 1000

// guardAdds measures an ADD on a node with routes to pods of another network, in turn with a node without any. The nodes change
// places after half of the rounds.
func guardAdds(ctx context.Context, b *bench) []Result {
	nodes := []*node.Node{b.bed.few, b.bed.many}
	clients := []*client{dial(nodes[0]), dial(nodes[1])}
	defer clients[0].conn.Close()
	defer clients[1].conn.Close()
	s := series{}
	for half := range nodes {
		remove := foreignRoutes(ctx, nodes[half])
		for i := range 25 * b.options.rounds { // one or two per cent are less than the noise of few
			for j := range clients {
				at := (i + j) % len(clients)
				took := b.bed.addOnce(ctx, clients[at])
				s.add(map[bool]string{true: "guarded", false: "alone"}[at == half], took)
			}
		}
		remove()
	}
	return []Result{s.ratio("guard-add", "ms", "guarded", "alone")}
}

// foreignRoutes makes a link on a node that looks as if another network had all its pods behind it, and waits until the daemon
// has seen them. remove removes it likewise.
func foreignRoutes(ctx context.Context, n *node.Node) (remove func()) {
	const name = "enibench"
	must.OK(ns.Do(n.Netns, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		v := netlink.NewVeth(attrs)
		v.PeerName = name + "-peer"
		if err := netlink.LinkAdd(v); err != nil {
			return err
		}
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		for i := range foreignPods {
			a := netip.AddrFrom4([4]byte{10, 77, byte(i >> 8), byte(i)})
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: rtnl.IPNet(rtnl.HostPrefix(a)), Scope: netlink.SCOPE_LINK}); err != nil {
				return fmt.Errorf("add the route to %s: %w", a, err)
			}
		}
		return nil
	}))
	seen(ctx, n, fmt.Sprintf("holds %d addresses", foreignPods))
	return func() {
		must.OK(ns.Do(n.Netns, func() error { return netlink.LinkDel(must.Get(netlink.LinkByName(name))) }))
		seen(ctx, n, "")
	}
}

// seen waits until the condition of the daemon about other networks says something; empty: that there are none.
func seen(ctx context.Context, n *node.Node, what string) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	must.OK(poll.Until(ctx, func() error {
		doc, err := lab.Document(ctx, n)
		if err != nil {
			return err
		}
		for _, c := range doc.Conditions {
			if c.Type == "SoleCNIPlugin" && (what == "") == (c.Status == introspect.True) && strings.Contains(c.Message, what) {
				return nil
			}
		}
		return fmt.Errorf("conditions of %s: %+v", n.Name, doc.Conditions)
	}))
}
