//go:build guest

package routedvlan

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv6"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/lab/network/dnscache"
	"github.com/berthnet/berth/test/harness"
)

// two plugs two pods with branches of one mode on a node and starts their servers.
func (w *world) two(mode plug.Enforcing) (a, b *podif.Namespace) {
	w.t.Helper()
	a, b = plugtest.Space(w.t, "pod"), plugtest.Space(w.t, "pod")
	for n, pod := range []*podif.Namespace{a, b} {
		want := w.want(7+n, mode, []string{plugtest.One, plugtest.Two}[n], []string{plugtest.PortA, plugtest.PortB}[n], pod)
		p := w.plugger()
		plugtest.Plugged(w.t, p, want)
		w.serve(pod)
	}
	w.serve(w.node)
	w.serve(w.router)
	return a, b
}

// soon bounds the wait for an answer that must not arrive. A shorter time only weakens the test.
const soon = 300 * time.Millisecond

// patience bounds the wait for an expected answer.
const patience = 5 * time.Second

// Source addresses that a server may see.
const (
	asPodA = "pod A"
	asPodB = "pod B"
	asNode = "the node"
	asVPC  = "a machine of the VPC"
)

// sees compares the source address that a server sees.
func (w *world) sees(p plan, what, got, want string) {
	w.t.Helper()
	for name, a := range map[string]netip.Addr{asPodA: p.podAt(7), asPodB: p.podAt(8), asNode: p.node.Addr(), asVPC: p.inVPC} {
		if got == a.String() {
			got = name
		}
	}
	if got != want {
		w.t.Errorf("%s %s: the caller is seen as %s, want %s", p.nft, what, got, want)
	}
}

// packetsCase is a mode and the path of packets in it.
type packetsCase struct {
	mode     plug.Enforcing
	families ipfamily.Set
	shift    uint
	external bool   // no address translation
	rp       string // rp_filter of all links
	outside  string // source address of pod A outside, for IPv4; IPv6 is not translated
}

// The path and the source address of packets of pods with branches, while the security groups of
// pod B are open and closed. The VPC enforces security groups, so packets that stay on the node
// bypass them.
func TestPackets(t *testing.T) {
	for _, tc := range harness.Sample(t, 5, []packetsCase{
		{mode: plug.Standard, external: true, rp: "0", outside: asPodA},
		{mode: plug.Strict, rp: "1", outside: asPodA},
		{mode: plug.Standard, shift: 8, rp: "2", outside: asNode},
		{mode: plug.Strict, families: ipfamily.OnlyIPv6, rp: "1"},
		{mode: plug.Standard, families: ipfamily.OnlyIPv6, shift: 8, rp: "2"},
		{mode: plug.Strict, families: ipfamily.Dual, shift: 8, rp: "1", outside: asPodA},
		{mode: plug.Standard, families: ipfamily.Dual, rp: "2", outside: asNode},
	}) {
		t.Run(fmt.Sprint(tc.mode, " ", tc.families, " ", tc.external), func(t *testing.T) {
			w := newWorld(t)
			w.shift, w.families = tc.shift, tc.families
			w.live(tc.external, tc.rp)
			a, b := w.two(tc.mode)
			for _, f := range tc.families.Families() {
				w.patience = patience
				outside := tc.outside
				if f == ipfamily.IPv6 {
					outside = asPodA
				}
				w.open(tc.mode, plans[f], a, b, outside)
				w.shut(tc.mode, plans[f], a, b)
			}
		})
	}
}

