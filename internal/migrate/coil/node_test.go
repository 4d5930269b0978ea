package coil_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/coil"
	"github.com/berthnet/berth/internal/migrate/coil/etcd"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/test/harness"
)

// moving is one node of a recorded cluster whose pods hold conversations with the router.
type moving struct {
	*replay.Raised
	t     *testing.T
	node  string
	state string
	known []etcd.Known
	talks *harness.Conversations
}

func raise(t *testing.T, cluster, node string) *moving {
	t.Helper()
	return raiseWith(t, cluster, node, func(replay.Pod) bool { return true })
}

// raiseWith raises a node with those of its pods that are wanted.
func raiseWith(t *testing.T, cluster, node string, wanted func(replay.Pod) bool) *moving {
	t.Helper()
	c, err := replay.Load(cluster)
	harness.OK(t, err)
	var known []etcd.Known
	if cluster == replay.V1 {
		data, err := replay.EtcdDump()
		harness.OK(t, err)
		d, err := etcd.ParseDump(data, etcd.DefaultPrefix)
		harness.OK(t, err)
		known = d.Of(node)
	}
	return raised(t, reduced(c.Only(node), wanted), node, known)
}

// reduced is a cluster of one node with those of its pods that are wanted.
func reduced(c replay.Cluster, wanted func(replay.Pod) bool) replay.Cluster {
	n := &c.Nodes[0]
	c.Pods = slices.DeleteFunc(c.Pods, func(p replay.Pod) bool { return !wanted(p) })
	n.Links = slices.DeleteFunc(n.Links, func(l replay.Link) bool {
		return l.Name != "eth0" && !slices.ContainsFunc(c.Pods, func(p replay.Pod) bool { return p.HostLink == l.Name })
	})
	n.Routes = slices.DeleteFunc(n.Routes, func(r replay.Route) bool {
		return r.Dev != "lo" && !slices.ContainsFunc(n.Links, func(l replay.Link) bool { return l.Name == r.Dev })
	})
	return c
}

func raised(t *testing.T, c replay.Cluster, node string, known []etcd.Known) *moving {
	t.Helper()
	r, err := c.Raise(nstest.Unique("")+"-", t.TempDir())
	harness.OK(t, err)
	t.Cleanup(func() { harness.OK(t, r.Close()) })
	return &moving{Raised: r, t: t, node: node, state: t.TempDir(), known: known}
}

// serve starts an echo server in each pod.
func (m *moving) serve() {
	m.t.Helper()
	for _, p := range m.Pods {
		s, err := echo.Serve(m.PodNetns(p))
		harness.OK(m.t, err)
		m.t.Cleanup(func() { _ = s.Close() })
	}
}

// talk starts a conversation of each kind with each address of each pod.
func (m *moving) talk() {
	m.t.Helper()
	m.serve()
	var conns []*echo.Conn
	for _, p := range m.Pods {
		for _, a := range p.Addresses() {
			for _, network := range []string{"tcp", "udp"} {
				c, err := echo.Connect(m.t.Context(), m.Router(), network, netip.AddrPortFrom(a, echo.Port), netip.Addr{})
				harness.OK(m.t, err)
				conns = append(conns, c)
			}
		}
	}
	m.talks = harness.Converse(m.t, 2*time.Millisecond, 20*time.Second, conns...)
	m.talks.GoOn(m.t, len(conns))
}

// with calls do with the tool.
func (m *moving) with(do func(*coil.Node)) {
	m.t.Helper()
	n, err := coil.Open(coil.Config{
		Node: attachment.Node{InstanceID: m.node, BootID: "boot"}, StateDir: m.state, Network: coil.DefaultNetwork,
		Datapath: datapath.Config{Uplinks: datapath.Routed{ExportTable: 119}, MTU: 1500},
		Netns:    m.Netns(m.node), NetnsFolders: []string{ns.Dir}, Proc: m.t.TempDir(),
		ResultFolders: []string{m.File(m.node, "/var/lib/cni/results")}, ConfFolder: m.File(m.node, "/etc/cni/net.d"),
		Plugin: m.File(m.node, "/opt/cni/bin/coil"), CoilAddress: &net.UnixAddr{Net: "unix", Name: m.File(m.node, "/run/coild.sock")},
		Known: m.known,
	}, slog.New(slog.NewTextHandler(m.t.Output(), nil)))
	harness.OK(m.t, err)
	do(n)
	harness.OK(m.t, n.Close())
}

