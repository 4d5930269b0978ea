//go:build guest

package routedvlan

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/lab/network/ns"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/plugtest"
	"github.com/berthnet/berth/internal/plug/podif"
)

// two are two pods of a node with branches, of one mode, which serve.
func (w *world) two(mode plug.Enforcing) (a, b *podif.Namespace) {
	w.t.Helper()
	a, b = plugtest.Space(w.t, "pod"), plugtest.Space(w.t, "pod")
	for n, pod := range []*podif.Namespace{a, b} {
		want := w.want(7+n, mode, []string{plugtest.One, plugtest.Two}[n], []string{plugtest.PortA, plugtest.PortB}[n], pod)
		p := w.plugger()
		_, err := p.Plug(plugtest.Bounded(w.t), want)
		plugtest.Must(w.t, err)
		plugtest.Must(w.t, p.Check(plugtest.Bounded(w.t), want))
		w.serve(pod)
	}
	w.serve(w.node)
	w.serve(w.router)
	return a, b
}

const (
	podA = "192.168.0.12"
	podB = "192.168.1.12"
	node = "10.0.0.10"
)

// soon ends a wait for an answer that must not come: shorter makes a test weaker only.
const soon = 300 * time.Millisecond

// Where packets of pods with branches go, and as what they are seen, with the groups of pod B open and
// shut. Groups are enforced by the VPC: what never leaves the node passes them by.
func TestPackets(t *testing.T) {
	for _, tc := range []struct {
		mode     plug.Enforcing
		shift    uint
		external bool   // nothing is translated
		rp       string // rp_filter of all links
		// as what the caller is seen, by what is called
		node, podB, self, service, hairpin, nodePort, vpc, outside string
		probe, fromVPC, fromVPCByNode                              string
		shut                                                       string // what pod A sees of B when its groups are shut
		probeShut                                                  string
	}{
		{
			mode: plug.Standard, external: true, rp: "0",
			node: podA, podB: podA, self: podA, service: podA, hairpin: node, nodePort: podA, vpc: podA, outside: podA,
			probe: node, fromVPC: "10.0.9.9", fromVPCByNode: "10.0.9.9",
			shut: podA, probeShut: node,
		},
		{
			mode: plug.Strict, rp: "1",
			node: podA, podB: podA, self: podA, service: podA, hairpin: "10.0.0.10", nodePort: podA, vpc: podA, outside: podA,
			probe: node, fromVPC: "10.0.9.9", fromVPCByNode: node,
			shut: "nothing", probeShut: "nothing",
		},
		{
			mode: plug.Standard, shift: 8, rp: "2",
			node: podA, podB: podA, self: podA, service: podA, hairpin: "10.0.0.10", nodePort: podA, vpc: podA, outside: node,
			probe: node, fromVPC: "10.0.9.9", fromVPCByNode: "10.0.9.9",
			shut: podA, probeShut: node,
		},
	} {
		t.Run(fmt.Sprint(tc.mode, " ", tc.external), func(t *testing.T) {
			w := newWorld(t)
			w.shift = tc.shift
			w.live(tc.external, tc.rp)
			a, b := w.two(tc.mode)
			sees := func(what, got, want string) {
				t.Helper()
				if got != want {
					t.Errorf("%s: the caller is seen as %s, want %s", what, got, want)
				}
			}
			w.service("172.20.0.1:80", podB+":80")
			w.service("172.20.0.2:80", podA+":80")
			w.service(node+":30080", "10.0.9.9:80")
			w.service(node+":30081", podA+":80")
			sees("pod A, its own node", w.ask(a, node), tc.node)
			sees("pod A, pod B", w.ask(a, podB), tc.podB)
			sees("pod B, pod A", w.ask(b, podA), podB)
			sees("pod A, itself", w.ask(a, podA), tc.self)
			sees("pod A, a service that is pod B", w.ask(a, "172.20.0.1"), tc.service)
			sees("pod A, a machine of the VPC", w.ask(a, "10.0.9.9"), tc.vpc)
			sees("pod A, a machine outside", w.ask(a, "203.0.113.1"), tc.outside)
			sees("the node, pod A", w.ask(w.node, podA), tc.probe)
			sees("the VPC, pod A", w.askFrom(w.router, "10.0.9.9", podA), tc.fromVPC)
			if tc.mode == plug.Standard {
				sees("the VPC, a node port that is pod A, as it is", w.askFrom(w.router, "10.0.9.9", node+":30081"), tc.fromVPCByNode)
			}
			w.run(w.node, "nft", "add table ip services")
			w.masquerade(inVPC)
			w.masquerade(w.addr(7, 12))
			// What a pod has for itself stays on its node, whatever its groups let in.
			w.run(w.router, "nft", "insert rule inet vpc sources iifname v7 ip daddr "+podA+" drop")
			sees("pod A, a service that is itself", w.ask(a, "172.20.0.2"), tc.hairpin)
			sees("pod A, a node port that is a machine of the VPC", w.ask(a, node+":30080"), tc.nodePort)
			if tc.mode == plug.Strict {
				sees("the VPC, a node port that is pod A, masqueraded", w.askFrom(w.router, "10.0.9.9", node+":30081"), tc.fromVPCByNode)
			}
			w.run(w.router, "nft", "add rule inet vpc groups oifname v8 drop")
			w.patience = soon
			sees("pod A, pod B whose groups are shut", w.ask(a, podB), tc.shut)
			sees("pod A, a service that is pod B, whose groups are shut", w.ask(a, "172.20.0.1"), tc.shut)
			sees("the node, pod B whose groups are shut", w.ask(w.node, podB), tc.probeShut)
			sees("pod B, pod A", w.ask(b, podA), map[plug.Enforcing]string{plug.Strict: "nothing", plug.Standard: node}[tc.mode]) // answers are shut out too; what goes to pod A is masqueraded by now
		})
	}
}

