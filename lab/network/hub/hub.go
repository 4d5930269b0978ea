// Package hub connects the bridges of several nodes: a hub is a namespace with a bridge that has the router addresses of
// the network's subnets, and routes between them. It uses no tunnels.
package hub

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// bridge is the name of the hub's bridge.
const bridge = "hub"

// Hub is one hub. It is safe for concurrent use.
type Hub struct {
	name string // of its namespace
	mtu  int    // bytes

	mu    sync.Mutex // guards links
	links int        // number of links created so far, for their names
}

// New creates the namespace called name, with the addresses of routers in their subnets. mtu is the MTU of its links in
// bytes.
func New(name string, mtu int, routers ...netip.Prefix) (*Hub, error) {
	if err := ns.Create(name); err != nil {
		return nil, err
	}
	h := &Hub{name: name, mtu: mtu}
	if err := h.raise(routers); err != nil {
		return nil, errors.Join(fmt.Errorf("create hub %s: %w", name, err), h.Close())
	}
	return h, nil
}

func (h *Hub) raise(routers []netip.Prefix) error {
	err := ns.Do(ns.Path(h.name), func() error { return ns.SetSysctls(ns.Forwarding...) })
	if err != nil {
		return err
	}
	return ns.Netlink(ns.Path(h.name), func(n *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = bridge, h.mtu
		if err := n.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge %s: %w", bridge, err)
		}
		return errors.Join(ns.LinkUp(n, "lo"), ns.Configure(n, bridge, routers, nil))
	})
}

// Join connects a bridge in the namespace at path through a link called name there. It replaces a leftover link with that
// name.
func (h *Hub) Join(path, to, name string) error {
	h.mu.Lock()
	h.links++
	end := fmt.Sprintf("node-%d", h.links)
	h.mu.Unlock()
	err := ns.Netlink(path, func(n *netlink.Handle) error {
		if err := ns.DeleteLink(n, name); err != nil {
			return err
		}
		if err := ns.AddVeth(n, name, ns.Path(h.name), end, nil, h.mtu); err != nil {
			return err
		}
		return enslave(n, name, to)
	})
	if err != nil {
		return fmt.Errorf("join %s in %s to hub %s: %w", to, path, h.name, err)
	}
	return ns.Netlink(ns.Path(h.name), func(n *netlink.Handle) error { return enslave(n, end, bridge) })
}

// enslave makes a link a port of a bridge.
func enslave(n *netlink.Handle, name, to string) error {
	l, err := n.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	b, err := n.LinkByName(to)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", to, err)
	}
	return errors.Join(n.LinkSetMaster(l, b), n.LinkSetUp(l))
}

// Close removes the hub with all its links.
func (h *Hub) Close() error { return ns.Remove(h.name) }
