package datapath

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
)

// podTable returns the table of pods as text.
func (r *rack) podTable() string {
	r.t.Helper()
	return r.host.run("ip route show table 19000") + strings.Join(r.host.routes6("19000"), "")
}

// SetBlocks and Repair restore the routes of blocks after crashes and manual changes, and write nothing if the routes
// are right.
func TestBlocksConverge(t *testing.T) {
	wanted := []Block{block("b", block4, block6), block("one", single4, single6)}
	for name, damage := range map[string][]string{
		"export routes only":                    {"ip route del unreachable " + block4 + " table 19000", "ip -6 route del unreachable " + block6 + " table 19000"},
		"unreachable routes only":               {"ip route flush table 119", "ip -6 route flush table 119"},
		"nothing":                               {"ip route flush table 119", "ip -6 route flush table 119", "ip route flush table 19000", "ip -6 route flush table 19000"},
		"extra block":                           {"ip route add 10.99.0.0/27 dev lo table 119 proto 190", "ip route add unreachable 10.99.0.0/27 table 19000 proto 190"},
		"exported in other tables":              {"ip route add " + block4 + " dev lo table 120 proto 190", "ip -6 route add " + block6 + " dev lo table 7 proto 190"},
		"another metric":                        {"ip route add unreachable " + single4 + " table 19000 proto 190 metric 7", "ip -6 route add unreachable " + single6 + " table 19000 proto 190 metric 7"},
		"another link":                          {"ip route del " + block4 + " table 119", "ip route add " + block4 + " dev eth0 table 119 proto 190", "ip -6 route del " + block6 + " table 119", "ip -6 route add " + block6 + " dev eth0 table 119 proto 190"},
		"unreachable route in the export table": {"ip route add unreachable " + block4 + " table 119 proto 190 metric 9"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t)
			r.set(wanted...)
			exports, unreachable := r.exports(119), r.podTable()
			for way, mend := range map[string]func(*rack){
				"SetBlocks": func(r *rack) { r.set(wanted...) },
				"Repair": func(r *rack) {
					r.repairs(r.wanted(wanted...), "")
				},
			} {
				for _, d := range damage {
					r.host.run(d)
				}
				mend(r)
				r.announces(119, exports...)
				if n := len(r.exports(120)) + len(r.exports(7)); n > 0 {
					t.Errorf("%s: %d routes in other tables, want none", way, n)
				}
				if got := r.podTable(); got != unreachable {
					t.Errorf("%s: routes of table 19000:\n%s, want\n%s", way, got, unreachable)
				}
				settled := r.host.policy()
				r.whole(r.wanted(wanted...))
				if got := r.host.policy(); got != settled {
					t.Errorf("%s: a second call changed routes to\n%s, want\n%s", way, got, settled)
				}
			}
		})
	}
}

// A route of other software to the destination of a block is kept beside Berth's, and after Berth's is removed.
func TestForeignRouteToSameBlockIsKept(t *testing.T) {
	r := newRack(t)
	foreign := []string{block4 + " static", block6 + " static"}
	r.host.run("ip route add " + block4 + " dev lo table 119 proto static")
	r.host.run("ip -6 route add " + block6 + " dev lo table 119 proto static")
	both := slices.Sorted(slices.Values(append([]string{block4 + " 190", block6 + " 190"}, foreign...)))
	for range 2 {
		r.set(block("b", block4, block6))
		r.announces(119, both...)
	}
	r.whole(r.wanted(block("b", block4, block6)))
	r.set()
	r.announces(119, foreign...)
}

// If one block cannot be set, others are still set and old ones withdrawn.
func TestFailedBlockDoesNotAffectOthers(t *testing.T) {
	r := newRack(t)
	r.set(block("old", "10.77.0.0/27"))
	r.host.run("ip route add " + single4 + " dev lo table 119 proto static")
	r.host.run("ip route add " + single4 + " dev lo table 119 proto static metric 1073741824")
	err := r.node.SetBlocks(ctx, []Block{block("one", single4), block("b", block4), {Name: "none"}})
	if err == nil || !strings.Contains(err.Error(), "add route "+single4+" of table 119") || !strings.Contains(err.Error(), "set up block none") {
		t.Errorf("SetBlocks() error = %v, want the route that was not added and the block that was not set", err)
	}
	if e, ok := errors.AsType[*BlocksError](err); !ok || len(e.Failed) != 2 || e.Failed["one"] == nil || e.Failed["none"] == nil || e.Left != nil {
		t.Errorf("SetBlocks() error = %#v, want a BlocksError with the blocks one and none", err)
	}
	r.announces(119, block4+" 190", single4+" static", single4+" static")
}

