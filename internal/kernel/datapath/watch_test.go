package datapath

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// watch collects events. A marker link shows that all earlier ones were read.
type watch struct {
	b      *bed
	events <-chan Event
	stop   context.CancelFunc
	marks  int
}

func (b *bed) watch() *watch {
	b.t.Helper()
	wctx, stop := context.WithCancel(ctx)
	b.t.Cleanup(stop)
	events, err := b.node.Watch(wctx)
	b.ok(err)
	return &watch{b: b, events: events, stop: stop}
}

func (w *watch) next() Event {
	w.b.t.Helper()
	select {
	case e, ok := <-w.events:
		if !ok {
			w.b.t.Fatal("the channel was closed")
		}
		return e
	case <-time.After(time.Minute):
		w.b.t.Fatal("no event within a minute")
		return Event{}
	}
}

// expect reads events until one of a kind has a text.
func (w *watch) expect(kind EventKind, says string) Event {
	w.b.t.Helper()
	for {
		if e := w.next(); e.Kind == kind && strings.Contains(e.What, says) {
			return e
		}
	}
}

// quiet asserts that do caused no event. It does not cover nftables, whose events come by another socket.
func (w *watch) quiet(do func()) {
	w.b.t.Helper()
	do()
	w.marks++
	name := fmt.Sprint("mark", w.marks)
	w.b.host.run("ip link add " + name + " type veth peer name " + name + "p")
	for {
		e := w.next()
		if e.Kind == LinkAppeared && e.Link == name {
			return
		}
		if !strings.HasPrefix(e.Link, "mark") && e.Kind != AddressChanged { // which is looked at, and nothing to repair
			w.b.t.Errorf("unexpected event %+v", e)
		}
	}
}

func TestWatch(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA)
	w := v.watch()
	h := v.host

	wire(h, "eth2", v.router, "r2")
	mac := h.link("eth2").Attrs().HardwareAddr
	if e := w.expect(LinkAppeared, "eth2"); e.Link != "eth2" || e.MAC.String() != mac.String() {
		t.Errorf("event %+v, want eth2 at %s", e, mac)
	}
	h.must(h.nl.LinkDel(h.link("eth2")))
	if e := w.expect(LinkVanished, "eth2"); e.MAC.String() != mac.String() {
		t.Errorf("event %+v, want eth2 at %s", e, mac)
	}

	// Pods that come and go by this Node, and repairs with nothing to do, are no news.
	w.quiet(func() {
		b := v.pod(podB, podB6)
		v.remove(b)
		v.repair(v.wanted(a))
	})

	// Nor are addresses that an ENI gains or loses: the first event of nftables is that of another process.
	eni := v.uplink()
	eni.Addresses = append(eni.Addresses, addrs("10.0.100.1")...)
	v.setUplink(eni)
	v.setUplink(v.uplink())
	h.run("nft add table inet " + PortNftTable)
	h.run("nft delete table inet " + PortNftTable)
	for e := w.next(); e.Kind != PortStateLost; e = w.next() {
		if strings.Contains(e.What, "nftables") {
			t.Errorf("an event of changes by the node itself: %+v", e)
		}
	}

	for _, c := range []struct {
		command string
		kind    EventKind
		says    string
	}{
		{"ip rule del priority 512", StateLost, "policy rule"},
		{"ip -6 rule del priority 1024", StateLost, "policy rule"},
		{"ip route del " + podA + " table 19000", StateLost, "route to " + podA},
		{"ip route del default table 19001", StateLost, "route default of table 19001"},
		{"ip -6 route del default table 19001", StateLost, "of table 19001"},
		{"ip address flush dev eth1", StateLost, "address " + eniAddr},
		{"ip -6 address flush dev eth1 scope link", StateLost, "address fe80:"},
		{"ip link set eth1 down", StateLost, "eth1 went down"},
		{"ip link set eth1 mtu 1400", StateLost, "eth1 has MTU 1400"},
		{"ip link set " + a.want.HostIfName + " address 02:00:00:00:00:09", StateLost, a.want.HostIfName + " has MAC address 02:00:00:00:00:09"},
		{"ip link set " + a.want.HostIfName + " mtu 1400", StateLost, a.want.HostIfName + " has MTU 1400"},
		{"ip neighbour del " + podA + " dev " + a.want.HostIfName, StateLost, "neighbour " + podA},
		{"ip neighbour replace " + podA + " dev " + a.want.HostIfName + " lladdr 02:00:00:00:00:09 nud permanent", StateLost, "neighbour " + podA},
		{"ip route replace " + podA + " dev eth0 table 19000", StateLost, "another route to " + podA},
		{"ip route replace default dev eth0 table 19001", StateLost, "another route default is in table 19001"},
		{"sysctl -qw net.ipv4.ip_forward=0", StateLost, "net.ipv4.ip_forward = 1 is now 0"},
		{"sysctl -qw net.ipv6.conf.all.forwarding=0", StateLost, "net.ipv6.conf.all.forwarding = 1 is now 0"},
		{"sysctl -qw net.ipv4.conf.eth1.rp_filter=1", StateLost, "net.ipv4.conf.eth1.rp_filter = 2 is now 1"},
		{"sysctl -qw net.ipv6.conf.eth1.use_oif_addrs_only=0", StateLost, "net.ipv6.conf.eth1.use_oif_addrs_only = 1 is now 0"},
		{"nft insert rule inet berth antispoof accept", StateLost, "nftables rule was added"},
		{"nft add table inet berth { flags dormant; }", StateLost, "nftables table was changed"},
		{"ip link set " + a.want.HostIfName + " down", StateLost, a.want.HostIfName + " went down"},
		{"nft delete table inet berth", StateLost, "nftables table was removed"},
		{"nft flush chain inet berth from_pod", StateLost, "nftables rule was removed"},
		{"nft flush map inet berth eni_prefix4", StateLost, "elements were removed"},
		{"ip address add " + podB + "/24 dev eth1", AddressChanged, podB},
		{"ip address del " + podB + "/24 dev eth1", AddressChanged, podB},
		{"ip address add " + podB6 + "/64 dev eth0 nodad", AddressChanged, podB6},
		{"ip link del " + a.want.HostIfName, LinkVanished, a.want.HostIfName},
	} {
		h.run(c.command)
		w.expect(c.kind, c.says)
		if c.kind == AddressChanged {
			continue // and nothing of Berth's to repair
		}
		v.repairs(v.wanted(a), "")
	}
	v.check(a)

	w.stop()
	for range w.events { // until it is closed
	}
}

