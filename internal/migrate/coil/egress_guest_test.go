//go:build guest && e2e

package coil_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/egressclient"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/coil"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/test/harness"
)

// Hosts outside of the cluster, on the nodes' router, and the gateway of Berth, behind it.
var (
	outside4, outside6 = netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:9::9")
	berths             = []netip.Addr{netip.MustParseAddr("10.99.0.2"), netip.MustParseAddr("fd99::2")}
	everywhere         = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	private            = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("fc00::/7")}
)

// egressNode is a recorded node with clients and gateways of Coil's Egresses.
type egressNode struct {
	*moving
	clients, gateways []replay.Pod
}

// raiseEgress replays a node, with a table in place of kube-proxy.
func raiseEgress(t *testing.T, recording, node string) *egressNode {
	t.Helper()
	e := &egressNode{moving: raise(t, recording, node)}
	harness.OK(t, replay.Script(e.Router(), fmt.Sprintf("ip addr add %s/32 dev lo; ip -6 addr add %s/128 dev lo nodad", outside4, outside6)))
	s, err := echo.Serve(e.Router())
	harness.OK(t, err)
	t.Cleanup(func() { _ = s.Close() })
	harness.OK(t, replay.Script(e.Netns(node), "ip route replace default via 172.30.0.1; ip -6 route replace default via fd00:30::1"))
	harness.OK(t, e.CompleteEgress())
	for _, p := range e.Pods {
		switch {
		case p.IsGateway():
			e.gateways = append(e.gateways, p)
		case p.UsesEgress():
			e.clients = append(e.clients, p)
		}
	}
	e.proxy()
	e.gatewayOfBerth()
	return e
}

// proxy leads the Services of Egresses to the first gateway on the node.
func (e *egressNode) proxy() {
	e.t.Helper()
	to := map[netip.Addr]netip.Addr{}
	for _, p := range e.clients {
		for _, l := range p.Links {
			if service := l.Remote(); service.IsValid() {
				if to[service] = e.first(service.Is4()); !to[service].IsValid() {
					e.t.Fatalf("no gateway on the node for %s", service)
				}
			}
		}
	}
	harness.OK(e.t, e.Proxy(e.node, to))
}

// first is the address of the first gateway of Coil.
func (e *egressNode) first(ipv4 bool) (a netip.Addr) {
	for _, addr := range e.gateways[0].Addresses() {
		if addr.Is4() == ipv4 {
			return addr
		}
	}
	return a
}

// gatewayOfBerth makes a gateway of Berth behind the router.
func (e *egressNode) gatewayOfBerth() {
	e.t.Helper()
	name := strings.TrimPrefix(e.Router(), ns.Dir+"/") + "gw"
	harness.OK(e.t, ns.Create(name))
	e.t.Cleanup(func() { harness.OK(e.t, ns.Remove(name)) })
	harness.OK(e.t, ns.Do(ns.Path(name), func() error { return ns.SetSysctls(ns.Forwarding...) }))
	harness.OK(e.t, ns.Netlink(e.Router(), func(h *netlink.Handle) error {
		return ns.AddHost(h, "to-berth", ns.Path(name), []netip.Prefix{netip.PrefixFrom(berths[0], 24), netip.PrefixFrom(berths[1], 64)}, []netip.Addr{berths[0].Prev(), berths[1].Prev()}, 1500)
	}))
	k, err := egressgateway.Open(ns.Path(name))
	harness.OK(e.t, err)
	e.t.Cleanup(k.Close)
	s := egressgateway.Setup{Link: "eth0", Addrs: berths, Port: 5555, Destinations: everywhere}
	for _, p := range e.clients {
		s.Clients = append(s.Clients, egressgateway.Client{UID: p.UID, Addrs: p.Addresses()})
	}
	harness.OK(e.t, k.Apply(e.t.Context(), s))
}

// setup is what berthd sets up in an adopted client.
func setupOf(p replay.Pod) egressclient.Setup {
	return egressclient.Setup{
		Link: "eth0", Addrs: p.Addresses(), Port: 5555, ClusterNetworks: private, Adopted: true,
		Egresses: []egressclient.Egress{{Name: "internet/nat", Destinations: everywhere, Gateways: []egressclient.Gateway{{ID: 1, Addrs: berths, Chosen: true}}}},
	}
}

// seen checks the address by which the outside sees each client: that of the first gateway of Coil, or of Berth's.
func (e *egressNode) seen(when string, berth bool) {
	e.t.Helper()
	for _, p := range e.clients {
		for i, to := range []netip.Addr{outside4, outside6} {
			if !slices.ContainsFunc(p.Addresses(), func(a netip.Addr) bool { return a.Is4() == to.Is4() }) {
				continue
			}
			want := e.first(to.Is4())
			switch {
			case berth:
				want = berths[i]
			case !slices.ContainsFunc(p.Routes, func(r replay.Route) bool {
				return r.Table == "118" && r.Dst == "default" && (r.Family == 6) == to.Is6()
			}):
				continue // before version 2.5 Services had no IPv6 address
			}
			harness.Eventually(e.t, 20*time.Second, fmt.Sprintf("%s: %s/%s reaches %s as %s", when, p.Namespace, p.Name, to, want), func() error {
				r, err := echo.Ask(e.t.Context(), e.PodNetns(p), "udp", netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "x")
				if err == nil && r.You != want {
					err = fmt.Errorf("seen as %s", r.You)
				}
				return err
			})
		}
	}
}