// open tests calls from and to pods A and B while their groups allow everything.
func (w *world) open(mode plug.Enforcing, p plan, a, b *podif.Namespace, outside string) {
	w.t.Helper()
	podA, podB, node, vpc := web(p.podAt(7)), web(p.podAt(8)), p.node.Addr(), web(p.inVPC)
	w.service(p, web(p.service(1)), podB)
	w.service(p, web(p.service(2)), podA)
	w.service(p, netip.AddrPortFrom(node, 30080), vpc)
	w.service(p, netip.AddrPortFrom(node, 30081), podA)
	w.sees(p, "pod A, its own node", w.ask(a, web(node)), asPodA)
	w.sees(p, "pod A, pod B", w.ask(a, podB), asPodA)
	w.sees(p, "pod B, pod A", w.ask(b, podA), asPodB)
	w.sees(p, "pod A, itself", w.ask(a, podA), asPodA)
	w.sees(p, "pod A, a service that is pod B", w.ask(a, web(p.service(1))), asPodA)
	w.sees(p, "pod A, a machine of the VPC", w.ask(a, vpc), asPodA)
	w.sees(p, "pod A, a machine outside", w.ask(a, web(p.outside)), outside)
	w.sees(p, "the node, pod A", w.ask(w.node, podA), asNode)
	w.sees(p, "the VPC, pod A", w.askFrom(w.router, p.inVPC, podA), asVPC)
	if mode == plug.Standard {
		w.sees(p, "the VPC, a node port that is pod A, as it is", w.askFrom(w.router, p.inVPC, netip.AddrPortFrom(node, 30081)), asVPC)
	}
	w.masquerade(p, p.inVPC)
	w.masquerade(p, podA.Addr())
	// Connections of a pod to its own address stay on the node, whatever its groups allow.
	w.run(w.router, "nft", fmt.Sprintf("insert rule inet vpc sources iifname v7 %s daddr %s drop", p.nft, podA.Addr()))
	w.sees(p, "pod A, a service that is itself", w.ask(a, web(p.service(2))), asNode)
	w.sees(p, "pod A, a node port that is a machine of the VPC", w.ask(a, netip.AddrPortFrom(node, 30080)), asPodA)
	if mode == plug.Strict {
		w.sees(p, "the VPC, a node port that is pod A, masqueraded", w.askFrom(w.router, p.inVPC, netip.AddrPortFrom(node, 30081)), asNode)
	}
}

// shut tests calls to pod B while its groups allow nothing.
func (w *world) shut(mode plug.Enforcing, p plan, a, b *podif.Namespace) {
	w.t.Helper()
	byPodA, byNode := nothing, nothing
	if mode == plug.Standard {
		byPodA, byNode = asPodA, asNode
	}
	w.run(w.router, "nft", "add rule inet vpc groups oifname v8 meta nfproto "+map[string]string{"ip": "ipv4", "ip6": "ipv6"}[p.nft]+" drop")
	w.patience = soon
	w.sees(p, "pod A, pod B whose groups are shut", w.ask(a, web(p.podAt(8))), byPodA)
	w.sees(p, "pod A, a service that is pod B, whose groups are shut", w.ask(a, web(p.service(1))), byPodA)
	w.sees(p, "the node, pod B whose groups are shut", w.ask(w.node, web(p.podAt(8))), byNode)
	w.sees(p, "pod B, pod A", w.ask(b, web(p.podAt(7))), byNode) // the groups drop answers, too; packets to pod A are masqueraded now
}

// If any part of the isolation of a strict branch is removed, its pod still reaches nobody past the
// security groups and nobody reaches it. Plug restores the part.
func TestNothingGoesPastTheGroups(t *testing.T) {
	for _, f := range ipfamily.Dual.Families() {
		t.Run(f.String(), func(t *testing.T) {
			w := newWorld(t)
			w.families = ipfamily.Dual
			w.live(false, "0")
			a, b := w.two(plug.Strict)
			w.nothingPasses(plans[f], a, b)
		})
	}
}

