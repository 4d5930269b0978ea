package datapath

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// forPods is the secondary ENI with its own address available to pods.
func (v *vpc) forPods() Uplink {
	e := v.uplink()
	e.Addresses = addrs(eniAddr)
	return e
}

// asFabric adds permanent neighbour entries, as a VPC's fabric sends no ARP requests and answers all.
func (v *vpc) asFabric() {
	v.t.Helper()
	r, h := v.router, v.host
	r.must(r.nl.NeighSet(rtnl.PermanentNeighbour(r.link("r1").Attrs().Index, netip.MustParseAddr(eniAddr), h.link("eth1").Attrs().HardwareAddr)))
	h.must(h.nl.NeighSet(rtnl.PermanentNeighbour(h.link("eth1").Attrs().Index, netip.MustParseAddr("10.0.0.1"), r.link("r1").Attrs().HardwareAddr)))
}

func (v *vpc) linkHas(want ...string) {
	v.t.Helper()
	list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return v.host.nl.AddrList(v.host.link("eth1"), unix.AF_INET) })
	v.host.must(err)
	var got []string
	for _, a := range list {
		got = append(got, a.IPNet.String())
	}
	if !slices.Equal(got, want) {
		v.t.Errorf("addresses of eth1 = %v, want %v", got, want)
	}
}

// A pod with an ENI's own address works like any other, even if the node had the address before or a network manager
// adds it to the link.
func TestPodWithENIsOwnAddress(t *testing.T) {
	for name, filter := range map[string]string{"no filter": "0", "strict": "1", "loose": "2"} {
		t.Run(name, func(t *testing.T) {
			v := newVPC(t)
			v.asFabric()
			for _, l := range []string{"all", "default"} {
				v.host.sysctl("net/ipv4/conf/"+l+"/rp_filter", filter)
			}
			v.host.run("ip address add " + eniAddr + "/24 dev eth1")
			v.setUplink(v.forPods())
			v.linkHas("169.254.1.1/32")

			own, b, a := v.pod(eniAddr), v.pod(podB), v.pod(podA)
			for _, s := range []*space{own.space, v.router, v.host} {
				s.serveTCP(":80")
			}
			for _, p := range []*pod{own, b} { // both have addresses of this ENI
				p.seenAs(peer+":80", p.want.IPv4.String())
				p.seenAs(internet+":80", nodeAddr)
				p.seenAs(nodeAddr+":80", p.want.IPv4.String())
			}
			a.seenAs(eniAddr+":80", podA)
			b.seenAs(eniAddr+":80", podB)
			v.host.seenAs(eniAddr+":80", nodeAddr)
			v.router.seenAs(eniAddr+":80", "10.0.0.1") // from outside: depends on rp_filter and the address's owner
			v.whole(Desired{Config: v.settings(), Supply: UplinkList{v.forPods()}, Pods: []Pod{own.want, a.want, b.want}})
		})
	}
}

// The ENI's table keeps its routes while the link's address changes.
func TestENIsOwnAddressMovesBetweenNodeAndPods(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA)
	v.host.serveTCP(":81")
	policy := v.host.run("ip route show table 19001")
	for range 2 {
		v.setUplink(v.forPods())
		v.linkHas("169.254.1.1/32")
		if got := v.host.run("ip route show table 19001"); got != policy {
			t.Errorf("table 19001 before:\n%safter:\n%s", policy, got)
		}
		v.setUplink(v.uplink())
		v.linkHas(eniAddr + "/32")
		a.seenAs(eniAddr+":81", podA) // the address is the node's
	}
	v.host.run("ip address add 169.254.1.1/16 dev eth1") // not Berth's, as the scope differs
	v.setUplink(v.uplink())
	v.linkHas(eniAddr+"/32", "169.254.1.1/16")
}

func TestWatchReportsAddressChangesOfENIs(t *testing.T) {
	v := newVPC(t)
	v.asFabric()
	v.setUplink(v.forPods())
	own := v.pod(eniAddr)
	own.serveTCP(":80")
	want := Desired{Config: v.settings(), Supply: UplinkList{v.forPods()}, Pods: []Pod{own.want}}
	w := v.watch()
	for _, c := range []struct{ command, says, repaired string }{
		{"ip address add " + eniAddr + "/24 dev eth1", eniAddr + " of ENI eni-2, which is for pods, was added to its link", "removed address " + eniAddr + "/24 of eth1"},
		{"ip -4 address flush dev eth1", "169.254.1.1 of ENI eni-2 was removed", "address 169.254.1.1 of eth1"},
	} {
		v.host.run(c.command)
		w.expect(StateLost, c.says)
		v.repairs(want, c.repaired)
		v.asFabric() // a link without addresses forgets its neighbours
		v.router.seenAs(eniAddr+":80", "10.0.0.1")
	}
	w.quiet(func() {
		v.host.run("ip address add " + eniAddr + "/32 dev eth0") // not the link of this ENI
		v.host.run("ip address add 10.0.0.99/32 dev eth1")
		v.host.run("ip address del 10.0.0.99/32 dev eth1")
		v.repair(want)
	})
}