// step is a method of migrate.System.
type step func(*coil.Node, context.Context) (migrate.Report, error)

// do performs a step, and checks whether it changed anything.
func (m *moving) do(s step, changes bool) (r migrate.Report) {
	m.t.Helper()
	m.with(func(n *coil.Node) {
		var err error
		if r, err = s(n, m.t.Context()); err != nil {
			m.t.Fatal(err)
		}
	})
	if (len(r.Changed) > 0) != changes || len(r.Problems) > 0 {
		m.t.Errorf("%s changed %q, with the problems %q", r.Command, r.Changed, r.Problems)
	}
	return r
}

// announce sets the blocks' routes as berthd does.
func (m *moving) announce() {
	m.t.Helper()
	n, err := datapath.Open(m.Netns(m.node))
	harness.OK(m.t, err)
	defer n.Close()
	harness.OK(m.t, n.Setup(m.t.Context(), datapath.Config{Uplinks: datapath.Routed{ExportTable: 119, IPv6: true}, MTU: 1500}))
	var blocks []datapath.Block
	for i, p := range m.Nodes[0].Blocks() {
		blocks = append(blocks, datapath.Block{Name: fmt.Sprintf("b-%d", i), Prefixes: []netip.Prefix{p}})
	}
	harness.OK(m.t, n.SetBlocks(m.t.Context(), blocks))
}

// dump returns the kernel state of the node and its pods, without what lives and dies with packets.
func (m *moving) dump() string {
	m.t.Helper()
	var out strings.Builder
	paths := []string{m.Netns(m.node)}
	for _, p := range m.Pods {
		paths = append(paths, m.PodNetns(p))
	}
	for i, path := range paths {
		harness.OK(m.t, ns.Netlink(path, func(h *netlink.Handle) error {
			var lines []string
			links, err := h.LinkList()
			if err != nil {
				return err
			}
			names := map[int]string{}
			for _, l := range links {
				a := l.Attrs()
				names[a.Index] = a.Name
				lines = append(lines, fmt.Sprintf("link %s %q group %d mac %s mtu %d", a.Name, a.Alias, a.Group, a.HardwareAddr, a.MTU))
				addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
				if err != nil {
					return err
				}
				for _, addr := range addrs {
					if !addr.IP.IsLinkLocalUnicast() || addr.IP.To4() != nil {
						lines = append(lines, fmt.Sprintf("address %s %s", a.Name, addr.IPNet))
					}
				}
			}
			for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
				routes, err := h.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
				if err != nil {
					return err
				}
				for _, r := range routes {
					if r.Table != 255 && r.Protocol != 2 {
						lines = append(lines, fmt.Sprintf("route %s via %s dev %s table %d proto %d metric %d", r.Dst, r.Gw, names[r.LinkIndex], r.Table, r.Protocol, r.Priority))
					}
				}
				rules, err := h.RuleList(family)
				if err != nil {
					return err
				}
				for _, r := range rules {
					lines = append(lines, fmt.Sprintf("rule %d %d from %s to %s table %d", family, r.Priority, r.Src, r.Dst, r.Table))
				}
				neighbours, err := h.NeighList(0, family)
				if err != nil {
					return err
				}
				for _, nb := range neighbours {
					if nb.State&netlink.NUD_PERMANENT != 0 {
						lines = append(lines, fmt.Sprintf("neighbour %s %s dev %s", nb.IP, nb.HardwareAddr, names[nb.LinkIndex]))
					}
				}
			}
			slices.Sort(lines)
			fmt.Fprintf(&out, "%d:\n%s\n", i, strings.Join(lines, "\n"))
			return nil
		}))
	}
	return out.String()
}

// forms are nodes of all versions.
var forms = map[string]struct{ cluster, node string }{
	"v2.15.0":               {replay.V2Newest, "node-1"},
	"v2.15.0 compat-calico": {replay.V2Newest, "node-3"},
	"v2.4.0":                {replay.V2Middle, "node-2"},
	"v2.0.12":               {replay.V2Oldest, "node-1"},
	"v1.1.9":                {replay.V1, "node-1"},
}

