package openstack

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// Addresses of services and nodes are in the block for network benchmarks (RFC 2544), which nothing else in
// a lab uses. A node's number determines its addresses.
var (
	services    = netip.MustParsePrefix("198.18.0.1/24") // of all services
	tunnelsNet  = netip.MustParsePrefix("198.18.1.0/24")
	maxNodes    = 200
	firstNumber = 10
)

const (
	bridgeLink = "vpc-ground" // the bridge, in the services' namespace
	nodeLink   = "vpc0"       // of a node, to the services
	tunnelLink = "vpc1"       // of a node, below Open vSwitch
	groundMTU  = 1500         // bytes
)

// at returns the address with a number in the network of a prefix, with its length.
func at(p netip.Prefix, number int) netip.Prefix {
	a := p.Masked().Addr().As4()
	a[3] = byte(number)
	return netip.PrefixFrom(netip.AddrFrom4(a), p.Bits())
}

// ground is the network between services and nodes.
type ground struct{ netns string }

func newGround(netns string) (*ground, error) {
	g := &ground{netns: netns}
	if g.netns == "" {
		g.netns = "/proc/thread-self/ns/net" // the first thread may be in another one
	}
	return g, g.addBridge()
}

func (g *ground) addBridge() error {
	return ns.Netlink(g.netns, func(h *netlink.Handle) error {
		if err := remove(h, bridgeLink); err != nil { // left by an instance that crashed
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = bridgeLink, groundMTU
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge %s: %w", bridgeLink, err)
		}
		if err := ns.LinkUp(h, "lo"); err != nil {
			return err
		}
		return ns.Configure(h, bridgeLink, []netip.Prefix{services}, nil)
	})
}

// remove removes a link. A missing link is not an error.
func remove(h *netlink.Handle, name string) error {
	l, err := h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = h.LinkDel(l)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// ends returns the names of the bridge's ends of a node's links.
func ends(number int) map[string]string {
	return map[string]string{nodeLink: fmt.Sprintf("vpc0-%d", number), tunnelLink: fmt.Sprintf("vpc1-%d", number)}
}

// join connects a node's network namespace to the bridge.
func (g *ground) join(netns string, number int) error {
	err := ns.Netlink(g.netns, func(h *netlink.Handle) error {
		bridge, err := h.LinkByName(bridgeLink)
		if err != nil {
			return fmt.Errorf("find link %s: %w", bridgeLink, err)
		}
		for inside, outside := range ends(number) {
			if err := remove(h, outside); err != nil {
				return err
			}
			if err := ns.AddVeth(h, outside, netns, inside, nil, groundMTU); err != nil {
				return err
			}
			l, err := h.LinkByName(outside)
			if err == nil {
				err = h.LinkSetMaster(l, bridge)
			}
			if err != nil {
				return fmt.Errorf("connect link %s to %s: %w", outside, bridgeLink, err)
			}
			if err := ns.LinkUp(h, outside); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return ns.Netlink(netns, func(h *netlink.Handle) error {
		return errors.Join(ns.LinkUp(h, "lo"), ns.Configure(h, nodeLink, []netip.Prefix{at(services, number)}, nil), ns.LinkUp(h, tunnelLink))
	})
}

// leave disconnects a node. Its network namespace may be gone.
func (g *ground) leave(number int) error {
	return ns.Netlink(g.netns, func(h *netlink.Handle) error {
		var errs []error
		for _, outside := range ends(number) {
			errs = append(errs, remove(h, outside))
		}
		return errors.Join(errs...)
	})
}

func (g *ground) close() error {
	if _, err := os.Stat(g.netns); errors.Is(err, os.ErrNotExist) && filepath.Dir(g.netns) == ns.Dir {
		return nil // deleted together with its namespace
	}
	return ns.Netlink(g.netns, func(h *netlink.Handle) error { return remove(h, bridgeLink) })
}
