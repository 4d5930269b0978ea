package ovn

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// The uplink connects networks with Network.Uplink to the outside, without address translation. The outside is the
// namespace of Options, which has the first address of the uplink.
var (
	uplinkNet     = netip.MustParsePrefix("172.28.0.0/24")
	UplinkGateway = uplinkNet.Addr().Next()
)

const (
	uplinkSwitch = "uplink" // its logical switch, and the chassis in the namespace of Options
	uplinkPort   = "uplink-outside"
	uplinkLink   = "up0"
	uplinkMAC    = "0a:ff:00:00:00:01"
	uplinkMTU    = 1442 // bytes, as in the networks
)

// UplinkAddr returns an address for the nth router on the uplink, starting from 0.
func UplinkAddr(n int) netip.Prefix {
	a := UplinkGateway
	for range n + 1 {
		a = a.Next()
	}
	return netip.PrefixFrom(a, uplinkNet.Bits())
}

// OpenUplink connects the uplink to the namespace of Options, where it runs Open vSwitch and OVN's controller. It returns
// when the link is up. Route adds the routes to networks.
func (v *OVN) OpenUplink(ctx context.Context) error {
	s, err := v.AddNode(ctx, uplinkSwitch, v.opts.Netns, filepath.Join(v.opts.Dir, "uplink"), filepath.Join(v.opts.Dir, "uplink", "var"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.vsctl(ctx, "--may-exist", "add-port", Bridge, uplinkLink, "--", "set", "Interface", uplinkLink, "type=internal",
		fmt.Sprintf("mtu_request=%d", uplinkMTU), `mac="`+uplinkMAC+`"`, "external_ids:iface-id="+uplinkPort); err != nil {
		return err
	}
	return s.runner.Until(ctx, "uplink", func() error {
		return ns.Netlink(v.opts.Netns, func(h *netlink.Handle) error {
			return ns.Configure(h, uplinkLink, []netip.Prefix{netip.PrefixFrom(UplinkGateway, uplinkNet.Bits())}, nil)
		})
	})
}

// Route routes packets from outside for a subnet to the router of its network.
func (v *OVN) Route(subnet netip.Prefix, router netip.Addr) error {
	return ns.Netlink(v.opts.Netns, func(h *netlink.Handle) error {
		l, err := h.LinkByName(uplinkLink)
		if err != nil {
			return fmt.Errorf("find uplink: %w", err)
		}
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ns.IPNet(subnet.Masked()), Gw: router.AsSlice()}
		if err := h.RouteReplace(r); err != nil {
			return fmt.Errorf("add route to %s through the uplink: %w", subnet, err)
		}
		return nil
	})
}

// uplink creates the uplink when the first network has one.
func (d *diff) uplink() {
	if d.from.hasUplink() || !d.to.hasUplink() {
		return
	}
	d.do("--may-exist", "ls-add", uplinkSwitch)
	d.do("--may-exist", "lsp-add", uplinkSwitch, uplinkPort)
	d.do("lsp-set-addresses", uplinkPort, uplinkMAC+" "+UplinkGateway.String())
}

func (s State) hasUplink() bool {
	return slices.ContainsFunc(s.Networks, func(n Network) bool { return n.Uplink.IsValid() })
}

// onUplink connects a network's existing router to the uplink.
func onUplink(n Network, router string) [][]string {
	leg, end := n.ID+"-uplink", router+"-up"
	return [][]string{
		{"lrp-add", router, end, routerMAC(leg), n.Uplink.String()},
		{"lr-route-add", router, "0.0.0.0/0", UplinkGateway.String()},
		{"lsp-add", uplinkSwitch, leg},
		{"lsp-set-type", leg, "router"},
		{"lsp-set-addresses", leg, "router"},
		{"lsp-set-options", leg, "router-port=" + end},
	}
}
