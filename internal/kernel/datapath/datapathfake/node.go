package datapathfake

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/kernel/datapath"
)

// Node implements the methods of datapath.Node on a Kernel.
type Node struct {
	kernel *Kernel
	do     Do

	made, detached map[string]bool // links whose last call was DetachPod, not AddPod; guarded by kernel.mu
}

// Do applies the effect of a method call, or returns an error instead.
type Do func(method string, effect func()) error

// Open returns a daemon's handle to the kernel.
func (k *Kernel) Open(do Do) *Node {
	return &Node{kernel: k, do: do, made: map[string]bool{}, detached: map[string]bool{}}
}

func (n *Node) call(ctx context.Context, method string, work func(k *Kernel) error) (err error) {
	refused := n.do(method, func() {
		if err = ctx.Err(); err != nil {
			return
		}
		n.kernel.mu.Lock()
		defer n.kernel.mu.Unlock()
		err = work(n.kernel)
	})
	if refused != nil {
		return refused
	}
	return err
}

// Setup is like that of datapath.Node.
func (n *Node) Setup(ctx context.Context, c datapath.Config) error {
	return n.call(ctx, "Setup", func(*Kernel) error { return c.Validate() })
}

// SetUplink is like that of datapath.Node.
func (n *Node) SetUplink(ctx context.Context, u datapath.Uplink) error {
	return n.call(ctx, "SetUplink", func(k *Kernel) error { return k.setUplink(u) })
}

func (k *Kernel) setUplink(u datapath.Uplink) error {
	if err := u.Validate(); err != nil {
		return err
	}
	if k.HasLink != nil && !k.HasLink(u.MAC) {
		return fmt.Errorf("set up ENI %s: %w", u.ID, datapath.ErrNoLink)
	}
	if !u.Primary {
		k.uplinks[u.Number] = u
	}
	return nil
}

// UplinkLinks is like that of datapath.Node, for secondary ENIs. None is ever replaced.
func (n *Node) UplinkLinks(ctx context.Context) (out map[string]datapath.UplinkLink, err error) {
	err = n.call(ctx, "UplinkLinks", func(k *Kernel) error {
		out = map[string]datapath.UplinkLink{}
		for _, u := range k.uplinks {
			have := datapath.UplinkLink{Set: 1, Now: 1}
			if k.HasLink != nil && !k.HasLink(u.MAC) {
				have.Now = 0
			}
			out[u.ID] = have
		}
		return nil
	})
	return out, err
}

// RemoveUplink is like that of datapath.Node.
func (n *Node) RemoveUplink(ctx context.Context, number int) error {
	return n.call(ctx, "RemoveUplink", func(k *Kernel) error { delete(k.uplinks, number); return nil })
}

// SetBlocks is like that of datapath.Node.
func (n *Node) SetBlocks(ctx context.Context, blocks []datapath.Block) error {
	return n.call(ctx, "SetBlocks", func(k *Kernel) error { k.setBlocks(blocks); return nil })
}

func (k *Kernel) setBlocks(blocks []datapath.Block) {
	clear(k.blocks)
	for _, b := range blocks {
		for _, p := range b.Prefixes {
			k.blocks[p] = true
		}
	}
}

// WithdrawBlocks is like that of datapath.Node.
func (n *Node) WithdrawBlocks(ctx context.Context) error {
	return n.call(ctx, "WithdrawBlocks", func(k *Kernel) error {
		for p := range k.blocks {
			k.blocks[p] = false
		}
		return nil
	})
}

// Watch is like that of datapath.Node. It reports no events.
func (n *Node) Watch(ctx context.Context) (<-chan datapath.Event, error) {
	events := make(chan datapath.Event)
	context.AfterFunc(ctx, func() { close(events) })
	return events, ctx.Err()
}

// ForeignRoutes is like that of datapath.Node.
func (n *Node) ForeignRoutes(ctx context.Context) (routes []datapath.ForeignRoute, err error) {
	err = n.call(ctx, "ForeignRoutes", func(k *Kernel) error { routes = slices.Clone(k.foreign); return nil })
	return routes, err
}

// NodeAddresses is like that of datapath.Node. It returns none.
func (n *Node) NodeAddresses(ctx context.Context) ([]datapath.NodeAddress, error) {
	return nil, ctx.Err()
}

// RemoveNodeAddress is like that of datapath.Node.
func (n *Node) RemoveNodeAddress(ctx context.Context, _ netip.Addr) error { return ctx.Err() }

// ForwardPolicy is like that of datapath.Node. It returns no findings.
func (n *Node) ForwardPolicy(ctx context.Context) ([]datapath.Finding, error) { return nil, ctx.Err() }

// ARPFiltered is like that of datapath.Node.
func (n *Node) ARPFiltered() bool { return true }

// Close is like that of datapath.Node.
func (n *Node) Close() error { return nil }

// AddPod is like that of datapath.Node.
func (n *Node) AddPod(ctx context.Context, p datapath.Pod) (links datapath.PodLinks, err error) {
	err = n.call(ctx, "AddPod", func(k *Kernel) error {
		if err := p.Validate(); err != nil {
			return err
		}
		if id, ok := k.netns[p.Netns]; !k.AnyNetns && !ok || ok && p.NetnsID != (datapath.NetnsID{}) && p.NetnsID != id {
			return fmt.Errorf("%s: %w", p.Netns, datapath.ErrNoNetns)
		}
		if err := k.addPod(&p); err != nil {
			return err
		}
		n.made[p.HostIfName] = true
		delete(n.detached, p.HostIfName)
		links = datapath.PodLinks{HostMAC: p.HostMAC, PodMAC: p.PodMAC, MTU: p.MTU}
		return nil
	})
	return links, err
}

