package replay

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Raised is a cluster whose nodes and pods are network namespaces. A router connects the nodes, and routes their blocks.
type Raised struct {
	Cluster
	prefix, dir string
	machines    map[string]string // namespaces of nodes that exist, by name
	made        []string          // namespaces
	listeners   map[string]func() // daemons of Coil that answer, by node
}

// Raise makes the namespaces, whose names begin with a prefix, and the files below a folder for each node.
func (c Cluster) Raise(prefix, dir string) (*Raised, error) { return c.RaiseOn(prefix, dir, nil) }

// RaiseOn is Raise on machines that exist, whose namespaces it gets by the names of the nodes: their uplinks, and the routes
// by these, are not replayed. Close leaves them as they are.
func (c Cluster) RaiseOn(prefix, dir string, machines map[string]string) (_ *Raised, err error) {
	r := &Raised{Cluster: c, prefix: prefix, dir: dir, machines: machines, listeners: map[string]func(){}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if machines == nil {
		if err := r.router(); err != nil {
			return nil, err
		}
	}
	for _, n := range c.Nodes {
		if err := r.node(n); err != nil {
			return nil, fmt.Errorf("replay %s: %w", n.Name, err)
		}
	}
	return r, nil
}

// Close removes everything.
func (r *Raised) Close() error {
	for node := range r.listeners {
		r.StopDaemon(node)
	}
	var errs []error
	for _, name := range r.made {
		errs = append(errs, ns.Remove(name))
	}
	return errors.Join(errs...)
}

// Router is the path of the namespace of the nodes' router.
func (r *Raised) Router() string { return ns.Path(r.prefix + "router") }

// Netns is the path of a node's namespace.
func (r *Raised) Netns(node string) string { return cmp.Or(r.machines[node], ns.Path(r.prefix+node)) }

// PodNetns is the path of a pod's namespace.
func (r *Raised) PodNetns(p Pod) string { return ns.Path(r.prefix + p.Netns) }

// File is the path of a file that a node has at another.
func (r *Raised) File(node, path string) string { return filepath.Join(r.dir, node, path) }

// StartDaemon answers at the socket of coild on a node, which Raise does not.
func (r *Raised) StartDaemon(node string) error {
	path := r.File(node, "/run/coild.sock")
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen as coild of %s: %w", node, err)
	}
	r.listeners[node] = func() { _ = l.Close() }
	return nil
}

// StopDaemon ends StartDaemon.
func (r *Raised) StopDaemon(node string) {
	if stop := r.listeners[node]; stop != nil {
		stop()
		delete(r.listeners, node)
	}
}

func (r *Raised) create(name string) (path string, err error) {
	if err := ns.Create(r.prefix + name); err != nil {
		return "", err
	}
	r.made = append(r.made, r.prefix+name)
	path = ns.Path(r.prefix + name)
	err = ns.Do(path, func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv6/conf/default/accept_dad", Value: "0"}, ns.Sysctl{Name: "net/ipv6/conf/all/accept_dad", Value: "0"})
	})
	if err == nil {
		err = ns.Netlink(path, func(h *netlink.Handle) error { return ns.LinkUp(h, "lo") })
	}
	return path, err
}

const bridge = "nodes"

// router makes the router with a bridge to which nodes are attached.
func (r *Raised) router() error {
	path, err := r.create("router")
	if err != nil {
		return err
	}
	if err := ns.Do(path, func() error { return ns.SetSysctls(ns.Forwarding...) }); err != nil {
		return err
	}
	return ns.Netlink(path, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridge
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge: %w", err)
		}
		return ns.Configure(h, bridge, []netip.Prefix{netip.MustParsePrefix("172.30.0.1/24"), netip.MustParsePrefix("fd00:30::1/64")}, nil)
	})
}

