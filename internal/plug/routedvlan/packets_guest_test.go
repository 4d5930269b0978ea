//go:build guest

package routedvlan

import (
	"testing"

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

// Where packets of pods with branches go, and as what they are seen, with the groups of pod B open and
// shut. Groups are enforced by the VPC: what never leaves the node passes them by.
func TestPackets(t *testing.T) {
	for _, tc := range []struct {
		mode  plug.Enforcing
		shift uint
		rp    string // rp_filter of all links
		// as what the caller is seen, by what is called
		node, podB, self, service, hairpin, nodePort, vpc, outside string
		probe, fromVPC, fromVPCByNode                              string
		shut                                                       string // what pod A sees of B when its groups are shut
		probeShut                                                  string
	}{
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
		t.Run(string(tc.mode), func(t *testing.T) {
			w := newWorld(t)
			w.shift = tc.shift
			w.live(false, tc.rp)
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
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(w.run(w.node, "nft", "list ruleset"), w.run(w.node, "ip", "rule"), w.run(w.node, "ip", "route show table all"), w.run(w.router, "nft", "list ruleset"), w.run(w.node, "ip", "-s link"), w.run(w.node, "nstat", "-az"), w.run(w.node, "ip", "neigh"))
				}
			})
			sees("pod A, its own node", w.ask(a, node), tc.node)
			if t.Failed() {
				return
			}
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
			sees("pod A, a service that is itself", w.ask(a, "172.20.0.2"), tc.hairpin)
			sees("pod A, a node port that is a machine of the VPC", w.ask(a, node+":30080"), tc.nodePort)
			if tc.mode == plug.Strict {
				sees("the VPC, a node port that is pod A, masqueraded", w.askFrom(w.router, "10.0.9.9", node+":30081"), tc.fromVPCByNode)
			}
			w.run(w.router, "nft", "add rule inet vpc groups oifname v8 drop")
			sees("pod A, pod B whose groups are shut", w.ask(a, podB), tc.shut)
			sees("pod A, a service that is pod B, whose groups are shut", w.ask(a, "172.20.0.1"), tc.shut)
			sees("the node, pod B whose groups are shut", w.ask(w.node, podB), tc.probeShut)
			sees("pod B, pod A", w.ask(b, podA), map[plug.Enforcing]string{plug.Strict: "nothing", plug.Standard: node}[tc.mode]) // answers are shut out too; what goes to pod A is masqueraded by now
		})
	}
}