// Whatever is taken away of what keeps a strict branch apart, its pod reaches nobody past the groups, and
// nobody it; and Plug puts it back.
func TestNothingGoesPastTheGroups(t *testing.T) {
	w := newWorld(t)
	w.live(false, "0")
	a, b := w.two(plug.Strict)
	wantA := w.want(7, plug.Strict, plugtest.One, plugtest.PortA, a)
	table, chain := "19107", "from_pod_"+wantA.Short()
	w.run(w.router, "nft", "add rule inet vpc groups oifname { v7, v8 } drop")
	w.run(w.router, "nft", "add chain inet vpc out { type filter hook output priority filter ; }")
	w.run(w.router, "nft", "add rule inet vpc out oifname { v7, v8 } drop")
	w.patience = soon
	for what, take := range map[string][]string{
		"nothing":                                  {"true"},
		"the pod's rule":                           {"ip rule del priority 13 iif bth" + wantA.Short()},
		"all rules of pods":                        {"ip rule del priority 13", "ip rule del priority 13", "ip rule del priority 13", "ip rule del priority 13"},
		"the rule past the others":                 {"ip rule del priority 12"},
		"the rule of what comes":                   {"ip rule del priority 14"},
		"the rule of sources":                      {"ip rule del priority 15"},
		"the pod's routes":                         {"ip route flush table " + table},
		"the routes to pods":                       {"ip route flush table 19064"},
		"the filters":                              {"nft delete table inet berth-branches"},
		"the pod's chain":                          {"nft flush chain inet berth-branches " + chain},
		"the place of the rule of local addresses": {"ip rule add priority 0 lookup local"},
	} {
		for _, line := range take {
			program, args, _ := strings.Cut(line, " ")
			w.run(w.node, program, args)
		}
		for _, call := range []struct {
			from *podif.Namespace
			to   string
		}{{a, podB}, {b, podA}, {w.node, podA}} {
			if got := w.ask(call.from, call.to); got != "nothing" {
				t.Errorf("without %s: %s is reached past its groups by %s", what, call.to, got)
			}
		}
		p := w.plugger()
		for _, want := range []plug.Want{wantA, w.want(8, plug.Strict, plugtest.Two, plugtest.PortB, b)} {
			if err := p.Check(plugtest.Bounded(t), want); (err == nil) != (what == "nothing") && want.VLAN == 7 {
				t.Errorf("without %s: Check: %v", what, err)
			}
			_, err := p.Plug(plugtest.Bounded(t), want)
			plugtest.Must(t, err)
			plugtest.Must(t, p.Check(plugtest.Bounded(t), want))
		}
	}
	w.patience = 5 * time.Second
	w.run(w.router, "nft", "flush chain inet vpc groups")
	w.run(w.router, "nft", "flush chain inet vpc out")
	if got := w.ask(a, podB); got != podA {
		t.Errorf("with the groups open pod A is seen as %s", got)
	}
}