// node replays a node and its pods.
func (r *Raised) node(n Node) error {
	path := r.machines[n.Name]
	if path != "" {
		n = n.withoutUplink()
	}
	if err := r.files(n); err != nil {
		return err
	}
	if path == "" {
		var err error
		if path, err = r.create(n.Name); err != nil {
			return err
		}
		if err := r.uplink(n, path); err != nil {
			return err
		}
	}
	for _, p := range r.Pods {
		if p.Node != n.Name {
			continue
		}
		if err := r.pod(n, p, path); err != nil {
			return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	settings := slices.Clone(ns.Forwarding) // on machines with Coil v1 somebody else turned it on
	for name, value := range n.Sysctls {
		settings = append(settings, ns.Sysctl{Name: strings.ReplaceAll(name, ".", "/"), Value: value})
	}
	for _, s := range settings {
		err := ns.Do(path, func() error { return ns.SetSysctls(s) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // of a link that was left out
			return err
		}
	}
	return ns.Netlink(path, func(h *netlink.Handle) error { return r.complete(h, n) })
}

// withoutUplink returns the node without eth0, and routes by it.
func (n Node) withoutUplink() Node {
	n.Links = slices.DeleteFunc(slices.Clone(n.Links), func(l Link) bool { return l.Name == "eth0" })
	n.Routes = slices.DeleteFunc(slices.Clone(n.Routes), func(r Route) bool { return r.Dev == "eth0" })
	return n
}

// complete replays addresses, routes and rules of a node, once its links are there.
func (r *Raised) complete(h *netlink.Handle, n Node) error {
	for _, l := range n.Links {
		link, err := h.LinkByName(l.Name)
		if err != nil {
			return fmt.Errorf("look up %s: %w", l.Name, err)
		}
		if err := address(h, link, l.Addresses); err != nil {
			return err
		}
		if l.Alias != "" {
			if err := h.LinkSetAlias(link, l.Alias); err != nil {
				return fmt.Errorf("set the alias of %s: %w", l.Name, err)
			}
		}
		if err := h.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", l.Name, err)
		}
	}
	if err := addRoutes(h, n.Routes); err != nil {
		return err
	}
	return addRules(h, n.Rules)
}

// files writes the files of a node. Their content, but for that of CNI configurations, is of no interest.
func (r *Raised) files(n Node) error {
	write := func(path string, data []byte) error {
		path = r.File(n.Name, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, data, 0o600)
	}
	for name, text := range n.Conf {
		if err := write("/etc/cni/net.d/"+name, []byte(text)); err != nil {
			return err
		}
	}
	for _, path := range n.Files {
		if err := write(path, nil); err != nil {
			return err
		}
	}
	for _, p := range r.Pods {
		if p.Node != n.Name {
			continue
		}
		result := strings.ReplaceAll(string(p.Result), "/var/run/netns/"+p.Netns, r.PodNetns(p))
		data, err := json.Marshal(map[string]any{
			"kind": "cniCacheV1", "containerId": p.Container, "ifName": p.Interface, "networkName": p.Network, "result": json.RawMessage(result),
			"cniArgs": [][2]string{
				{"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_UID", p.UID}, {"K8S_POD_INFRA_CONTAINER_ID", p.Container},
			},
		})
		if err == nil {
			err = write(fmt.Sprintf("/var/lib/cni/results/%s-%s-%s", p.Network, p.Container, p.Interface), data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// uplink connects a node to the router, which gets routes to its blocks.
func (r *Raised) uplink(n Node, path string) error {
	var eth0 Link
	for _, l := range n.Links {
		if l.Name == "eth0" {
			eth0 = l
		}
	}
	mac, err := net.ParseMAC(eth0.MAC)
	if err != nil {
		return fmt.Errorf("eth0: %w", err)
	}
	return ns.Netlink(r.Router(), func(h *netlink.Handle) error {
		port := "to-" + n.Name
		if err := ns.AddVeth(h, port, path, "eth0", mac, eth0.MTU); err != nil {
			return err
		}
		b, err := h.LinkByName(bridge)
		if err != nil {
			return err
		}
		l, err := h.LinkByName(port)
		if err == nil {
			err = errors.Join(h.LinkSetMaster(l, b), h.LinkSetUp(l))
		}
		if err != nil {
			return fmt.Errorf("attach %s: %w", port, err)
		}
		for _, block := range n.Blocks() {
			for _, a := range eth0.Addresses {
				if via, err := a.Prefix(); err == nil && via.Addr().Is4() == block.Addr().Is4() {
					route := netlink.Route{LinkIndex: b.Attrs().Index, Dst: rtnl.IPNet(block), Gw: via.Addr().AsSlice()}
					if err := h.RouteReplace(&route); err != nil {
						return fmt.Errorf("route %s: %w", block, err)
					}
				}
			}
		}
		return nil
	})
}

// Blocks returns the blocks that Coil announces on the node.
func (n Node) Blocks() (list []netip.Prefix) {
	for _, route := range n.Routes {
		if route.Table == "119" {
			if p, err := prefixOf(route.Dst); err == nil {
				list = append(list, p)
			}
		}
	}
	return list
}

// linkNamed returns the link with a name, or none.
func linkNamed(links []Link, name string) (found Link) {
	if i := slices.IndexFunc(links, func(l Link) bool { return l.Name == name }); i >= 0 {
		found = links[i]
	}
	return found
}

// pod makes a pod's namespace and the link to it.
func (r *Raised) pod(n Node, p Pod, node string) error {
	path, err := r.create(p.Netns)
	if err != nil {
		return err
	}
	host, inside := linkNamed(n.Links, p.HostLink), linkNamed(p.Links, p.Interface)
	hostMAC, err := net.ParseMAC(host.MAC)
	if err != nil {
		return fmt.Errorf("link %s on the node: %w", p.HostLink, err)
	}
	insideMAC, err := net.ParseMAC(inside.MAC)
	if err != nil {
		return fmt.Errorf("link %s: %w", p.Interface, err)
	}
	err = ns.Netlink(node, func(h *netlink.Handle) error {
		if err := ns.AddVeth(h, host.Name, path, inside.Name, insideMAC, host.MTU); err != nil {
			return err
		}
		link, err := h.LinkByName(host.Name)
		if err == nil {
			err = errors.Join(h.LinkSetHardwareAddr(link, hostMAC), h.LinkSetUp(link))
		}
		return err
	})
	if err != nil {
		return err
	}
	return ns.Netlink(path, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err == nil {
			err = address(h, lo, p.Loopback)
		}
		if err != nil {
			return err
		}
		if err := receiveFoU(h, p); err != nil {
			return err
		}
		for _, l := range p.Links {
			if l.IsTunnel() {
				if err := addTunnel(h, l); err != nil {
					return fmt.Errorf("link %s: %w", l.Name, err)
				}
				continue
			}
			link, err := h.LinkByName(l.Name)
			if rtnl.IsNoLink(err) {
				err = fmt.Errorf("links of kind %q are not replayed", l.Kind)
			}
			if err == nil {
				err = errors.Join(h.LinkSetMTU(link, l.MTU), h.LinkSetUp(link))
			}
			if err == nil {
				err = address(h, link, l.Addresses)
			}
			if err != nil {
				return fmt.Errorf("link %s: %w", l.Name, err)
			}
		}
		if err := addRoutes(h, p.Routes); err != nil {
			return err
		}
		return addRules(h, p.Rules)
	})
}

func address(h *netlink.Handle, link netlink.Link, list []Address) error {
	for _, a := range list {
		p, err := a.Prefix()
		if err != nil {
			return err
		}
		addr := &netlink.Addr{IPNet: rtnl.IPNet(p)}
		if a.linkScope() {
			addr.Scope = unix.RT_SCOPE_LINK
		}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("add %s to %s: %w", a, link.Attrs().Name, err)
		}
	}
	return nil
}

func prefixOf(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return rtnl.HostPrefix(a), nil
	}
	return netip.ParsePrefix(text)
}

var (
	protocols = map[string]int{"kernel": unix.RTPROT_KERNEL, "boot": unix.RTPROT_BOOT, "static": unix.RTPROT_STATIC}
	tables    = map[string]int{"main": unix.RT_TABLE_MAIN, "default": unix.RT_TABLE_DEFAULT, "local": unix.RT_TABLE_LOCAL}
	scopes    = map[string]netlink.Scope{"link": netlink.SCOPE_LINK, "host": netlink.SCOPE_HOST}
)

// number returns a number by its name, or as it is written.
func number(names map[string]int, text string) int {
	if n, ok := names[text]; ok {
		return n
	}
	n, _ := strconv.Atoi(text)
	return n
}

// addRoutes adds routes, those without a gateway first.
func addRoutes(h *netlink.Handle, list []Route) error {
	for _, later := range []bool{false, true} {
		for _, r := range list {
			if (r.Gateway != "") != later {
				continue
			}
			route, err := r.kernel(h)
			if err == nil {
				err = h.RouteReplace(route)
			}
			if err != nil {
				return fmt.Errorf("add route %+v: %w", r, err)
			}
		}
	}
	return nil
}

func (r Route) kernel(h *netlink.Handle) (*netlink.Route, error) {
	dst := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if r.Family == 6 {
		dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if r.Dst != "default" {
		var err error
		if dst, err = prefixOf(r.Dst); err != nil {
			return nil, err
		}
	}
	out := &netlink.Route{
		Dst: rtnl.IPNet(dst), Family: rtnl.FamilyOf(dst.Addr()), Table: number(tables, r.Table), Priority: r.Metric,
		Protocol: netlink.RouteProtocol(number(protocols, r.Protocol)), Scope: scopes[r.Scope],
	}
	if dst.Addr().Is6() {
		out.Scope = netlink.SCOPE_UNIVERSE
	}
	if r.Type == "unreachable" {
		out.Type = unix.RTN_UNREACHABLE
		return out, nil
	}
	link, err := h.LinkByName(r.Dev)
	if err != nil {
		return nil, err
	}
	out.LinkIndex = link.Attrs().Index
	if r.Gateway != "" {
		gw, err := netip.ParseAddr(r.Gateway)
		if err != nil {
			return nil, err
		}
		out.Gw = gw.AsSlice()
	}
	return out, nil
}

func addRules(h *netlink.Handle, list []Rule) error {
	for _, r := range list {
		rule := netlink.NewRule()
		rule.Family = map[int]int{4: unix.AF_INET, 6: unix.AF_INET6}[r.Family]
		rule.Priority, rule.Table, rule.IifName = r.Priority, number(tables, r.Table), r.IIf
		if r.Dst != "" {
			a, err := netip.ParseAddr(r.Dst)
			if err != nil {
				return fmt.Errorf("add rule %+v: %w", r, err)
			}
			rule.Dst = rtnl.IPNet(netip.PrefixFrom(a, cmp.Or(r.DstLen, a.BitLen())))
		}
		if r.Mark != "" {
			n, err := strconv.ParseUint(r.Mark, 0, 32)
			if err != nil {
				return fmt.Errorf("add rule %+v: %w", r, err)
			}
			rule.Mark = uint32(n)
		}
		if err := h.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add rule %+v: %w", r, err)
		}
	}
	return nil
}