// Routes of a block and routes of its pods are added and removed independently.
func TestBlockAndPodRoutesAreIndependent(t *testing.T) {
	r := newRack(t)
	r.set(block("one", single4, single6))
	alone := r.podTable()
	one := [2]string{"10.9.0.7", "fd09::7"}
	p := r.pod(one[0], one[1])
	reach := func() {
		t.Helper()
		for _, a := range one {
			server := p.serveTCP(net.JoinHostPort(a, "0"))
			if _, err := r.outside.dialTCP(server.String()); err != nil {
				t.Error(err)
			}
		}
	}
	reach()
	r.set()
	reach()
	r.set(block("one", single4, single6))
	reach()
	want := r.wanted(block("one", single4, single6))
	want.Pods = []Pod{p.want}
	r.whole(want)
	r.detach(p)
	if got := r.podTable(); got != alone {
		t.Errorf("table 19000 after the pod's removal:\n%s, want\n%s", got, alone)
	}
	if did := r.repair(r.wanted(block("one", single4, single6))); did != "removed link "+p.want.HostIfName {
		t.Errorf("Repair() = %v, want only the removal of the pod link", did)
	}
}

// Watch reports a flush of the export table, and not a withdrawal by the node itself.
func TestWatchReportsFlushedBlockRoutes(t *testing.T) {
	r := newRack(t)
	r.set(block("one", single4))
	w := r.watch()
	wanted := block("b", block4, block6)
	w.quiet(func() { r.set(wanted) })
	exports := r.exports(119)
	for _, flush := range []struct{ command, says string }{
		{"ip route flush table 119", "block " + block4 + " in table 119"},
		{"ip -6 route flush table 119", "block " + block6 + " in table 119"},
		{"ip route flush table 19000", "block " + block4 + " in table 19000"},
		{"ip -6 route flush table 19000", "block " + block6 + " in table 19000"},
	} {
		r.host.run(flush.command)
		w.expect(StateLost, flush.says)
		if did := r.repair(r.wanted(wanted)); did == "" || strings.Contains(did, ";") {
			t.Errorf("%s: Repair() = %v, want one change", flush.command, did)
		}
	}
	r.announces(119, exports...)
}

// When their link goes down, the kernel removes the routes of blocks without a notification.
func TestBlockRoutesRestoredAfterLoopbackDown(t *testing.T) {
	r := newRack(t)
	wanted := block("b", block4, block6)
	r.set(wanted)
	exports := r.exports(119)
	w := r.watch()
	r.host.run("ip link set lo down")
	w.expect(StateLost, "lo went down")
	r.host.run("ip link set lo up")
	w.expect(StateLost, "lo came up")
	r.repairs(r.wanted(wanted), "")
	r.announces(119, exports...)
}

// On a routed node, pod links have the smallest MTU of the uplinks, or the configured one.
func TestPodMTUOnRoutedNodes(t *testing.T) {
	r := newRack(t)
	wire(r.host, "eth1", r.router, "r1")
	r.host.address("eth1", "172.20.2.2/24")
	for _, c := range []struct {
		name, before string
		config, want int
	}{
		{"one uplink", "ip link set eth0 mtu 1450", 0, 1450},
		{"configured", "true", 1300, 1300},
		{"two uplinks", "ip route replace default nexthop via 172.20.1.1 dev eth0 nexthop via 172.20.2.1 dev eth1", 0, 1450},
		{"smaller of two uplinks", "ip link set eth1 mtu 1400", 0, 1400},
		{"IPv6 only", "ip route del default", 0, 1450},
		{"unreachable route by lo", "ip -6 route add unreachable default metric 2048", 0, 1450},
		{"unreachable route only", "ip -6 route del default via fd20::1", 0, defaultMTU},
	} {
		r.host.run(c.before)
		r.setup(Config{Uplinks: Routed{ExportTable: 119, IPv6: true}, MTU: c.config})
		if got := r.node.set.Load().mtu; got != c.want {
			t.Errorf("%s: MTU %d, want %d", c.name, got, c.want)
		}
	}
	for link, want := range map[string]string{"eth0": "2", "lo": "0"} {
		if got := r.host.readSysctl("net/ipv4/conf/" + link + "/rp_filter"); got != want {
			t.Errorf("rp_filter of %s is %s, want %s", link, got, want)
		}
	}
}