func (w *world) nothingPasses(p plan, a, b *podif.Namespace) {
	t := w.t
	podA, podB := web(p.podAt(7)), web(p.podAt(8))
	wantA := w.want(7, plug.Strict, plugtest.One, plugtest.PortA, a)
	table, chain := "19107", "from_pod_"+wantA.Short()
	ip := "ip " + p.ip + " "
	w.run(w.router, "nft", "add rule inet vpc groups oifname { v7, v8 } drop")
	w.run(w.router, "nft", "add chain inet vpc out { type filter hook output priority filter ; }")
	w.run(w.router, "nft", "add rule inet vpc out oifname { v7, v8 } "+p.nft+" daddr { "+podA.Addr().String()+", "+podB.Addr().String()+" } drop")
	w.patience = soon
	all := []string{ip + "rule del priority 13", ip + "rule del priority 13"}
	if p.nft == "ip" { // IPv4 has one more rule for each pod
		all = append(all, all...)
	}
	takes := map[string][]string{
		nothing:                                    {"true"},
		"the pod's rule":                           {ip + "rule del priority 13 iif bth" + wantA.Short()},
		"all rules of pods":                        all,
		"the rule past the others":                 {ip + "rule del priority 12"},
		"the rule of what comes":                   {ip + "rule del priority 14"},
		"the rule of sources":                      {ip + "rule del priority 15"},
		"the pod's routes":                         {ip + "route flush table " + table},
		"the routes to pods":                       {ip + "route flush table 19064"},
		"the filters":                              {"nft delete table inet berth-branches"},
		"the pod's chain":                          {"nft flush chain inet berth-branches " + chain},
		"the place of the rule of local addresses": {ip + "rule add priority 0 lookup local"},
	}
	for _, what := range harness.Sample(t, 5, slices.Sorted(maps.Keys(takes))) {
		for _, line := range takes[what] {
			program, args, _ := strings.Cut(line, " ")
			w.run(w.node, program, args)
		}
		for _, call := range []struct {
			from *podif.Namespace
			to   netip.AddrPort
		}{{a, podB}, {b, podA}, {w.node, podA}} {
			if got := w.ask(call.from, call.to); got != nothing {
				t.Errorf("%s without %s: %s is reached past its groups by %s", p.nft, what, call.to, got)
			}
		}
		pl := w.plugger()
		for _, want := range []plug.Want{wantA, w.want(8, plug.Strict, plugtest.Two, plugtest.PortB, b)} {
			if err := pl.Check(plugtest.Bounded(t), want); (err == nil) != (what == nothing) && want.VLAN == 7 {
				t.Errorf("%s without %s: Check: %v", p.nft, what, err)
			}
			plugtest.Plugged(t, pl, want)
		}
	}
	w.patience = patience
	w.run(w.router, "nft", "flush chain inet vpc groups")
	w.run(w.router, "nft", "flush chain inet vpc out")
	w.sees(p, "pod A, pod B with the groups open", w.ask(a, podB), asPodA)
}