func (k *Kernel) addPod(p *datapath.Pod) error {
	for _, a := range p.Addrs() {
		if on, ok := k.routes[a]; ok && on != p.HostIfName {
			return fmt.Errorf("route %s: %w: %s", a, datapath.ErrAddressInUse, on)
		}
	}
	if p.HostMAC == nil {
		p.HostMAC, p.PodMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	}
	if p.MTU == 0 {
		p.MTU = 9001
	}
	k.removeLink(p.HostIfName)
	k.links[p.HostIfName] = *p
	for _, a := range p.Addrs() {
		k.routes[a] = p.HostIfName
	}
	return nil
}

// CheckPod is like that of datapath.Node.
func (n *Node) CheckPod(ctx context.Context, p datapath.Pod) error {
	return n.call(ctx, "CheckPod", func(k *Kernel) error {
		for _, a := range p.Addrs() {
			if k.routes[a] != p.HostIfName {
				return &datapath.Mismatch{Pod: p, Differences: []string{fmt.Sprintf("no route to %s", a)}}
			}
		}
		if p.Several && !k.links[p.HostIfName].Several {
			return &datapath.Mismatch{Pod: p, Differences: []string{"no rule for what the pod sends by this one of its interfaces"}}
		}
		return nil
	})
}

// PodRules is like that of datapath.Node.
func (n *Node) PodRules(ctx context.Context, uplink int, addrs []netip.Addr) (rules []string, err error) {
	return []string{fmt.Sprintf("rules of uplink %d for %v", uplink, addrs)}, n.call(ctx, "PodRules", func(*Kernel) error { return nil })
}

// DetachPod is like that of datapath.Node.
func (n *Node) DetachPod(ctx context.Context, hostLink string, addrs []netip.Addr) error {
	return n.call(ctx, "DetachPod", func(k *Kernel) error {
		if !datapath.IsHostLinkName(hostLink) {
			return fmt.Errorf("detach pod link: %q", hostLink)
		}
		n.detached[hostLink] = true
		delete(n.made, hostLink)
		for _, a := range addrs {
			if k.routes[a] == hostLink {
				delete(k.routes, a)
			}
		}
		return nil
	})
}

// ReapLinks is like that of datapath.Node.
func (n *Node) ReapLinks(ctx context.Context, links []string) error {
	return n.call(ctx, "ReapLinks", func(k *Kernel) error {
		if i := slices.IndexFunc(links, func(l string) bool { return !datapath.IsHostLinkName(l) }); i >= 0 {
			return fmt.Errorf("remove pod links: %q", links[i])
		}
		for _, l := range links {
			k.removeLink(l)
		}
		return nil
	})
}

// Inventory is like that of datapath.Node.
func (n *Node) Inventory(ctx context.Context) (inv datapath.Inventory, err error) {
	err = n.call(ctx, "Inventory", func(k *Kernel) error {
		for l := range k.links {
			inv.Links = append(inv.Links, datapath.LinkInfo{Name: l, Up: true})
		}
		for a, l := range k.routes {
			inv.Routes = append(inv.Routes, datapath.RouteInfo{Addr: a, Link: l})
		}
		for number := range k.uplinks {
			inv.Uplinks = append(inv.Uplinks, datapath.UplinkInfo{Number: number})
		}
		for p := range k.blocks {
			inv.Blocks = append(inv.Blocks, datapath.BlockInfo{Prefix: p, Unreachable: true})
		}
		return nil
	})
	return inv, err
}

// Repair is like that of datapath.Node.
func (n *Node) Repair(ctx context.Context, want datapath.Desired) (did []string, err error) {
	err = n.call(ctx, "Repair", func(k *Kernel) error {
		switch list := want.Supply.(type) {
		case datapath.UplinkList:
			did, err = k.restoreUplinks(list)
		case datapath.BlockList:
			k.setBlocks(list)
		}
		desired := map[string]bool{}
		for _, name := range want.Spare {
			desired[name] = true
		}
		for _, p := range want.Pods {
			desired[p.HostIfName] = true
			if n.detached[p.HostIfName] || k.complete(p) {
				continue
			}
			did = append(did, "pod link "+p.HostIfName)
			if e := k.addPod(&p); e != nil {
				err = e
			}
		}
		for name := range k.links {
			if !desired[name] && !n.made[name] && !n.detached[name] {
				k.removeLink(name)
				did = append(did, "stray link "+name)
			}
		}
		return err
	})
	return did, err
}

// complete reports whether a pod has its link and routes. k.mu is held.
func (k *Kernel) complete(p datapath.Pod) bool {
	_, has := k.links[p.HostIfName]
	return has && !slices.ContainsFunc(p.Addrs(), func(a netip.Addr) bool { return k.routes[a] != p.HostIfName })
}

// restoreUplinks replaces the uplinks. k.mu is held.
func (k *Kernel) restoreUplinks(list datapath.UplinkList) (did []string, err error) {
	desired := map[int]bool{}
	for _, u := range list {
		desired[u.Number] = !u.Primary
		if e := k.setUplink(u); e != nil {
			err = e
		}
	}
	for number := range k.uplinks {
		if !desired[number] {
			delete(k.uplinks, number)
			did = append(did, fmt.Sprintf("stray uplink %d", number))
		}
	}
	return did, err
}
