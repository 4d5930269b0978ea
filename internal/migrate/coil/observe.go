package coil

import (
	"context"
	"crypto/sha1" //nolint:gosec // Coil names links by it
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/node/adopt"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/foreign"
)

// pod is an interface of a pod that Coil created.
type pod struct {
	foreign.CoilPod
	Pod      attachment.Pod
	Netns    attachment.Netns // of the other end of the link; no path: unknown
	Recorded *attachment.Record
	Egress   egressUse
}

// state is Coil's state on a node.
type state struct {
	pods    []pod
	records []attachment.Record // of attachments that Berth created, or whose link is gone
	exports []netip.Prefix      // blocks in the export table that Coil announces
	rules   []netlink.Rule
	conf    string // CNI configuration that runs Coil's plugin; empty: none
	network string // its name
	chained bool   // it runs Coil after another network's plugins, and has no addresses
	daemon  bool   // coild answers
}

// chained reports whether another network made the interface, and Coil added egress alone.
func (p pod) chained() bool { return p.Pool == "" && p.Container != "" }

// adopted reports whether Berth has a record of the pod.
func (p pod) adopted() bool { return p.Recorded != nil }

// observe reads the node. It changes nothing.
func (n *Node) observe(ctx context.Context) (state, error) {
	var s state
	links, err := rtnl.Whole(n.links.host.LinkList)
	if err != nil {
		return s, fmt.Errorf("list links: %w", err)
	}
	var routes []foreign.Route
	for _, family := range families {
		list, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return n.links.host.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return s, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range list {
			dst := rtnl.RouteDst(r)
			switch {
			case r.Table == foreign.CoilExportTable && r.Protocol == foreign.CoilProtocol:
				s.exports = append(s.exports, dst)
			case dst.IsSingleIP() && r.Table != unix.RT_TABLE_LOCAL && r.Protocol != datapath.Protocol:
				routes = append(routes, foreign.Route{Addr: dst.Addr(), Table: r.Table, Protocol: int(r.Protocol), Link: r.LinkIndex})
			}
		}
		rules, err := rtnl.Whole(func() ([]netlink.Rule, error) { return n.links.host.RuleList(family) })
		if err != nil {
			return s, fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules {
			if r.Priority == foreign.CoilRulePriority && r.Table == foreign.CoilPodTable {
				r.Family = family
				s.rules = append(s.rules, r)
			}
		}
	}
	if s.conf, s.network, s.chained, err = n.configuration(); err != nil {
		return s, err
	}
	s.daemon = n.cfg.coildRuns(ctx)
	names, err := n.cfg.names()
	if err != nil {
		return s, err
	}
	s.pods = n.cfg.podsOf(links, routes, names)
	return s, n.complete(&s, links, names)
}

// podsOf returns the pods of Coil by their links and routes.
func (c Config) podsOf(links []netlink.Link, routes []foreign.Route, names map[string]attachment.Pod) (list []pod) {
	containers := map[string]string{}
	for container, p := range names {
		containers[p.Namespace+"/"+p.Name] = container
	}
	var named []foreign.Link
	for _, l := range links {
		if l.Type() == "veth" {
			named = append(named, foreign.Link{Index: l.Attrs().Index, Name: l.Attrs().Name, Alias: l.Attrs().Alias})
		}
	}
	if c.Known == nil {
		for _, p := range foreign.CoilPods(named, routes, foreign.CoilPodTable) {
			list = append(list, pod{CoilPod: p})
		}
		return withUnknown(list, named, routes)
	}
	byName := map[string]foreign.Link{}
	for _, l := range named {
		byName[l.Name] = l
	}
	for _, k := range c.Known {
		if k.Container == "" {
			k.Container = containers[k.Namespace+"/"+k.Name]
		}
		p := pod{Pod: attachment.Pod{Namespace: k.Namespace, Name: k.Name}}
		p.Container, p.IfName, p.Pool = k.Container, "eth0", k.Pool
		name := HostLink(k.Namespace, k.Name)
		if berths := datapath.HostLinkName(c.Network, p.Container, p.IfName); byName[berths].Index != 0 {
			name = berths // adopted before
		}
		p.Link = byName[name]
		p.Link.Name = name
		if slices.ContainsFunc(routes, func(r foreign.Route) bool {
			return r.Addr == k.Address && r.Table == unix.RT_TABLE_MAIN && r.Link == p.Link.Index && r.Link != 0
		}) {
			p.Addrs = []netip.Addr{k.Address}
		}
		list = append(list, p)
	}
	return withUnknown(list, named, routes)
}

// linkOfV1 is the name of a pod's link on the node by Coil v1.
var linkOfV1 = regexp.MustCompile(`^veth[0-9a-f]{11}$`)

// withUnknown adds pods of Coil v1 that are not in the dump. They have routes in the main table, but no alias.
func withUnknown(list []pod, links []foreign.Link, routes []foreign.Route) []pod {
	for _, l := range links {
		if l.Alias != "" || !linkOfV1.MatchString(l.Name) || slices.ContainsFunc(list, func(p pod) bool { return p.Link.Name == l.Name }) {
			continue
		}
		p := pod{CoilPod: foreign.CoilPod{Link: l}}
		for _, r := range routes {
			if r.Link == l.Index && r.Table == unix.RT_TABLE_MAIN {
				p.Addrs = append(p.Addrs, r.Addr)
			}
		}
		if len(p.Addrs) > 0 {
			list = append(list, p)
		}
	}
	return list
}

// HostLink returns the name of a pod's link on the node by Coil v1, and by Coil v2 with --compat-calico.
func HostLink(namespace, name string) string {
	sum := sha1.Sum([]byte(namespace + "." + name)) //nolint:gosec // see above
	return "veth" + hex.EncodeToString(sum[:])[:11]
}

// complete adds namespaces, names and records of pods.
func (n *Node) complete(s *state, links []netlink.Link, names map[string]attachment.Pod) error {
	namespaces, err := adopt.FindNamespaces(n.links.host, n.cfg.NetnsFolders, n.cfg.Proc)
	if err != nil {
		return err
	}
	byIndex := map[int]netlink.Link{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	left := map[attachment.Key]attachment.Record{}
	records, err := n.records()
	if err != nil {
		return err
	}
	for _, r := range records {
		left[r.Key] = r
	}
	for i := range s.pods {
		p := &s.pods[i]
		if l := byIndex[p.Link.Index]; l != nil {
			p.Netns, _ = namespaces.Behind(l)
		}
		if n.cfg.Known == nil {
			if p.Egress, err = egressOf(p.Netns); err != nil {
				return err
			}
		}
		if known, ok := names[p.Container]; ok {
			p.Pod = known
		}
		key := n.cfg.key(*p)
		if r, ok := left[key]; ok {
			p.Recorded = &r
			delete(left, key)
		}
	}
	for _, r := range left {
		s.records = append(s.records, r)
	}
	slices.SortFunc(s.records, func(a, b attachment.Record) int { return strings.Compare(a.HostLink, b.HostLink) })
	return nil
}

func (c Config) key(p pod) attachment.Key {
	return attachment.Key{Network: c.Network, ContainerID: p.Container, IfName: p.IfName}
}

// names reads the names of pods, by container, from the results that the container runtime caches (libcni, kind
// cniCacheV1). Coil itself keeps none.
func (c Config) names() (map[string]attachment.Pod, error) {
	out := map[string]attachment.Pod{}
	for _, folder := range c.ResultFolders {
		files, err := os.ReadDir(folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list cached results: %w", err)
		}
		for _, f := range files {
			if !f.Type().IsRegular() {
				continue
			}
			data, err := os.ReadFile(filepath.Join(folder, f.Name()))
			if err != nil {
				continue // removed meanwhile
			}
			var cached struct {
				Kind        string      `json:"kind"`
				ContainerID string      `json:"containerId"`
				Args        [][2]string `json:"cniArgs"`
			}
			if json.Unmarshal(data, &cached) != nil || cached.Kind != "cniCacheV1" {
				continue
			}
			var p attachment.Pod
			for _, arg := range cached.Args {
				switch arg[0] {
				case "K8S_POD_NAMESPACE":
					p.Namespace = arg[1]
				case "K8S_POD_NAME":
					p.Name = arg[1]
				case "K8S_POD_UID":
					p.UID = arg[1]
				}
			}
			out[cached.ContainerID] = p
		}
	}
	return out, nil
}

// plugin is the type of Coil's CNI plugin.
const plugin = "coil"

// configuration finds the CNI configuration that runs Coil's plugin.
func (n *Node) configuration() (path, network string, chained bool, err error) {
	files, err := filepath.Glob(filepath.Join(n.cfg.ConfFolder, "*.conflist"))
	if err != nil {
		return "", "", false, fmt.Errorf("list CNI configurations: %w", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", "", false, fmt.Errorf("read the CNI configuration: %w", err)
		}
		if list, at := parseConflist(data); at >= 0 {
			return file, list, at > 0, nil
		}
	}
	return "", "", false, nil
}

// parseConflist returns the network's name in a CNI configuration, and the place of Coil's plugin; below 0: it has none.
func parseConflist(data []byte) (network string, at int) {
	type entry struct {
		Type string `json:"type"`
	}
	var list struct {
		Name    string  `json:"name"`
		Plugins []entry `json:"plugins"`
	}
	if json.Unmarshal(data, &list) != nil {
		return "", -1
	}
	return list.Name, slices.Index(list.Plugins, entry{plugin})
}

// families are the address families.
var families = []int{unix.AF_INET, unix.AF_INET6}