// Packets without connection tracking state, such as unsolicited answers, leave a strict branch by
// its VLAN, because that path needs no translation. In mode standard they would leave the VPC
// untranslated with IPv4. The node itself receives them from a standard branch, which NodeLocal
// DNSCache needs.
func TestUntracked(t *testing.T) {
	type untracked struct {
		mode            plug.Enforcing
		family          ipfamily.Family
		network, header string
		reply           []byte
		want            int
	}
	for _, tc := range harness.Sample(t, 3, []untracked{
		{plug.Strict, ipfamily.IPv4, "ip4:icmp", "icmp", []byte{0, 0, 0xff, 0xf7, 0, 7, 0, 1}, 1}, // RFC 792, echo reply
		{plug.Standard, ipfamily.IPv4, "ip4:icmp", "icmp", []byte{0, 0, 0xff, 0xf7, 0, 7, 0, 1}, 0},
		{plug.Strict, ipfamily.IPv6, "ip6:ipv6-icmp", "icmpv6", []byte{129, 0, 0, 0, 0, 7, 0, 1}, 1}, // RFC 4443, section 4.2
		{plug.Standard, ipfamily.IPv6, "ip6:ipv6-icmp", "icmpv6", []byte{129, 0, 0, 0, 0, 7, 0, 1}, 1},
	}) {
		w := newWorld(t)
		w.families = ipfamily.Dual
		w.live(false, "0")
		a, _ := w.two(tc.mode)
		p := plans[tc.family]
		w.run(w.router, "nft", fmt.Sprintf("insert rule inet vpc sources %s daddr %s %s type echo-reply counter", p.nft, p.outside, tc.header))
		plugtest.Must(t, ns.Do(a.Path, func() error {
			c, err := net.ListenPacket(tc.network, p.podAt(7).String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.WriteTo(tc.reply, &net.IPAddr{IP: p.outside.AsSlice()})
			return err
		}))
		if got := w.ask(a, web(p.outside)); got == nothing { // an answer proves that the packets before it have arrived, too
			t.Errorf("%s: nobody outside answers", tc.mode)
		}
		if text := w.run(w.router, "nft", "list chain inet vpc sources"); !strings.Contains(text, fmt.Sprintf("echo-reply counter packets %d ", tc.want)) {
			t.Errorf("%s %s: the VPC did not get %d packets:\n%s", tc.mode, p.nft, tc.want, text)
		}
		local := asPodA
		if tc.mode == plug.Strict {
			local, w.patience = nothing, soon
		}
		for _, backend := range dnscache.Backends {
			cache, err := dnscache.Install(w.node.Path, backend, web(p.outside).Port())
			plugtest.Must(t, err)
			sees := func(addr netip.Addr, want string) {
				w.sees(p, fmt.Sprintf("%s, iptables-%s: pod A, NodeLocal DNSCache at %s", tc.mode, backend, addr), w.ask(a, web(addr)), want)
			}
			sees(dnscache.Local[tc.family], local)
			sees(dnscache.ClusterIPs[tc.family], local)
			if tc.mode == plug.Strict { // packets of strict branches stay tracked, so that kube-proxy sees them
				w.patience = patience
				w.service(p, web(dnscache.ClusterIPs[tc.family]), web(p.inVPC))
				sees(dnscache.ClusterIPs[tc.family], asPodA)
				w.run(w.node, "nft", "delete table "+p.nft+" services")
				w.patience = soon
			}
			plugtest.Must(t, cache.Remove())
		}
	}
}

// A pod can send with its own address only, and packets for other addresses in its VLAN are
// dropped.
func TestSpoofedSourcesOfBranchesAreDropped(t *testing.T) {
	type link struct {
		mode   plug.Enforcing
		family ipfamily.Family
	}
	for _, tc := range harness.Sample(t, 3, []link{
		{plug.Strict, ipfamily.IPv4}, {plug.Standard, ipfamily.IPv6}, {plug.Standard, ipfamily.IPv4}, {plug.Strict, ipfamily.IPv6},
	}) {
		w := newWorld(t)
		w.families = ipfamily.Dual
		w.live(false, "0") // turn off the kernel's own check of sources (rp_filter)
		a, _ := w.two(tc.mode)
		w.patience = soon
		w.onlyItsOwn(tc.mode, plans[tc.family], a)
	}
}

func (w *world) onlyItsOwn(mode plug.Enforcing, p plan, a *podif.Namespace) {
	t := w.t
	podA, podB, stranger, beyond := p.podAt(7), p.podAt(8), p.pod(8, 99).Addr(), p.service(9)
	host := func(a netip.Addr) string { return rtnl.HostPrefix(a).String() }
	w.run(a, "ip", "addr add "+host(stranger)+" dev lo")
	w.run(w.router, "nft", "add rule inet vpc sources iifname v7 counter") // after the drop of other sources
	for _, to := range []netip.Addr{p.node.Addr(), podB, p.inVPC} {
		if got := w.askFrom(a, stranger, web(to)); got != nothing {
			t.Errorf("%s: %s answers %s, which is not the pod's", mode, to, got)
		}
	}
	if text := w.run(w.router, "nft", "list chain inet vpc sources"); !strings.Contains(text, fmt.Sprintf(`iifname "v7" %s saddr != %s counter packets 0`, p.nft, podA)) {
		t.Errorf("%s: the VPC got what is not the pod's:\n%s", mode, text)
	}
	if got := w.ask(a, web(p.metadata)); got != nothing {
		t.Errorf("%s: the metadata service answers %s", mode, got)
	}
	// Send packets for pod B and for the node in pod A's VLAN. Answers may be lost on their way, so
	// count the packets that pass the filters.
	w.run(w.node, "nft", "add table inet seen")
	for _, hook := range []string{"forward", "input"} {
		w.run(w.node, "nft", "add chain inet seen "+hook+" { type filter hook "+hook+" priority raw ; }")
		w.run(w.node, "nft", fmt.Sprintf("add rule inet seen %s %s saddr %s counter", hook, p.nft, p.inVPC))
	}
	w.run(w.router, "ip", fmt.Sprintf("%s route replace %s via %s dev v7", p.ip, podB, podA))
	w.run(w.router, "ip", fmt.Sprintf("%s route replace %s via %s dev v7", p.ip, beyond, podA))
	w.run(w.node, "ip", "addr add "+host(beyond)+" dev lo")
	for _, to := range []netip.Addr{podB, beyond} {
		if got := w.askFrom(w.router, p.inVPC, web(to)); got != nothing {
			t.Errorf("%s: by another's VLAN %s sees %s", mode, to, got)
		}
	}
	if text := w.run(w.node, "nft", "list table inet seen"); strings.Count(text, "counter packets 0 ") != 2 {
		t.Errorf("%s: the node takes what is for others by a pod's VLAN:\n%s", mode, text)
	}
}

// The node accepts neighbour solicitations and advertisements from a VLAN, and no other link-local
// messages: no router advertisements, redirects or pings.
func TestMessagesOfTheLink(t *testing.T) {
	for _, mode := range []plug.Enforcing{plug.Strict, plug.Standard} {
		w := newWorld(t)
		w.families = ipfamily.Dual
		w.live(false, "0")
		a, _ := w.two(mode)
		link, own := w.want(7, mode, plugtest.One, plugtest.PortA, a).VLANLink(), rtnl.LinkLocal(macOf(7))
		const kinds = "icmpv6 type { nd-router-advert, nd-redirect, echo-request } counter"
		w.run(w.node, "nft", "add table inet seen")
		w.run(w.node, "nft", "add chain inet seen input { type filter hook input priority raw ; }")
		w.run(w.node, "nft", "add rule inet seen input iifname "+link+" "+kinds)
		w.run(w.node, "nft", "add rule inet seen input iifname "+link+" icmpv6 type nd-neighbor-advert counter")
		w.run(w.router, "nft", "add chain inet vpc sent { type filter hook output priority raw ; }")
		w.run(w.router, "nft", "add rule inet vpc sent oifname v7 "+kinds)
		advertisement := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 15: 0} // RFC 4861, section 4.2: with a lifetime
		redirect := make([]byte, 40)                                    // section 4.5
		redirect[0] = 137
		index := plugtest.Link(t, w.router, "v7").Attrs().Index
		plugtest.Must(t, ns.Do(w.router.Path, func() error {
			c, err := net.ListenPacket("ip6:ipv6-icmp", "::")
			if err != nil {
				return err
			}
			defer c.Close()
			for _, m := range []struct {
				body []byte
				to   netip.Addr
			}{{advertisement, netip.MustParseAddr("ff02::1")}, {redirect, own}, {[]byte{128, 0, 0, 0, 0, 7, 0, 1}, own}} {
				cm := &ipv6.ControlMessage{HopLimit: neighbourHops, IfIndex: index, Src: gateway6.AsSlice()}
				if _, err := ipv6.NewPacketConn(c).WriteTo(m.body, cm, &net.IPAddr{IP: m.to.AsSlice()}); err != nil {
					return err
				}
			}
			return nil
		}))
		w.run(w.node, "ip", "-6 neigh flush dev "+link)
		if got := w.ask(a, web(plans[ipfamily.IPv6].inVPC)); got == nothing { // for which the node resolves the router
			t.Errorf("%s: the pod gets no answer", mode)
		}
		if text := w.run(w.router, "nft", "list chain inet vpc sent"); !strings.Contains(text, "counter packets 3 ") {
			t.Errorf("%s: the router did not send all:\n%s", mode, text)
		}
		if text := w.run(w.node, "nft", "list table inet seen"); strings.Count(text, "counter packets 0 ") != 1 || !strings.Contains(text, "nd-redirect } counter packets 0 ") {
			t.Errorf("%s: the node takes messages of the link, or no answers:\n%s", mode, text)
		}
		if text := w.run(w.node, "ip", "-6 route show default"); strings.Contains(text, link) {
			t.Errorf("%s: the VLAN's router became the node's:\n%s", mode, text)
		}
	}
}