// What connection tracking knows nothing of, such as an answer that nobody has asked for, leaves by the VLAN of a
// strict branch as all does: it needs no translation. In mode standard it would leave the VPC without one.
func TestUntracked(t *testing.T) {
	for mode, want := range map[plug.Enforcing]int{plug.Strict: 1, plug.Standard: 0} {
		w := newWorld(t)
		w.live(false, "0")
		a, _ := w.two(mode)
		w.run(w.router, "nft", "insert rule inet vpc sources ip daddr "+outside.String()+" icmp type echo-reply counter")
		plugtest.Must(t, ns.Do(a.Path, func() error {
			c, err := net.ListenPacket("ip4:icmp", podA)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.WriteTo([]byte{0, 0, 0xff, 0xf7, 0, 7, 0, 1}, &net.IPAddr{IP: outside.AsSlice()}) // RFC 792, echo reply
			return err
		}))
		if got := w.ask(a, outside.String()); got == "nothing" { // behind which the other is, on the same way
			t.Errorf("%s: nobody outside answers", mode)
		}
		if text := w.run(w.router, "nft", "list chain inet vpc sources"); !strings.Contains(text, fmt.Sprintf("echo-reply counter packets %d ", want)) {
			t.Errorf("%s: the VPC did not get %d packets:\n%s", mode, want, text)
		}
	}
}

// A pod sends with its own address alone, and what comes by its VLAN for another is nobody's.
func TestSourcesAndDestinations(t *testing.T) {
	for _, mode := range []plug.Enforcing{plug.Strict, plug.Standard} {
		w := newWorld(t)
		w.live(false, "0") // where the kernel's own check of sources (rp_filter) drops nothing
		a, _ := w.two(mode)
		w.patience = soon
		w.run(a, "ip", "addr add 192.168.1.99/32 dev lo")
		w.run(w.router, "nft", "add rule inet vpc sources iifname v7 counter") // behind the drop of other sources
		for _, to := range []string{node, podB, "10.0.9.9"} {
			if got := w.askFrom(a, "192.168.1.99", to); got != "nothing" {
				t.Errorf("%s: %s answers %s, which is not the pod's", mode, to, got)
			}
		}
		if text := w.run(w.router, "nft", "list chain inet vpc sources"); !strings.Contains(text, `iifname "v7" ip saddr != 192.168.0.12 counter packets 0`) {
			t.Errorf("%s: the VPC got what is not the pod's:\n%s", mode, text)
		}
		if got := w.ask(a, "169.254.169.254"); got != "nothing" {
			t.Errorf("%s: the metadata service answers %s", mode, got)
		}
		// By pod A's VLAN, for pod B and for the node. An answer may be lost on its way: what counts is what passes the filters.
		w.run(w.node, "nft", "add table inet seen")
		for _, hook := range []string{"forward", "input"} {
			w.run(w.node, "nft", "add chain inet seen "+hook+" { type filter hook "+hook+" priority raw ; }")
			w.run(w.node, "nft", "add rule inet seen "+hook+" ip saddr 10.0.9.9 counter")
		}
		w.run(w.router, "ip", "route replace "+podB+" via 192.168.0.12 dev v7")
		w.run(w.router, "ip", "route replace 198.51.100.1 via 192.168.0.12 dev v7")
		w.run(w.node, "ip", "addr add 198.51.100.1/32 dev lo")
		for _, to := range []string{podB, "198.51.100.1"} {
			if got := w.askFrom(w.router, "10.0.9.9", to); got != "nothing" {
				t.Errorf("%s: by another's VLAN %s sees %s", mode, to, got)
			}
		}
		if text := w.run(w.node, "nft", "list table inet seen"); strings.Count(text, "counter packets 0 ") != 2 {
			t.Errorf("%s: the node takes what is for others by a pod's VLAN:\n%s", mode, text)
		}
	}
}
