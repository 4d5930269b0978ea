// Package site is a data centre on one machine, for the address source pool: one network namespace is its router, each
// node is a namespace on a separate link, and one host is outside. Nodes and router run the real BIRD: each node announces
// the routes in Berth's export table over BGP; the router forwards by the routes that it has learned, and drops the rest.
// There is no address translation.
//
// Namespaces are named like those of a fabric, so that fabric.Sweep finds the leftovers of a crash.
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

// Options describe a site. ID and Dir are required.
type Options struct {
	ID  string // distinguishes this site from other labs on the machine; see fabric.Options
	Dir string // for the files and logs of the BIRDs
	// Silent omits BIRD: the router does not learn pods' addresses.
	Silent bool
	// Services is the network that the router routes to the nodes, to one of them per flow, where kube-proxy handles it;
	// zero: none.
	Services netip.Prefix
}

// Addresses of the site other than its nodes'.
var (
	// OutsideHost and OutsideHost6 belong to the host outside.
	OutsideHost  = fabric.InternetHost
	OutsideHost6 = fabric.InternetHost6
	// APIEndpoint is the address of the Kubernetes API on the router.
	APIEndpoint = fabric.APIEndpoint
)

// Links are the networks of the router's links to nodes, which contain its source addresses.
const Links = linksOf4 + "," + linksOf6

const linksOf4, linksOf6 = "172.20.0.0/16", "fd00:20::/32"

const (
	// ExportTable is the table from which the nodes' BIRDs read blocks: berthd's default.
	ExportTable = 119

	mtu          = 1500 // MTU of every link
	maxNodes     = 250
	routerNumber = 4200000000 // autonomous system number of the router; private (RFC 6996)
)

// Site is a running site. It is safe for concurrent use.
type Site struct {
	opts Options
	bird *bird // the router's; nil in a silent site, like those of nodes

	mu     sync.Mutex // serialises changes and guards all below
	rt     *netlink.Handle
	nodes  map[string]*host
	used   [maxNodes + 1]bool // numbers of nodes
	closed bool
}

// host is a node.
type host struct {
	number int
	bird   *bird
}

// Addrs are a node's own addresses.
type Addrs struct{ IPv4, IPv6 netip.Addr }

// New creates the router, the host outside, and the router's BIRD. Leftovers of an earlier site with the same ID are an
// error: call fabric.Sweep first.
func New(o Options) (*Site, error) {
	s := &Site{opts: o, nodes: map[string]*host{}}
	if err := s.raise(); err != nil {
		return nil, errors.Join(fmt.Errorf("create site %s: %w", o.ID, err), s.Close())
	}
	return s, nil
}

// RouterPath returns the namespace file of the router, where the Kubernetes API and everything else that belongs to no
// node listen.
func (s *Site) RouterPath() string { return ns.Path(s.name("router")) }

// OutsidePath returns the namespace file of the host outside.
func (s *Site) OutsidePath() string { return ns.Path(s.name("outside")) }

// NodePath returns the namespace file of a node.
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
	s.bird = newBird(s.opts.Dir, "router", s.RouterPath(), routerConfig(netip.MustParseAddr("172.20.0.1"), linksOf4, linksOf6))
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

// A node's number determines its addresses, those of the router on its link, and its autonomous system number.
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

// AddNode creates a node's namespace with its uplink and starts its BIRD.
func (s *Site) AddNode(node string) (Addrs, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[node] != nil {
		return Addrs{}, fmt.Errorf("node %s already exists", node)
	}
	h := &host{number: slices.Index(s.used[1:], false) + 1}
	if h.number == 0 {
		return Addrs{}, fmt.Errorf("add node %s: the maximum of %d nodes is reached", node, maxNodes)
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
	h.bird = newBird(s.opts.Dir, node, s.NodePath(node), h.config())
	return a, h.bird.start()
}

// Addrs returns the own addresses of a node, zero for an unknown one.
func (s *Site) Addrs(node string) Addrs {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.nodes[node]; h != nil {
		return h.addrs()
	}
	return Addrs{}
}

// RemoveNode removes a node's namespace. The caller must have ended the node's processes except its BIRD. An unknown node
// is not an error.
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

// spreadServices makes the router distribute services over the existing nodes.
func (s *Site) spreadServices() error {
	if !s.opts.Services.IsValid() || s.closed {
		return nil
	}
	route := &netlink.Route{Dst: ns.IPNet(s.opts.Services)}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{Gw: s.nodes[name].addrs().IPv4.AsSlice()})
	}
	if len(route.MultiPath) == 0 {
		return nil // the last node's link was removed together with the route
	}
	if err := s.rt.RouteReplace(route); err != nil {
		return fmt.Errorf("add route to %s through the nodes: %w", s.opts.Services, err)
	}
	return nil
}

// Routes returns the learned routes, by which the router sends packets to pods.
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

// Close removes the whole site but the logs. Other processes in its namespaces must have ended. A second Close does
// nothing.
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
