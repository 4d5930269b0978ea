// Package site is a data centre on one machine, for the address source pool: a
// network namespace is its router, each node a namespace behind a link of its
// own, and one host lies outside. Nodes and router run the real BIRD: each
// node's exports by BGP what Berth keeps in its export table, the router
// forwards by what it has learned, and drops the rest. No address is translated.
//
// Namespaces are named as a fabric's are, so that fabric.Sweep finds what a
// crash left.
package site

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/network/fabric"
)

// Options describe a site. ID and Dir are needed.
type Options struct {
	ID  string // distinguishes this site from other labs on the machine; see fabric.Options
	Dir string // for the files and logs of the BIRDs
	// Silent leaves out BIRD: pods have no addresses that the router would know.
	Silent bool
	// Services is what the router sends to the nodes, to one for each pair of addresses, as
	// their kube-proxies know what to do with it; zero: nothing.
	Services netip.Prefix
}

// Addresses of the site that are not its nodes'.
var (
	// OutsideHost and OutsideHost6 belong to the host outside.
	OutsideHost  = fabric.InternetHost
	OutsideHost6 = fabric.InternetHost6
	// APIEndpoint is where the Kubernetes API is served, on the router.
	APIEndpoint = fabric.APIEndpoint
)

// Links are the networks of the router's links to nodes, from whose addresses it sends.
const Links = "172.20.0.0/16,fd00:20::/32"

const (
	// ExportTable is where the nodes' BIRDs look for blocks: berthd's default.
	ExportTable = 119

	mtu          = 1500 // bytes, of every link
	maxNodes     = 250
	routerNumber = 4200000000 // of the router's autonomous system; private (RFC 6996)
)

// Site is a running one. Its methods may be called concurrently.
type Site struct {
	opts Options
	bird *bird // the router's; nil in a silent site, as are the nodes'

	mu     sync.Mutex // serialises changes and guards all below
	rt     *netlink.Handle
	nodes  map[string]*host
	used   [maxNodes + 1]bool // numbers of nodes
	closed bool
}

// host is a node as the site knows it.
type host struct {
	number int
	bird   *bird
}

// Addrs are a node's own addresses.
type Addrs struct{ IPv4, IPv6 netip.Addr }

// New raises the router, the host outside, and the router's BIRD. Leftovers of
// an earlier site of the same ID are an error: fabric.Sweep them first.
func New(o Options) (*Site, error) {
	s := &Site{opts: o, nodes: map[string]*host{}}
	if err := s.raise(); err != nil {
		return nil, errors.Join(fmt.Errorf("raise site %s: %w", o.ID, err), s.Close())
	}
	return s, nil
}

// RouterPath is the namespace file of the router, where the Kubernetes API
// listens and whatever else belongs to no node.
func (s *Site) RouterPath() string { return ns.Path(s.name("router")) }

// OutsidePath is the namespace file of the host outside.
func (s *Site) OutsidePath() string { return ns.Path(s.name("outside")) }

// NodePath is the namespace file of a node.
func (s *Site) NodePath(node string) string { return ns.Path(s.nodeName(node)) }

func (s *Site) name(part string) string     { return fabric.Prefix(s.opts.ID) + part }
func (s *Site) nodeName(node string) string { return s.name("node-" + node) }

func (s *Site) raise() error {
	if _, err := birdPath(); err != nil && !s.opts.Silent {
		return err
	}
	if err := os.MkdirAll(s.opts.Dir, 0o755); err != nil {
		return err
	}
	for _, part := range []string{"router", "outside"} {
		if err := ns.Create(s.name(part)); err != nil {
			return err
		}
	}
	if err := s.raiseRouter(); err != nil {
		return err
	}
	if err := s.raiseOutside(); err != nil {
		return err
	}
	if s.opts.Silent {
		return nil
	}
	s.bird = s.newBird("router", s.RouterPath(), routerConfig)
	return s.bird.start()
}

func (s *Site) raiseRouter() error {
	return ns.Do(s.RouterPath(), func() (err error) {
		if err := ns.SetSysctls(ns.Forwarding...); err != nil {
			return err
		}
		if s.rt, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return fmt.Errorf("open rtnetlink: %w", err)
		}
		return ns.Configure(s.rt, "lo", []netip.Prefix{netip.PrefixFrom(APIEndpoint, 32)}, nil)
	})
}

func (s *Site) raiseOutside() error {
	return s.plug("outside", s.OutsidePath(), Addrs{OutsideHost, OutsideHost6},
		Addrs{fabric.RouterOf(netip.PrefixFrom(OutsideHost, 24)), fabric.RouterOf(netip.PrefixFrom(OutsideHost6, 64))})
}

