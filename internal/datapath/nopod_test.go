package datapath

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// primary is the primary ENI with addresses for pods.
func (v *vpc) primary() Uplink {
	return Uplink{ID: "eni-1", MAC: v.uplinks.PrimaryMAC, Primary: true, PrimaryIPv4: netip.MustParseAddr(nodeAddr),
		Addresses: addrs("10.0.0.70", "2001:db8:0:0:2::8")}
}

// answering has the node's kernel answer each packet: it sends few ICMP errors a second
// to one peer, and none where it sends redirects, which go before (Linux: ip_forward).
func (v *vpc) answering() {
	v.host.sysctl("net/ipv4/icmp_ratelimit", "0")
	v.host.sysctl("net/ipv6/icmp/ratelimit", "0")
	for _, link := range []string{"all", "eth0"} {
		v.host.sysctl("net/ipv4/conf/"+link+"/send_redirects", "0")
	}
}

// sentBack tells whether packets for an address come back from the node, after ones
// that it does send.
func (v *vpc) sentBack(free, pod string) bool {
	v.t.Helper()
	// A VPC answers for whoever is asked for.
	v.host.must(v.host.nl.NeighSet(neighbour(v.host.link("eth0").Attrs().Index, netip.MustParseAddr(free), v.router.link("r0").Attrs().HardwareAddr)))
	packets := v.router.sniff()
	v.router.in(func() error {
		c, err := net.Dial("udp", net.JoinHostPort(free, "53"))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write([]byte("x"))
		return err
	})
	_, err := v.router.dialTCP(net.JoinHostPort(pod, "80"))
	v.ok(err)
	to, sent, back := netip.MustParseAddr(free), 0, 0
	for _, p := range packets() {
		switch {
		case p.to != to:
		case p.to.Is4() && p.bytes[8] == 63 || p.to.Is6() && p.bytes[7] == 63: // one hop further
			back++
		default:
			sent++
		}
	}
	if sent == 0 {
		v.t.Errorf("no packet for %s was seen", free)
	}
	return back > 0
}

// refused wants the node to answer at once that nobody has an address.
func (v *vpc) refused(free ...string) {
	v.t.Helper()
	for _, a := range free {
		if got, err := v.router.dialFrom("", net.JoinHostPort(a, "80"), dialTimeout); !errors.Is(err, unix.EHOSTUNREACH) {
			v.t.Errorf("%s: seen as %v, %v; want no route to host", a, got, err)
		}
	}
}