// Pods of every version of Coil become Berth's while they hold connections: no reply is late, nothing of Coil is left,
// and a repeated step changes nothing.
func TestAdoptsRunningPods(t *testing.T) {
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			m := raise(t, form.cluster, form.node)
			m.talk()
			before := m.dump()
			m.with(func(n *coil.Node) {
				p, err := n.Plan(t.Context())
				if err != nil || migrate.Count(p.Pods, migrate.Adopt) != len(m.Pods) || len(p.Obstacles) > 0 {
					t.Fatalf("plan = %+v, %v; want %d pods to adopt", p, err, len(m.Pods))
				}
				if len(p.Steps) != 2 || p.Steps[0].Final || !p.Steps[1].Final {
					t.Errorf("steps = %+v, want the second to be final", p.Steps)
				}
			})
			if now := m.dump(); now != before {
				t.Errorf("plan changed the node from\n%s\nto\n%s", before, now)
			}
			m.do((*coil.Node).Apply, true)
			m.do((*coil.Node).Apply, false)
			for _, trace := range []string{"COIL:", "table 116 proto 30", "table 119 proto 30"} { // by which Coil knows the pods
				if was, now := strings.Count(before, trace), strings.Count(m.dump(), trace); now != was {
					t.Errorf("%d times %q after apply, want %d as before", now, trace, was)
				}
			}
			m.talks.GoOn(t, 100)
			m.do((*coil.Node).Verify, false)
			m.with(func(n *coil.Node) {
				if _, err := n.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), "which only Coil announces") {
					t.Errorf("finish before berthd announced the blocks: %v", err)
				}
			})
			m.announce()
			m.do((*coil.Node).Finish, true)
			m.do((*coil.Node).Finish, false)
			r := m.do((*coil.Node).Verify, false)
			if migrate.Count(r.Pods, migrate.Adopted) != len(m.Pods) {
				t.Errorf("pods = %+v, want all adopted", r.Pods)
			}
			m.talks.GoOn(t, 100)
			harness.OK(t, m.talks.End())
			m.nothingLeft()
		})
	}
}

// nothingLeft checks that nothing of Coil is left on the node.
func (m *moving) nothingLeft() {
	m.t.Helper()
	onNode := true
	for _, line := range strings.Split(m.dump(), "\n") {
		onNode = onNode && line != "1:"
		for _, trace := range []string{"COIL:", "veth", "table 116", "proto 30 ", "proto 3 ", "169.254.1.2", "169.254.1.0/30", "169.254.1.1/30", "169.254.1.1/32 proto"} {
			if strings.Contains(line, trace) && (!onNode || !strings.Contains(line, "dev eth0 table 254 proto 3 ")) {
				m.t.Errorf("left: %s", line)
			}
		}
		if strings.HasPrefix(line, "address bth") {
			m.t.Errorf("left: %s", line)
		}
	}
	for _, p := range m.Pods {
		for _, pattern := range []string{"/etc/cni/net.d/*coil*", "/opt/cni/bin/coil", "/run/coild.sock"} {
			if found, _ := filepath.Glob(m.File(p.Node, pattern)); len(found) > 0 {
				m.t.Errorf("left: %v", found)
			}
		}
	}
}

// A rollback before Finish restores the node as it was, while pods talk.
func TestRollback(t *testing.T) {
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			m := raise(t, form.cluster, form.node)
			if m.known == nil {
				m.addForeignLink()
			}
			m.talk()
			before := m.dump()
			m.do((*coil.Node).Apply, true)
			m.talks.GoOn(t, 100)
			m.do((*coil.Node).Rollback, true)
			m.do((*coil.Node).Rollback, false)
			m.talks.GoOn(t, 100)
			harness.OK(t, m.talks.End())
			m.compare(before)
		})
	}
}

// addForeignLink adds a link of another network, which looks like a pod of Coil v1.
func (m *moving) addForeignLink() {
	m.t.Helper()
	harness.OK(m.t, ns.Netlink(m.Netns(m.node), func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "veth0123456789a"
		link := &netlink.Veth{LinkAttrs: attrs, PeerName: "foreign"}
		if err := h.LinkAdd(link); err != nil {
			return err
		}
		if err := h.LinkSetUp(link); err != nil {
			return err
		}
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: rtnl.IPNet(netip.MustParsePrefix("169.254.1.1/32"))}); err != nil {
			return err
		}
		return h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: rtnl.IPNet(netip.MustParsePrefix("192.0.2.77/32")), Scope: netlink.SCOPE_LINK})
	}))
}

