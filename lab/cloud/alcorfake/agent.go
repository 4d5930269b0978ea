package alcorfake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// DefaultPrefix is the default prefix of the names of VPCs' network namespaces (the design of NICs and
// VPCs in Arktos, "Alcor CNI Plugin").
const DefaultPrefix = "vpc-ns"

// AgentOptions configure an agent.
type AgentOptions struct {
	Host   string // the host of ports that are bound to the node
	Netns  string // the file of the node's network namespace
	Prefix string // prefix of the names of VPCs' namespaces; empty: DefaultPrefix
	// Uplink connects a new bridge of a VPC to those of other nodes; nil: packets stay on the node.
	Uplink func(vpc, bridge string) error
}

// Agent is the control agent of a node. For each port that is bound to the node and in use, it creates a
// veth pair. One end, named veth plus the first 11 characters of the port's ID, is in the namespace of
// the VPC, with the port's MAC address, addresses and gateway; the other end is on the VPC's bridge on
// the node. The port then becomes active. When the port is deleted, the agent deletes the veth pair,
// even if its end has been moved. An agent that starts after a crash adopts the links of its predecessor.
type Agent struct {
	cloud  *Cloud
	o      AgentOptions
	cancel context.CancelFunc
	done   chan struct{}

	links    map[string]link // by port; owned by the agent's goroutine, and by Close once it has ended
	networks map[string]bool // VPCs with a namespace and a bridge

	mu  sync.Mutex // guards err
	err error
}

// link is the link of a port.
type link struct {
	peer       string
	generation int // of the port at the time of programming
}

// short returns the part of an ID that names of links contain.
func short(id string) string { return id[:min(len(id), 11)] }

func linkName(port string) string     { return "veth" + short(port) }
func peerName(port string) string     { return "alcp" + short(port) }
func bridgeName(vpc string) string    { return "alcb" + short(vpc) }
func (a *Agent) vpc(id string) string { return a.o.Prefix + id }

// StartAgent starts the agent of a host. Close removes its namespaces and links.
func (c *Cloud) StartAgent(o AgentOptions) *Agent {
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	ctx, cancel := context.WithCancel(context.Background())
	a := &Agent{cloud: c, o: o, cancel: cancel, done: make(chan struct{}), links: map[string]link{}, networks: map[string]bool{}}
	go a.run(ctx)
	return a
}

// Close stops the agent and removes its namespaces and links. It returns the agent's first error.
func (a *Agent) Close() error {
	a.Crash()
	for id := range a.links {
		a.note(a.remove(id))
	}
	for id := range a.networks {
		a.note(ns.Remove(a.vpc(id)))
		a.note(ns.Netlink(a.o.Netns, func(h *netlink.Handle) error { return ns.DeleteLink(h, bridgeName(id)) }))
	}
	return a.Err()
}

// Crash stops the agent and leaves its namespaces and links.
func (a *Agent) Crash() {
	a.cancel()
	<-a.done
}

// Err returns the agent's first error, or nil.
func (a *Agent) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

func (a *Agent) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = err
	}
}

func (a *Agent) run(ctx context.Context) {
	defer close(a.done)
	changes, stop := a.cloud.watch()
	defer stop()
	a.note(a.adopt())
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
			a.sync()
		}
	}
}

// adopt takes over the namespaces and links of an earlier agent.
func (a *Agent) adopt() error {
	names, err := ns.List(a.o.Prefix)
	if err != nil {
		return err
	}
	a.cloud.set(func() {
		for id := range a.cloud.networks.byID {
			if slices.Contains(names, a.vpc(id)) {
				a.networks[id] = true
			}
		}
	})
	return ns.Netlink(a.o.Netns, func(h *netlink.Handle) error {
		links, err := h.LinkList()
		if err != nil {
			return fmt.Errorf("list links in %s: %w", a.o.Netns, err)
		}
		bound := map[string]string{}
		for _, p := range a.cloud.Ports() {
			bound[peerName(p.ID)] = p.ID
		}
		for _, l := range links {
			name := l.Attrs().Name
			if strings.HasPrefix(name, peerName("")) {
				a.links[cmp.Or(bound[name], name)] = link{peer: name, generation: -1} // of a deleted port: sync removes it
			}
		}
		return nil
	})
}

