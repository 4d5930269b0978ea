package datapath

import (
	"net/netip"
	"strings"
	"testing"
)

// A pod may have interfaces of networks that others plug. What has the address of its
// first one is answered by it also in those networks, and another may have the default
// route, of a family.
func TestInterfacesOfOtherNetworks(t *testing.T) {
	v := newVPC(t)
	v.setup()
	first, other := v.pod(podA, podA6), v.pod(podB, podB6)
	near4, near6 := netip.MustParseAddr(podB).Prev(), netip.MustParseAddr(podB6).Prev()
	first.run("ip link add data type veth peer name peer")
	first.run("ip link set data up")
	first.run("ip link set peer up")
	first.run("ip addr add " + netip.PrefixFrom(near4, 24).String() + " dev data")
	first.run("ip addr add " + netip.PrefixFrom(near6, 64).String() + " dev data nodad")

	first.want.Several = true
	for range 2 { // again changes nothing
		v.add(first)
		v.check(first)
		for _, a := range []string{podA, podA6} {
			server := first.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(a), 0).String())
			other.seenAs(server.String(), other.want.addrLike(a))
		}
	}
	first.run("ip rule del priority 2048")
	if err := v.node.CheckPod(ctx, first.want); err == nil || !strings.Contains(err.Error(), "rule for packets from "+podA) {
		t.Errorf("without its rule: %v", err)
	}

	yields := v.pod(podC, "2001:db8::53")
	v.remove(yields)
	yields.want.Several, yields.want.Yield4 = true, true
	v.add(yields)
	v.check(yields)
	yields.run("ip link add data type veth peer name peer")
	yields.run("ip link set data up")
	yields.run("ip link set peer up")
	yields.run("ip route add default dev data") // nobody has it yet
	v.add(yields)
	if got := yields.run("ip route show default"); !strings.Contains(strings.Split(got, "\n")[0], "dev data") {
		t.Errorf("the default route is\n%s", got)
	}
	if got := yields.run("ip -6 route show default"); !strings.Contains(got, "dev eth0") || strings.Contains(got, "metric 20") {
		t.Errorf("the default route of IPv6 is\n%s", got)
	}
	server := yields.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(podC), 0).String())
	other.seenAs(server.String(), podB)
}