// plug connects a namespace with addresses to the router.
func (s *Site) plug(link, path string, own, router Addrs) error {
	return ns.AddHost(s.rt, link, path,
		[]netip.Prefix{netip.PrefixFrom(own.IPv4, 24), netip.PrefixFrom(own.IPv6, 64)}, []netip.Addr{router.IPv4, router.IPv6}, mtu)
}

// Of a node's number: its addresses, those of the router on its link, and the
// number of its autonomous system.
func (h *host) addrs() Addrs {
	return Addrs{
		IPv4: netip.AddrFrom4([4]byte{172, 20, byte(h.number), 2}),
		IPv6: netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x20, 7: byte(h.number), 15: 2}),
	}
}

func (h *host) routers() Addrs {
	a := h.addrs()
	return Addrs{a.IPv4.Prev(), a.IPv6.Prev()}
}

func (h *host) as() int { return routerNumber + h.number }

// AddNode makes a node's namespace with its uplink and starts its BIRD.
func (s *Site) AddNode(node string) (Addrs, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[node] != nil {
		return Addrs{}, fmt.Errorf("node %s exists", node)
	}
	h := &host{number: slices.Index(s.used[1:], false) + 1}
	if h.number == 0 {
		return Addrs{}, fmt.Errorf("add node %s: a site has room for %d", node, maxNodes)
	}
	if err := ns.Create(s.nodeName(node)); err != nil {
		return Addrs{}, err
	}
	s.nodes[node], s.used[h.number] = h, true
	a := h.addrs()
	if err := s.plug(fmt.Sprintf("node%d", h.number), s.NodePath(node), a, h.routers()); err != nil {
		return Addrs{}, fmt.Errorf("add node %s: %w", node, err)
	}
	if err := s.spreadServices(); err != nil {
		return Addrs{}, fmt.Errorf("add node %s: %w", node, err)
	}
	if s.opts.Silent {
		return a, nil
	}
	h.bird = s.newBird(node, s.NodePath(node), h.config())
	return a, h.bird.start()
}

// Addrs are the own addresses of a node, zero of an unknown one.
func (s *Site) Addrs(node string) Addrs {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.nodes[node]; h != nil {
		return h.addrs()
	}
	return Addrs{}
}

// RemoveNode removes a node's namespace. The caller has ended the node's
// processes but its BIRD. An unknown node is no error.
func (s *Site) RemoveNode(node string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.nodes[node]
	if h == nil {
		return nil
	}
	delete(s.nodes, node)
	s.used[h.number] = false
	var err error
	if h.bird != nil {
		err = h.bird.Kill()
	}
	return errors.Join(err, ns.Remove(s.nodeName(node)), s.spreadServices())
}

// spreadServices has the router send services to the nodes that there are.
func (s *Site) spreadServices() error {
	if !s.opts.Services.IsValid() || s.closed {
		return nil
	}
	route := &netlink.Route{Dst: ns.IPNet(s.opts.Services)}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{Gw: s.nodes[name].addrs().IPv4.AsSlice()})
	}
	if len(route.MultiPath) == 0 {
		return nil // the last node's link took the route along
	}
	if err := s.rt.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s to the nodes: %w", s.opts.Services, err)
	}
	return nil
}

// Routes lists where the router sends packets for pods: what it has learned.
func (s *Site) Routes(context.Context) (map[netip.Prefix]netip.Addr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[netip.Prefix]netip.Addr{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := s.rt.RouteListFiltered(family, &netlink.Route{Protocol: unix.RTPROT_BIRD}, netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return nil, fmt.Errorf("list the router's routes: %w", err)
		}
		for _, r := range routes {
			a, _ := netip.AddrFromSlice(r.Dst.IP)
			ones, _ := r.Dst.Mask.Size()
			gw, _ := netip.AddrFromSlice(r.Gw)
			out[netip.PrefixFrom(a.Unmap(), ones)] = gw.Unmap()
		}
	}
	return out, nil
}

// Close removes everything of the site but the logs. Other processes in its
// namespaces must have ended. A second Close does nothing.
func (s *Site) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	for _, h := range s.nodes {
		if h.bird != nil {
			errs = append(errs, h.bird.Kill())
		}
	}
	if s.bird != nil {
		errs = append(errs, s.bird.Kill())
	}
	if s.rt != nil {
		s.rt.Close()
	}
	_, err := fabric.Sweep(s.opts.ID)
	return errors.Join(append(errs, err)...)
}
