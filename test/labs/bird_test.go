package labs

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestBIRDAnnouncesBlocks has pods of three nodes reach each other, the nodes and the outside with
// their own addresses in both families, by the routes that BIRD announces. Released blocks are
// withdrawn.
func TestBIRDAnnouncesBlocks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		subnet v1alpha1.PoolSubnet
		slices []int // nil: every gate
	}{
		"dual": {v1alpha1.PoolSubnet{IPv4: "10.2.0.0/16", IPv6: "fd02::/112"}, nil},
		"ipv4": {v1alpha1.PoolSubnet{IPv4: "10.2.0.0/16"}, []int{2}},
		"ipv6": {v1alpha1.PoolSubnet{IPv6: "fd02::/112"}, []int{7}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.slices != nil {
				harness.Rotate(t, tc.slices...)
			}
			l := harness.RaiseQuick(t, lab.PoolMode, lab.Options{Nodes: 3, Pools: []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, 2, tc.subnet)}})
			nodes := l.Nodes()
			pods := map[string]*node.Pod{}
			for _, n := range nodes {
				harness.OK(t, harness.AddMany(t, n, "pod", 5, node.PodOptions{}))
				p, err := n.Pod("pod-0")
				harness.OK(t, err)
				pods[n.Name] = p
			}
			harness.Settle(t, l)
			for i, n := range nodes {
				p, other := pods[n.Name], nodes[(i+1)%len(nodes)]
				for k, own := range p.Addrs {
					outside, far := site.OutsideHost, l.Site.Addrs(other.Name).IPv4
					if own.Is6() {
						outside, far = site.OutsideHost6, l.Site.Addrs(other.Name).IPv6
					}
					harness.OK(t, errors.Join(
						harness.Asks(t, p.Netns(), pods[other.Name].Addrs[k], own),
						harness.Asks(t, p.Netns(), far, own),
						harness.Asks(t, p.Netns(), outside, own),
						harness.Asks(t, l.OutsidePath(), own, outside),
						harness.Asks(t, other.Netns, own, far),
					))
				}
			}
			n := nodes[0]
			asksCache(t, n)
			gone := harness.Blocks(t, l, n)
			harness.RemoveAll(t, n)
			harness.HasBlocks(t, l, n, 1) // the warm one
			kept := harness.Blocks(t, l, n)[0].Name
			for _, b := range gone {
				for _, text := range []string{b.IPv4, b.IPv6} {
					if p, err := netip.ParsePrefix(text); err == nil {
						learned(t, l, p, b.Name == kept)
					}
				}
			}
			harness.Settle(t, l)
			harness.StartedOnce(t, harness.Programs(l)...)
			t.Run("after berthd", func(t *testing.T) { afterBerthd(t, l, n) })
		})
	}
}

// afterBerthd stops a daemon: its blocks stay announced, since its pods live on, unless it has
// --withdraw-on-exit.
func afterBerthd(t *testing.T, l *lab.Lab, n *node.Node) {
	harness.Add(t, n, "stays")
	harness.Settle(t, l)
	announced := func(want bool) {
		t.Helper()
		for _, text := range []string{harness.Blocks(t, l, n)[0].IPv4, harness.Blocks(t, l, n)[0].IPv6} {
			if p, err := netip.ParsePrefix(text); err == nil {
				learned(t, l, p, want)
			}
		}
	}
	harness.OK(t, n.Stop(patience))
	announced(true)
	harness.OK(t, n.Start("--withdraw-on-exit"))
	harness.Ready(t, n)
	harness.OK(t, n.Stop(patience))
	announced(false)
	harness.OK(t, n.Start())
	harness.Ready(t, n)
	announced(true)
	harness.Settle(t, l)
}

// learned waits until the router has a route to a prefix, or has none.
func learned(t *testing.T, l *lab.Lab, p netip.Prefix, want bool) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("route to %s: %t", p, want), func() error {
		routes, err := l.Site.Routes(t.Context())
		if _, ok := routes[p]; err == nil && ok != want {
			err = fmt.Errorf("the router has %v", routes)
		}
		return err
	})
}