// Clients of Egresses on recorded nodes leave Coil's gateways for Berth's while they run, return at a rollback, and in the end
// have nothing of Coil. Their connections within the cluster go on.
func TestClientsOfRecordedEgresses(t *testing.T) {
	for recording, nodes := range map[string][]string{replay.V2NewestEgress: {"node-1", "node-2"}, replay.V2MiddleEgress: {"node-1"}} {
		for _, node := range nodes {
			t.Run(recording+"/"+node, func(t *testing.T) {
				e := raiseEgress(t, recording, node)
				if len(e.clients) < 2 || len(e.gateways) == 0 {
					t.Fatalf("%d clients and %d gateways, want some", len(e.clients), len(e.gateways))
				}
				e.converse()
				e.seen("Coil", false)
				through, err := echo.Connect(t.Context(), e.PodNetns(e.clients[0]), "tcp", netip.AddrPortFrom(outside4, echo.Port), netip.Addr{})
				harness.OK(t, err)
				defer through.Close()
				_, err = through.Ask(t.Context(), "x")
				harness.OK(t, err)
				before := e.egressDump()
				e.with(func(n *coil.Node) {
					p, err := n.Plan(t.Context())
					if i := slices.IndexFunc(p.Steps, func(s migrate.Step) bool { return s.Name == "egress" }); err != nil || i != 1 || p.Steps[i].Done || p.Steps[i].Final {
						t.Errorf("steps = %+v, %v; want that of the clients second", p.Steps, err)
					}
				})
				e.do((*coil.Node).Apply, true)
				e.seen("adopted", false)
				e.announce()
				e.with(func(n *coil.Node) {
					if _, err := n.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), "still sends through Coil's gateways") {
						t.Errorf("finish with clients of Coil: %v", err)
					}
				})
				_, err = through.Ask(t.Context(), "x")
				harness.OK(t, err)
				e.change()
				if _, err := through.Ask(t.Context(), "x"); !errors.Is(err, unix.ECONNRESET) {
					t.Errorf("a connection through Coil's gateway: %v, want that it is reset", err)
				}
				e.seen("Berth", true)
				e.do((*coil.Node).Verify, false)

				e.do((*coil.Node).Rollback, true)
				if diff := cmp.Diff(before, e.egressDump()); diff != "" {
					t.Errorf("clients after the rollback (-before +now):\n%s", diff)
				}
				e.seen("rolled back", false)

				e.do((*coil.Node).Apply, true)
				e.change()
				e.announce()
				e.do((*coil.Node).Finish, true)
				e.do((*coil.Node).Finish, false)
				e.seen("finished", true)
				for _, trace := range []string{"fou4_", "fou6_", "coil_", "fou-dummy", "proto 30", "lookup 1004", "mangle", "unspec"} {
					for _, line := range strings.Split(e.egressDump(), "\n") {
						if strings.Contains(line, trace) {
							t.Errorf("left: %s", line)
						}
					}
				}
				e.talks.GoOn(t, 20)
				harness.OK(t, e.talks.End())
			})
		}
	}
}

// converse starts a conversation with each address of each pod. This kernel renames links only while they are down, so that
// datagrams may be lost.
func (e *egressNode) converse() {
	e.t.Helper()
	var conns []*echo.Conn
	for _, p := range e.Pods {
		s, err := echo.Serve(e.PodNetns(p))
		harness.OK(e.t, err)
		e.t.Cleanup(func() { _ = s.Close() })
		for _, a := range p.Addresses() {
			c, err := echo.Connect(e.t.Context(), e.Router(), "tcp", netip.AddrPortFrom(a, echo.Port), netip.Addr{})
			harness.OK(e.t, err)
			conns = append(conns, c)
		}
	}
	e.talks = harness.Converse(e.t, 100*time.Millisecond, 30*time.Second, conns...)
	e.talks.GoOn(e.t, len(conns))
}

// change sets up Berth's tunnels in each client, as berthd does.
func (e *egressNode) change() {
	e.t.Helper()
	for _, p := range e.clients {
		harness.OK(e.t, egressclient.Apply(e.t.Context(), e.PodNetns(p), setupOf(p)))
		harness.OK(e.t, egressclient.Check(e.t.Context(), e.PodNetns(p), setupOf(p)))
	}
}

// egressDump is what clients have of egress.
func (e *egressNode) egressDump() string {
	e.t.Helper()
	var all strings.Builder
	for _, p := range e.clients {
		out, err := exec.Command("nsenter", "--net="+e.PodNetns(p), "bash", "-ec", `ip -br link | sed 's/@.*//; s/ .*//' | sort; ip route show table all | grep -E 'table 1(1[78]|00)' || true
ip -6 route show table all | sort -u | grep -E 'table 1(1[78]|00)' || true; ip rule; ip -6 rule; ip fou show; ip -6 fou show; nft list tables`).CombinedOutput()
		harness.OK(e.t, err)
		fmt.Fprintf(&all, "%s/%s\n%s", p.Namespace, p.Name, out)
	}
	return all.String()
}