// The link has the last IPv6 address of its ENI's first prefix as long as the ENI has the prefix.
func TestENILinkIPv6Address(t *testing.T) {
	v := newVPC(t)
	const other, last = "2001:db8::/80", "2001:db8::ffff:ffff:ffff"
	both, single, none := v.uplink(), v.uplink(), v.uplink()
	both.Prefixes = append(both.Prefixes, netip.MustParsePrefix(other))
	single.Prefixes, single.Addresses = nil, addrs(podB, podB6)
	none.Prefixes = prefixes(eniPrefix)
	global := func() (got []string) {
		list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return v.host.nl.AddrList(v.host.link("eth1"), unix.AF_INET6) })
		v.host.must(err)
		for _, a := range list {
			if !a.IP.IsLinkLocalUnicast() {
				got = append(got, a.IPNet.String())
			}
		}
		return got
	}
	for _, step := range []struct {
		e    Uplink
		want []string
	}{{v.uplink(), []string{eniAddr6 + "/128"}}, {both, []string{last + "/128"}}, {v.uplink(), []string{eniAddr6 + "/128"}}, {single, nil}, {v.uplink(), []string{eniAddr6 + "/128"}}, {none, nil}} {
		v.setUplink(step.e)
		if got := global(); !slices.Equal(got, step.want) {
			t.Errorf("with prefixes %v and addresses %v: addresses of eth1 = %v, want %v", step.e.Prefixes, step.e.Addresses, got, step.want)
		}
	}

	v.setUplink(v.uplink())
	want := Desired{Config: v.settings(), Supply: UplinkList{v.uplink()}}
	v.repair(want)
	w := v.watch()
	v.host.run("ip -6 address del " + eniAddr6 + "/128 dev eth1")
	w.expect(StateLost, eniAddr6+" of ENI eni-2 was removed")
	v.repairs(want, "address "+eniAddr6+" of eth1")
}

// Replies to packets to an ENI's own address, or to a node port on it, leave by this ENI with that address: from a
// program on the node, pods of any ENI, and a pod of another node.
func TestRepliesFromENIsOwnAddress(t *testing.T) {
	v := newVPC(t)
	a, b := v.pod(podA, podA6), v.pod(podB, podB6)
	for _, s := range []*space{a.space, b.space, v.router} {
		s.serveTCP(":80")
	}
	v.host.serveTCP(":81")
	v.host.nat("post", "postrouting priority 90", "tcp dport 80 ct original ip daddr "+eniAddr+" ip daddr "+peer+" masquerade")
	for _, s := range []struct{ addr, port, to string }{
		{"ip daddr " + eniAddr, "30080", "ip to " + podA + ":80"}, {"ip daddr " + eniAddr, "30081", "ip to " + podB + ":80"},
		{"ip daddr " + eniAddr, "30082", "ip to " + nodeAddr + ":81"}, {"ip daddr " + eniAddr, "30083", "ip to " + peer + ":80"},
		{"ip6 daddr " + eniAddr6, "30080", "ip6 to [" + podA6 + "]:80"}, {"ip6 daddr " + eniAddr6, "30081", "ip6 to [" + podB6 + "]:80"},
		{"ip6 daddr " + eniAddr6, "30082", "ip6 to [" + nodeAddr6 + "]:81"},
	} {
		v.host.nat("pre", "prerouting priority -100", s.addr+" tcp dport "+s.port+" dnat "+s.to)
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			v.config.BlockMetadata = true // another ruleset
			v.ok(v.host.open().Setup(ctx, v.settings()))
		}
		for _, port := range []string{"81", "30080", "30081", "30082", "30083"} {
			for _, client := range []string{internet, onPrem, peer} {
				want := client
				if port == "30083" {
					want = nodeAddr // masqueraded on the way to the other node
				}
				v.router.seenFrom(client, eniAddr+":"+port, want)
			}
			if port == "30083" {
				continue
			}
			v.router.seenFrom(internet6, "["+eniAddr6+"]:"+port, internet6)
		}
		for _, p := range []*pod{a, b} { // also from pods of this node
			p.seenAs(eniAddr+":81", p.want.IPv4.String())
			p.seenAs("["+eniAddr6+"]:81", p.want.IPv6.String())
		}
		v.host.seenFrom(eniAddr, peer+":80", eniAddr)
	}
	v.ok(v.node.RemoveUplink(ctx, v.uplink().Number))
	if text := v.host.run("nft list table inet berth") + v.host.run("ip rule"); strings.Contains(text, eniAddr) || strings.Contains(text, "eni_1") {
		t.Errorf("state left of a removed ENI:\n%s", text)
	}
}