// Watch also reports lost state of branches, which package plug restores.
func TestWatchBranches(t *testing.T) {
	v := newVPC(t)
	h := v.host
	const branch = LinkPrefix + "12345678-9a"
	for _, command := range []string{
		fmt.Sprintf("ip rule add priority %d lookup %d protocol %d", RuleBranchIn, StrictTable, Protocol),
		fmt.Sprintf("ip rule add priority %d lookup local protocol kernel", RuleLocal),
		fmt.Sprintf("ip route add 192.0.2.1 dev eth0 table %d protocol %d", StrictTable, Protocol),
		"ip link add " + branch + " type veth peer name branchpeer",
		"ip link set " + branch + " up",
		"ip neighbour add 192.0.2.1 dev " + branch + " lladdr 02:00:00:00:00:09 nud permanent",
		"ip link add stranger type veth peer name strangerpeer",
		"ip link set stranger up",
		"nft add table inet " + PortNftTable,
		"nft add table inet " + BranchNftTable,
		"nft add chain inet " + BranchNftTable + " from_vlan",
		"nft add chain inet " + BranchNftTable + " from_pod",
		"nft add rule inet " + BranchNftTable + " from_pod counter drop",
		"nft add map inet " + BranchNftTable + " entering_links { type ifname : verdict ; }",
		"nft add element inet " + BranchNftTable + " entering_links { bth0 : goto from_pod }",
	} {
		h.run(command)
	}
	w := v.watch()
	w.quiet(func() { // the kernel makes such entries itself
		h.run("ip neighbour add fe80::9 dev " + branch + " lladdr 02:00:00:00:00:09 nud stale")
		h.run("ip neighbour add ff02::9 dev " + branch + " lladdr 33:33:00:00:00:09 nud noarp")
		h.run("ip neighbour del ff02::9 dev " + branch)
	})
	for _, c := range []struct{ command, says string }{
		{"ip link set stranger mtu 1400", "stranger has MTU 1400"},
		{"ip link set stranger down", "stranger went down"},
		{"ip rule add lookup local priority 0", "priority 0 was added"},
		{fmt.Sprintf("ip route del 192.0.2.1 dev eth0 table %d", StrictTable), "route 192.0.2.1 of table"},
		{fmt.Sprintf("ip route add 192.0.2.2 dev eth0 table %d", StrictTable), "another route 192.0.2.2"},
		{fmt.Sprintf("ip neighbour del 192.0.2.1 dev %s", branch), "neighbour 192.0.2.1"},
		{"nft delete table inet " + PortNftTable, "an nftables table was removed"},
		{fmt.Sprintf("ip rule del priority %d", RuleLocal), "a policy rule was removed"},
		{fmt.Sprintf("ip rule del priority %d", RuleBranchIn), "a policy rule was removed"},
		{"nft flush map inet " + BranchNftTable + " entering_links", "nftables set elements were removed"},
		{"nft flush chain inet " + BranchNftTable + " from_pod", "an nftables rule was removed"},
		{"nft delete chain inet " + BranchNftTable + " from_vlan", "an nftables chain was removed"},
		{"nft delete table inet " + BranchNftTable, "an nftables table was removed"},
	} {
		h.run(c.command)
		w.expect(PortStateLost, c.says)
	}
}

