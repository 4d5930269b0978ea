package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/datapath"
)

// fakeKernel is a Kernel in memory that follows datapath.Node's contracts.
type fakeKernel struct {
	fakeCalls // its mu guards all
	links     map[string]datapath.Pod
	routes    map[netip.Addr]string
	reaps     [][]string
}

var _ Kernel = (*fakeKernel)(nil)

func newFakeKernel() *fakeKernel {
	return &fakeKernel{fakeCalls: newFakeCalls(), links: map[string]datapath.Pod{}, routes: map[netip.Addr]string{}}
}

func (k *fakeKernel) AddPod(ctx context.Context, p datapath.Pod) (datapath.PodLinks, error) {
	err := k.enter(ctx, "AddPod")
	defer k.mu.Unlock()
	if err != nil {
		return datapath.PodLinks{}, err
	}
	for _, a := range p.Addrs() {
		if l, ok := k.routes[a]; ok && l != p.HostIfName {
			return datapath.PodLinks{}, fmt.Errorf("route %s: %w: %s", a, datapath.ErrAddressInUse, l)
		}
	}
	if p.HostMAC == nil {
		p.HostMAC, p.PodMAC = []byte{2, 0, 0, 0, 0, 1}, []byte{2, 0, 0, 0, 0, 2}
	}
	if p.MTU == 0 {
		p.MTU = 9001
	}
	k.links[p.HostIfName] = p
	for _, a := range p.Addrs() {
		k.routes[a] = p.HostIfName
	}
	return datapath.PodLinks{HostMAC: p.HostMAC, PodMAC: p.PodMAC, MTU: p.MTU}, nil
}

func (k *fakeKernel) CheckPod(ctx context.Context, p datapath.Pod) error {
	err := k.enter(ctx, "CheckPod")
	defer k.mu.Unlock()
	if err != nil {
		return err
	}
	for _, a := range p.Addrs() {
		if k.routes[a] != p.HostIfName {
			return &datapath.Mismatch{Pod: p, Differences: []string{fmt.Sprintf("no route to %s", a)}}
		}
	}
	if p.Several && !k.links[p.HostIfName].Several {
		return &datapath.Mismatch{Pod: p, Differences: []string{"no rule for what the pod sends by this one of its interfaces"}}
	}
	return nil
}

func (k *fakeKernel) PodRules(ctx context.Context, uplink int, addrs []netip.Addr) ([]string, error) {
	err := k.enter(ctx, "PodRules")
	defer k.mu.Unlock()
	return []string{fmt.Sprintf("rules of uplink %d for %v", uplink, addrs)}, err
}

func (k *fakeKernel) DetachPod(ctx context.Context, hostLink string, addrs []netip.Addr) error {
	err := k.enter(ctx, "DetachPod")
	defer k.mu.Unlock()
	if err != nil {
		return err
	}
	if !datapath.IsHostLinkName(hostLink) {
		return fmt.Errorf("detach pod link: %q", hostLink) // as the real one
	}
	for _, a := range addrs {
		if k.routes[a] == hostLink {
			delete(k.routes, a)
		}
	}
	return nil
}

func (k *fakeKernel) ReapLinks(ctx context.Context, links []string) error {
	err := k.enter(ctx, "ReapLinks")
	defer k.mu.Unlock()
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(links, func(l string) bool { return !datapath.IsHostLinkName(l) }); i >= 0 {
		return fmt.Errorf("remove pod links: %q", links[i]) // as the real one
	}
	k.reaps = append(k.reaps, links)
	for _, l := range links {
		delete(k.links, l)
		for a, on := range k.routes {
			if on == l {
				delete(k.routes, a)
			}
		}
	}
	return nil
}

func (k *fakeKernel) Inventory(ctx context.Context) (datapath.Inventory, error) {
	err := k.enter(ctx, "Inventory")
	defer k.mu.Unlock()
	if err != nil {
		return datapath.Inventory{}, err
	}
	var inv datapath.Inventory
	for l := range k.links {
		inv.Links = append(inv.Links, datapath.LinkInfo{Name: l})
	}
	for a, l := range k.routes {
		inv.Routes = append(inv.Routes, datapath.RouteInfo{Addr: a, Link: l})
	}
	return inv, nil
}

// dropRoutes is somebody's removal of all routes.
func (k *fakeKernel) dropRoutes() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.routes)
}

func (k *fakeKernel) dropRoute(a netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.routes, a)
}

// state lists links and routes, sorted.
func (k *fakeKernel) state() (links []string, routes []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l := range k.links {
		links = append(links, l)
	}
	for a, l := range k.routes {
		routes = append(routes, a.String()+" "+l)
	}
	slices.Sort(links)
	slices.Sort(routes)
	return links, routes
}