// own wants the sets to have exactly these.
func (v *vpc) own(want ...string) {
	v.t.Helper()
	conn, err := v.node.nft()
	v.ok(err)
	list, err := kernelOwn(conn)
	v.ok(err)
	var have []string
	for _, p := range list {
		have = append(have, p.String())
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(have, want) {
		v.t.Errorf("the sets have %v, want %v", have, want)
	}
}

// What a VPC delivers for an address that no pod has is refused. By the default route
// it would go back to the VPC, which drops it as forged, and the sender would wait.
func TestAddressWithoutAPodIsRefused(t *testing.T) {
	v := newVPC(t)
	v.setUplink(v.primary())
	v.pod(podA).serveTCP(":80")
	free := []string{"10.0.0.40", "2001:db8:0:0:1::8", "10.0.0.70", "2001:db8:0:0:2::8"}
	none := func(when string) {
		for _, a := range free {
			if v.sentBack(a, podA) {
				t.Errorf("%s: a packet for %s went back", when, a)
			}
		}
	}
	none("no pod yet")
	v.answering()
	v.refused(free...)
	for _, a := range free {
		p := v.pod(a)
		p.serveTCP(":80")
		if _, err := v.router.dialTCP(net.JoinHostPort(a, "80")); err != nil {
			t.Errorf("pod %s: %v", a, err)
		}
		v.remove(p)
	}
	none("the pod is gone")
	v.host.run("nft add table inet untracked")
	v.host.run("nft add chain inet untracked pre { type filter hook prerouting priority -300 ; }")
	v.host.run("nft add rule inet untracked pre notrack")
	none("without connection tracking")

	// Without the chain they do go back, so that this test can see it.
	v.host.run("nft flush chain inet berth no_pod")
	for _, a := range free {
		if !v.sentBack(a, podA) {
			t.Errorf("a packet for %s did not go back without the chain", a)
		}
	}
}

// EC2 may give an address to another node before this one hears of it. Whoever is on
// this node or comes by it reaches that one.
func TestAddressOfAnotherNodeByNow(t *testing.T) {
	const moved = "10.0.0.70"
	v := newVPC(t)
	v.setUplink(v.primary())
	v.answering()
	v.refused(moved)
	v.router.address("lo", moved+"/32")
	v.router.serveTCP(":80")

	v.pod(podA).seenAs(moved+":80", podA)
	v.pod(podB).seenAs(moved+":80", podB)
	v.host.seenAs(moved+":80", nodeAddr)
	// A node port with a backend there, and a container that is not Berth's.
	v.host.service(nodeAddr+":30080", moved+":80")
	v.host.nat("post", "postrouting priority 90", "ip daddr "+moved+" masquerade")
	v.router.seenAs(nodeAddr+":30080", nodeAddr)
	other := newSpace(t, "other")
	wire(v.host, "docker0", other, "eth0")
	v.host.address("docker0", "172.17.0.1/24")
	other.address("eth0", "172.17.0.2/24")
	other.route("0.0.0.0/0", "172.17.0.1", "eth0")
	other.seenAs(moved+":80", nodeAddr)
}

// The sets follow the ENIs' addresses, also those that changed while no daemon ran.
func TestOwnAddressesFollowTheENIs(t *testing.T) {
	v := newVPC(t)
	v.own(eniPrefix, eniPrefix6)
	v.setUplink(v.primary())
	v.own(eniPrefix, eniPrefix6, "10.0.0.70/32", "2001:db8::2:0:0:8/128")
	less := v.uplink()
	less.Prefixes, less.Addresses = nil, addrs("10.0.0.50", "10.0.0.70") // one that moves here
	v.setUplink(less)
	v.own("10.0.0.50/32", "10.0.0.70/32", "2001:db8::2:0:0:8/128")
	bare := v.primary()
	bare.Addresses = nil
	v.setUplink(bare)
	v.own("10.0.0.50/32", "10.0.0.70/32")

	// Another start of the daemon, which knows of no ENI before Repair.
	v.node = v.host.open()
	v.setup()
	v.own("10.0.0.50/32", "10.0.0.70/32")
	want := Wanted{Config: v.settings(), Carriers: UplinkList{v.uplink(), v.primary()}}
	v.repair(want)
	v.own(eniPrefix, eniPrefix6, "10.0.0.70/32", "2001:db8::2:0:0:8/128")
	v.host.run("nft flush set inet berth own_prefix4")
	v.host.run("nft flush set inet berth eni_links")
	v.repair(want)
	v.answering()
	v.refused("10.0.0.40")
	if did := v.repair(want); did != "" {
		t.Errorf("a second repair did %s", did)
	}
	v.ok(v.node.RemoveUplink(ctx, v.uplink().Number))
	v.own("10.0.0.70/32", "2001:db8::2:0:0:8/128")
}

func TestDiffOwn(t *testing.T) {
	a, b, c := prefixes("10.0.0.1/32")[0], prefixes("10.0.0.16/28")[0], prefixes("10.0.0.3/32")[0]
	mine := Uplink{Addresses: []netip.Addr{a.Addr(), a.Addr()}}
	others := Uplink{Prefixes: []netip.Prefix{b}}
	for _, test := range []struct {
		name               string
		have               []netip.Prefix
		mayGo, add, remove []netip.Prefix
	}{
		{"the first", nil, nil, []netip.Prefix{a}, nil},
		{"there already", []netip.Prefix{a, b}, nil, nil, nil},
		{"had before and gone", []netip.Prefix{a, c}, []netip.Prefix{c}, nil, []netip.Prefix{c}},
		{"had before and another's now", []netip.Prefix{a, b}, []netip.Prefix{b}, nil, nil},
		{"of an ENI not set up yet", []netip.Prefix{a, c}, nil, nil, nil},
	} {
		add, remove := diffOwn(test.have, mine.own(), []Uplink{mine, others}, func(p netip.Prefix) bool { return slices.Contains(test.mayGo, p) })
		if !slices.Equal(add, test.add) || !slices.Equal(remove, test.remove) {
			t.Errorf("%s: add %v, remove %v; want %v, %v", test.name, add, remove, test.add, test.remove)
		}
	}
}