// The settings of an ENI's link are forgotten with the link, as another one may get its name.
func TestWatchForgetsSysctlsOfLinks(t *testing.T) {
	v := newVPC(t)
	w := v.watch()
	for _, c := range []struct {
		end  string
		kind EventKind
		says string
	}{{"ip link del eth2", LinkVanished, "eth2"}, {"ip link set eth2 name other", LinkAppeared, "other"}} {
		wire(v.host, "eth2", v.router, "r2")
		v.setUplink(Uplink{ID: "eni-3", MAC: v.host.link("eth2").Attrs().HardwareAddr, Number: 2,
			Subnet: prefixes("10.0.0.0/24")[0], Addresses: addrs("10.0.100.1")})
		v.host.sysctl("net/ipv4/conf/eth2/rp_filter", "1")
		if wrong := v.node.sysctls.changed(""); len(wrong) != 1 {
			t.Fatalf("wrong settings of eth2: %q, want one", wrong)
		}
		v.host.sysctl("net/ipv4/conf/eth2/rp_filter", "2")
		v.host.run(c.end)
		w.expect(c.kind, c.says)
		wire(v.host, "eth2", v.router, "r3")
		if wrong := v.node.sysctls.changed(""); len(wrong) != 0 {
			t.Errorf("%s: wrong settings of another link of that name: %q", c.end, wrong)
		}
		v.host.run("ip link del eth2")
	}
}

// A setting that stays wrong is reported once a minute, another one at once.
func TestSysctlNews(t *testing.T) {
	reported, begin := reportedSysctls{}, time.Now()
	for _, c := range []struct {
		after       time.Duration
		wrong, want string
	}{{0, "a", "a"}, {5 * time.Second, "a", ""}, {6 * time.Second, "a b", "b"}, {7 * time.Second, "", ""}, {8 * time.Second, "a b", ""}, {sysctlRepeat, "a b", "a"}, {6*time.Second + sysctlRepeat, "a b", "b"}} {
		if got := strings.Join(reported.due(strings.Fields(c.wrong), begin.Add(c.after)), " "); got != c.want {
			t.Errorf("after %s, of %q: reported %q, want %q", c.after, c.wrong, got, c.want)
		}
	}
}

// A slow reader gets a Resync.
func TestWatchSurvivesAnOverflow(t *testing.T) {
	v := newVPC(t)
	wire(v.host, "spare", v.router, "rspare")
	w := v.watch()
	spare := v.host.link("spare")
	for i := range 2000 { // each is an event; the channel fills, then the socket's buffer
		mac := net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}
		v.host.must(v.host.nl.LinkSetHardwareAddr(spare, mac))
	}
	w.expect(Resync, "dropped")
	for { // and it goes on; on a busy machine another loss may come first
		v.host.run("ip rule del priority 512")
		e := w.next()
		for e.Kind != Resync && e.Kind != StateLost {
			e = w.next()
		}
		if e.Kind == StateLost && strings.Contains(e.What, "policy rule") {
			return
		}
		v.repair(Desired{Config: v.settings(), Supply: UplinkList{v.uplink()}})
	}
}