// sync reconciles the links on the node with the ports.
func (a *Agent) sync() {
	wanted := map[string]Port{}
	for _, p := range a.cloud.Ports() {
		if p.Host == a.o.Host && (p.Device != "" || p.Owner != "") { // an unused port has no link, as with Nova
			wanted[p.ID] = p
		}
	}
	for id := range a.links {
		if _, ok := wanted[id]; !ok {
			a.note(a.remove(id))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		p := wanted[id]
		if made, ok := a.links[id]; ok && made.generation == p.Generation {
			continue
		}
		err := a.provide(p)
		a.note(err)
		a.cloud.Programmed(id, a.o.Host, err == nil)
	}
}

// provide creates the link of a port, unless it exists.
func (a *Agent) provide(p Port) error {
	var subnets map[string]Subnet
	mtu := 0
	a.cloud.set(func() { subnets, mtu = maps.Clone(a.cloud.networks.subnets), a.cloud.networks.byID[p.Network].MTU })
	if err := a.join(p.Network); err != nil {
		return fmt.Errorf("join VPC %s: %w", p.Network, err)
	}
	mac, err := net.ParseMAC(p.MAC)
	if err != nil {
		return fmt.Errorf("port %s: %w", p.ID, err)
	}
	there := false
	err = ns.Netlink(a.o.Netns, func(h *netlink.Handle) error {
		if _, err := h.LinkByName(peerName(p.ID)); err == nil {
			there = true
			return nil
		}
		if err := ns.AddVeth(h, peerName(p.ID), ns.Path(a.vpc(p.Network)), coming, mac, mtu); err != nil {
			return err
		}
		peer, err := h.LinkByName(peerName(p.ID))
		if err != nil {
			return err
		}
		bridge, err := h.LinkByName(bridgeName(p.Network))
		if err != nil {
			return err
		}
		return errors.Join(h.LinkSetMaster(peer, bridge), h.LinkSetUp(peer))
	})
	if err != nil {
		return fmt.Errorf("port %s: %w", p.ID, err)
	}
	a.links[p.ID] = link{peerName(p.ID), p.Generation}
	if there {
		return nil
	}
	err = ns.Netlink(ns.Path(a.vpc(p.Network)), func(h *netlink.Handle) error { return equip(h, p, subnets) })
	if err != nil {
		return fmt.Errorf("port %s: %w", p.ID, err)
	}
	return nil
}

// coming returns the name of a link that is not configured yet.
const coming = "alc-coming"

// equip configures the link of a port and then renames it: from then on a plugin may move it.
func equip(h *netlink.Handle, p Port, subnets map[string]Subnet) error {
	l, err := h.LinkByName(coming)
	if err != nil {
		return fmt.Errorf("find link %s: %w", coming, err)
	}
	for _, f := range p.FixedIPs {
		if err := ns.AddAddr(h, l, netip.PrefixFrom(f.IP, subnets[f.Subnet].CIDR.Bits())); err != nil {
			return err
		}
	}
	if err := h.LinkSetName(l, linkName(p.ID)); err != nil {
		return fmt.Errorf("name link %s: %w", linkName(p.ID), err)
	}
	if err := h.LinkSetUp(l); err != nil {
		return ignoreTaken(fmt.Errorf("set link %s up: %w", linkName(p.ID), err))
	}
	for _, f := range p.FixedIPs {
		gw := subnets[f.Subnet].Gateway
		if !gw.IsValid() {
			continue
		}
		all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if gw.Is4() {
			all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		// Each link needs a different metric, because several ports may have the same gateway.
		r := &netlink.Route{Dst: ns.IPNet(all), Gw: gw.AsSlice(), LinkIndex: l.Attrs().Index, Priority: l.Attrs().Index}
		if err := h.RouteReplace(r); err != nil {
			return ignoreTaken(fmt.Errorf("route through %s: %w", gw, err))
		}
	}
	return nil
}

// ignoreTaken ignores errors for a link that has been moved.
func ignoreTaken(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENETUNREACH) {
		return nil
	}
	return err
}

// join creates the namespace and the bridge of a VPC, unless they exist.
func (a *Agent) join(vpc string) error {
	if a.networks[vpc] {
		return nil
	}
	names, err := ns.List(a.vpc(vpc))
	if err != nil {
		return err
	}
	if !slices.Contains(names, a.vpc(vpc)) {
		if err := ns.Create(a.vpc(vpc)); err != nil {
			return err
		}
	}
	a.networks[vpc] = true
	err = ns.Netlink(ns.Path(a.vpc(vpc)), func(h *netlink.Handle) error { return ns.LinkUp(h, "lo") })
	if err != nil {
		return err
	}
	err = ns.Netlink(a.o.Netns, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridgeName(vpc)
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add bridge %s: %w", attrs.Name, err)
		}
		return ns.LinkUp(h, attrs.Name)
	})
	if err != nil || a.o.Uplink == nil {
		return err
	}
	return a.o.Uplink(vpc, bridgeName(vpc))
}

// remove deletes the link of a port through its end on the node.
func (a *Agent) remove(port string) error {
	peer := a.links[port].peer
	delete(a.links, port)
	return ns.Netlink(a.o.Netns, func(h *netlink.Handle) error { return ns.DeleteLink(h, peer) })
}

// End describes the link of a port on a node.
type End struct {
	Link string // name of the end on the node
	// Home means that the other end is in the VPC's namespace as the agent created it. Otherwise it has been
	// moved or changed.
	Home bool
}

// Ends returns the links of the ports on the node, by port ID.
func (a *Agent) Ends() (map[string]End, error) {
	peers := map[string]bool{}
	err := ns.Netlink(a.o.Netns, func(h *netlink.Handle) error {
		links, err := h.LinkList()
		for _, l := range links {
			if strings.HasPrefix(l.Attrs().Name, peerName("")) {
				peers[l.Attrs().Name] = true
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list links in %s: %w", a.o.Netns, err)
	}
	ends := map[string]End{}
	for _, p := range a.cloud.Ports() {
		if !peers[peerName(p.ID)] {
			continue
		}
		home, err := a.isHome(p)
		if err != nil {
			return nil, err
		}
		ends[p.ID] = End{peerName(p.ID), home}
	}
	return ends, nil
}

// isHome reports whether a port's end is in its VPC's namespace as the agent created it.
func (a *Agent) isHome(p Port) (home bool, err error) {
	err = ns.Netlink(ns.Path(a.vpc(p.Network)), func(h *netlink.Handle) error {
		l, err := h.LinkByName(linkName(p.ID))
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		home = err == nil && l.Attrs().Alias == ""
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look for port %s in %s: %w", p.ID, a.vpc(p.Network), err)
	}
	return home, nil
}
