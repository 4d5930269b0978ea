// Package datapathfake is an in-memory data path for tests: a Kernel with pods' links and routes, uplinks, blocks and
// network namespaces, and a Node for each daemon that uses it.
package datapathfake

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/kernel/datapath"
)

// Kernel is the state of the kernel of one node. It outlives daemons and is safe for concurrent use.
type Kernel struct {
	// HasLink reports whether an ENI has a link. Nil means that every ENI has one. Set it before use.
	HasLink func(net.HardwareAddr) bool
	// AnyNetns allows pods in network namespaces that AddNetns did not make. Set it before use.
	AnyNetns bool

	mu      sync.Mutex                  // guards all below
	links   map[string]datapath.Pod     // by name of the host end
	routes  map[netip.Addr]string       // to host ends
	uplinks map[int]datapath.Uplink     // secondary, by number
	blocks  map[netip.Prefix]bool       // whether it is announced
	netns   map[string]datapath.NetnsID // network namespaces by path
	made    uint64                      // number of namespaces made so far
	foreign []datapath.ForeignRoute     // routes of other software
}

// NewKernel returns an empty Kernel.
func NewKernel() *Kernel {
	return &Kernel{
		links: map[string]datapath.Pod{}, routes: map[netip.Addr]string{}, uplinks: map[int]datapath.Uplink{},
		blocks: map[netip.Prefix]bool{}, netns: map[string]datapath.NetnsID{},
	}
}

// SetForeignRoutes replaces the routes of other software.
func (k *Kernel) SetForeignRoutes(routes ...datapath.ForeignRoute) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.foreign = routes
}

// AddNetns makes a network namespace and returns its path.
func (k *Kernel) AddNetns(name string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made++
	path := "/run/netns/" + name
	k.netns[path] = datapath.NetnsID{Dev: 4, Inode: 4026530000 + k.made}
	return path
}

// RemoveNetns removes a network namespace with its links and their routes.
func (k *Kernel) RemoveNetns(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.netns, path)
	for name, pod := range k.links {
		if pod.Netns == path {
			k.removeLink(name)
		}
	}
}

// InspectNetns is like datapath.InspectNetns.
func (k *Kernel) InspectNetns(path string) (datapath.NetnsID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if id, ok := k.netns[path]; ok {
		return id, nil
	}
	return datapath.NetnsID{}, fmt.Errorf("%s: %w", path, datapath.ErrNoNetns)
}

// State lists pod links, and routes as "ADDRESS LINK", sorted.
func (k *Kernel) State() (links, routes []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for a, name := range k.routes {
		routes = append(routes, a.String()+" "+name)
	}
	slices.Sort(routes)
	return slices.Sorted(maps.Keys(k.links)), routes
}

// Edit changes links and routes as other software would. Links are named by their host end.
func (k *Kernel) Edit(do func(links map[string]datapath.Pod, routes map[netip.Addr]string)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do(k.links, k.routes)
}

// Uplinks lists the secondary ENIs that are set up, by number.
func (k *Kernel) Uplinks() map[int]datapath.Uplink {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.uplinks)
}

// Blocks lists the prefixes of blocks, and whether each is announced.
func (k *Kernel) Blocks() map[netip.Prefix]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.blocks)
}

// removeLink removes a link and its routes. k.mu is held.
func (k *Kernel) removeLink(name string) {
	delete(k.links, name)
	maps.DeleteFunc(k.routes, func(_ netip.Addr, on string) bool { return on == name })
}