// compare compares the state of pods and of Coil with an earlier one. Berth's own rules and tables may stay.
func (m *moving) compare(before string) {
	m.t.Helper()
	keep := func(s string) (lines []string) {
		for _, line := range strings.Split(s, "\n") {
			if !strings.Contains(line, "table 19000") && !strings.Contains(line, "rule 2 512") && !strings.Contains(line, "rule 10 512") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	was, is := keep(before), keep(m.dump())
	for _, line := range was {
		if !slices.Contains(is, line) {
			m.t.Errorf("missing: %s", line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			m.t.Errorf("new: %s", line)
		}
	}
}

// A pod that the dump of etcd does not name must be replaced, and Finish waits for it. Those that it names are adopted.
func TestPodsWithoutKnownOwner(t *testing.T) {
	m := raise(t, replay.V1, "node-2")
	unknown := m.known[0]
	m.known = m.known[1:]
	r := m.do((*coil.Node).Apply, true)
	for _, p := range r.Pods {
		if is := p.Fate == migrate.Replace; is != slices.Contains(p.Addresses, unknown.Address) || is && p.Why == "" {
			t.Errorf("pod %+v, want %s alone to be replaced", p, unknown.Address)
		}
	}
	if len(r.Pods) != len(m.Pods) {
		t.Errorf("%d pods, want %d", len(r.Pods), len(m.Pods))
	}
	m.announce()
	m.with(func(n *coil.Node) {
		if _, err := n.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), "delete it, since neither Coil nor the container runtime knows") {
			t.Errorf("finish with a pod that is Coil's: %v", err)
		}
	})
}

// Where Coil is chained for egress alone, pods keep their interfaces, and the network's configuration loses Coil's plugin.
func TestChainedForEgressAlone(t *testing.T) {
	c, err := replay.Load(replay.V2NewestEgress)
	harness.OK(t, err)
	c = reduced(c.Only("node-3"), func(p replay.Pod) bool { return len(p.Links) <= 1 }) // without clients, whose tunnels not every kernel has
	m := raised(t, c, "node-3", nil)
	conf := m.File("node-3", "/etc/cni/net.d/10-net.conflist")
	before, was := m.dump(), string(check(os.ReadFile(conf)))
	killed := func(s step) {
		t.Helper()
		for _, point := range chaining {
			if !m.fails(point, 1, s) {
				t.Errorf("%s was not hit", point)
			}
		}
	}
	killed((*coil.Node).Apply)
	m.do((*coil.Node).Apply, false) // the last kill was after the change
	m.do((*coil.Node).Apply, false)
	m.state = t.TempDir() // a reboot: the state directory is on a tmpfs
	if now := string(check(os.ReadFile(conf))); strings.Contains(now, "coil") || !strings.Contains(now, "host-local") {
		t.Errorf("configuration = %s, want it without Coil's plugin alone", now)
	}
	killed((*coil.Node).Rollback)
	m.do((*coil.Node).Rollback, true) // it tells of a configuration that is complete already
	m.do((*coil.Node).Rollback, false)
	if now := string(check(os.ReadFile(conf))); now != was {
		t.Errorf("configuration = %s, want %s", now, was)
	}
	m.compare(before)
	m.do((*coil.Node).Apply, true)
	m.do((*coil.Node).Finish, true)
	m.do((*coil.Node).Finish, false)
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(conf), "*.berth*")); strings.Contains(m.dump(), "table 116") || len(left) > 0 {
		t.Errorf("left: %s, %v", m.dump(), left)
	}
}

func check(data []byte, err error) []byte {
	if err != nil {
		return []byte(err.Error())
	}
	return data
}

// Neither daemon may run during a step, and Coil's not during any.
func TestInterlock(t *testing.T) {
	m := raise(t, replay.V2Newest, "node-3")
	harness.OK(t, m.StartDaemon("node-3"))
	for name, s := range map[string]step{"apply": (*coil.Node).Apply, "finish": (*coil.Node).Finish, "rollback": (*coil.Node).Rollback} {
		before := m.dump()
		m.with(func(n *coil.Node) {
			if _, err := s(n, t.Context()); err == nil || !strings.Contains(err.Error(), "coild runs") {
				t.Errorf("%s while coild runs: %v", name, err)
			}
		})
		if m.dump() != before {
			t.Errorf("%s changed the node", name)
		}
	}
	m.StopDaemon("node-3")
	m.do((*coil.Node).Apply, true)
	m.announce()
	m.do((*coil.Node).Finish, true)
	m.with(func(n *coil.Node) {
		if _, err := n.Rollback(t.Context()); err == nil || !strings.Contains(err.Error(), "finish has begun") {
			t.Errorf("rollback after finish: %v", err)
		}
	})
}
