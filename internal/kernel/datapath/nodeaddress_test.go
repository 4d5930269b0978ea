package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// NodeAddresses lists the addresses of all links except Berth's own and those that no pod can have. A pod with an
// address of the node is unreachable until the address is removed from the node.
func TestNodeAddresses(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA, podA6)
	v.host.serveTCP(":81")
	a.serveTCP(":80")
	before, err := v.node.NodeAddresses(ctx)
	v.ok(err)
	for _, has := range before {
		if has.Link != "eth0" { // the operating system sets the primary address
			t.Errorf("NodeAddresses() has %s, want addresses of eth0 only", has)
		}
		if !has.Own {
			t.Errorf("%s is not Own", has)
		}
	}
	for _, command := range []string{
		"ip address add " + podA + "/24 dev eth1 noprefixroute",
		"ip address add " + podA6 + "/64 dev eth1 nodad noprefixroute",
		"ip link add spare type veth peer name spare1",
		"ip address add " + podB + "/32 dev spare",
		"ip address add 127.0.0.9/8 dev lo",
		"ip link add kube-ipvs0 type veth peer name ipvs1",
		"ip address add 10.96.0.1/32 dev kube-ipvs0",
		"ip address add 198.51.100.7/32 dev eth0", // of no ENI
	} {
		v.host.run(command)
	}
	found, err := v.node.NodeAddresses(ctx)
	v.ok(err)
	want := fmt.Sprintf("[%s on spare %s on eth1 %s on eth1]", podB, podA, podA6)
	var added []NodeAddress
	for _, has := range found {
		if has.Link != "eth0" {
			added = append(added, has)
			if has.Own {
				t.Errorf("%s is Own", has)
			}
		}
	}
	if fmt.Sprint(added) != want {
		t.Errorf("added node addresses = %v, want %s", added, want)
	}
	v.router.cannotReach("", podA+":80")
	for range 2 { // the second call finds nothing to remove
		v.ok(v.node.RemoveNodeAddress(ctx, netip.MustParseAddr(podA)))
		v.ok(v.node.RemoveNodeAddress(ctx, netip.MustParseAddr(podA6)))
	}
	v.ok(v.node.RemoveNodeAddress(ctx, netip.MustParseAddr("198.51.100.7")))
	if now, err := v.node.NodeAddresses(ctx); err != nil || len(now) != len(before)+2 {
		t.Errorf("NodeAddresses() = %v, %v, want two more than at the start", now, err)
	}
	v.host.seenAs(podA+":80", nodeAddr)
	v.host.seenAs("["+podA6+"]:80", nodeAddr6)
}

func TestPodRulesMatchUplink(t *testing.T) {
	v := newVPC(t)
	p := v.pod(podA)
	node := []string{" 512 table 19000", " 1024 fwmark 0x80/0x80 table 254", " 1025 fwmark 0x40/0x40 table 254"}
	node6 := []string{" 512 table 19000", " 1024 fwmark 0x80/0x80 table 254"} // IPv6 packets are not translated
	eni := []string{" 1536 fwmark 0x1/0x3f table 19001"}
	for _, c := range []struct {
		uplink int
		addrs  []netip.Addr
		v4, v6 []string
	}{
		{0, addrs(podA), node, nil},
		{v.uplink().Number, addrs(podB), slices.Concat(node, eni), nil},
		{v.uplink().Number, addrs(podB6), nil, slices.Concat(node6, eni)},
		{v.uplink().Number, addrs(podB, podB6), slices.Concat(node, eni), slices.Concat(node6, eni)},
	} {
		var want []string
		for _, r := range c.v4 {
			want = append(want, "IPv4"+r)
		}
		for _, r := range c.v6 {
			want = append(want, "IPv6"+r)
		}
		rules, err := v.node.PodRules(ctx, c.uplink, c.addrs)
		p.must(err)
		if !slices.Equal(rules, want) {
			t.Errorf("PodRules() of %v, uplink %d:\n%q, want\n%q", c.addrs, c.uplink, rules, want)
		}
	}
	gone := policyRule(unix.AF_INET, RulePod, PodTable, 0, 0)
	p.must(v.host.nl.RuleDel(&gone))
	if rules, err := v.node.PodRules(ctx, 0, addrs(podA)); err != nil || slices.Contains(rules, "IPv4 512 table 19000") {
		t.Errorf("PodRules() = %q, %v, want it without the removed rule", rules, err)
	}
}

// A node with ports only does not forward IPv6: forwarding would remove a default route from router advertisements,
// and a kernel without IPv6 has no such setting.
func TestPortsOnlyNodeDoesNotForwardIPv6(t *testing.T) {
	for _, s := range nodeSysctls(Ports{}, nil) {
		if strings.HasPrefix(s.Path, "net/ipv6/") {
			t.Errorf("Setup would set %s", s)
		}
	}
	for _, r := range nodeRules(Ports{}) {
		if r.Family != unix.AF_INET {
			t.Errorf("Setup would add the rule %v", r)
		}
	}
}

// Setup succeeds on a kernel without tables of family arp. Any other error is returned, even if later messages of the
// transaction fail with ENOENT.
func TestKernelWithoutARPTables(t *testing.T) {
	for _, tc := range []struct {
		told []syscall.Errno // errors of the transaction's messages
		want bool
	}{
		{[]syscall.Errno{unix.ENOENT, unix.ENOENT}, true},
		{[]syscall.Errno{unix.EOPNOTSUPP, unix.ENOENT, unix.ENOENT}, true},
		{[]syscall.Errno{unix.EAFNOSUPPORT}, true},
		{[]syscall.Errno{unix.EPERM}, false},
		{[]syscall.Errno{unix.EINVAL, unix.ENOENT}, false},
		{[]syscall.Errno{unix.ENOMEM, unix.ENOENT, unix.ENOENT}, false},
	} {
		var joined error
		for _, errno := range tc.told {
			joined = errors.Join(joined, &netlink.OpError{Op: "receive", Err: errno})
		}
		if got := isWithoutARP(fmt.Errorf("conn.Receive: %w", joined)); got != tc.want {
			t.Errorf("isWithoutARP() of %v = %v, want %v", tc.told, got, tc.want)
		}
	}
}

// ARP requests of another network's pods are answered, even if their links have names like Berth's. Those of Berth's
// own pods are dropped.
func TestARPOfOtherNetworksPasses(t *testing.T) {
	v := newVPC(t)
	v.host.serveTCP(":81")
	for i, c := range []struct {
		link   string
		group  int
		answer bool
	}{
		{"veth1a2b3c4d", 0, true},
		{"cali1a2b3c4d5e6", 0, true},
		{LinkPrefix + "0", 0, true},
		{HostLinkName("other", "c", "eth0"), 0, true},
		{LinkPrefix + "12345678-9a", rtnl.PortGroup, false},
		{HostLinkName("berth", "d", "eth0"), podGroup, false},
		{HostLinkName("berth", "e", "eth0"), reapGroupMax, false},
	} {
		other := newSpace(t, "other")
		wire(v.host, c.link, other, "eth0")
		v.host.must(v.host.nl.LinkSetGroup(v.host.link(c.link), c.group))
		gateway := fmt.Sprintf("198.51.%d.1", i)
		v.host.address(c.link, gateway+"/24")
		other.address("eth0", fmt.Sprintf("198.51.%d.2/24", i))
		if c.answer {
			other.seenAs(gateway+":81", fmt.Sprintf("198.51.%d.2", i))
		} else {
			other.cannotReach("", gateway+":81")
		}
	}
}
