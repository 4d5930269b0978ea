package datapath

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// The addresses of pods in the tests.
const (
	podA  = "10.0.0.65" // on the primary ENI
	podB  = "10.0.0.33" // on the secondary ENI
	podC  = "10.0.0.34" // on the secondary ENI
	podA6 = "2001:db8::2:0:0:5"
	podB6 = "2001:db8::1:0:0:5"
)

// The router drops what leaves by an ENI that does not own the source, so a
// connection proves its path.
func TestPodsReachWhatTheyShould(t *testing.T) {
	v := newVPC(t)
	a, b := v.pod(podA, podA6), v.pod(podB, podB6)
	v.router.serveTCP(":80")
	a.serveTCP(":80")
	b.serveTCP(":80")
	v.host.serveTCP(":81")

	for _, p := range []*pod{a, b} {
		v4, v6 := p.want.IPv4.String(), p.want.IPv6.String()
		p.seenAs(peer+":80", v4)
		p.seenAs(onPrem+":80", v4)
		p.seenAs(internet+":80", nodeAddr)
		p.seenAs("169.254.169.254:80", nodeAddr)
		p.seenAs(nodeAddr+":81", v4)
		p.seenAs("["+peer6+"]:80", v6)
		p.seenAs("["+internet6+"]:80", v6) // IPv6 is not translated unless asked for
		p.seenAs("["+nodeAddr6+"]:81", v6)
		v.host.seenAs(v4+":80", nodeAddr)
		v.host.seenAs("["+v6+"]:80", nodeAddr6)
		v.router.seenAs(v4+":80", "10.0.0.1")
	}
	a.seenAs(podB+":80", podA)
	b.seenAs(podA+":80", podB)
	a.seenAs("["+podB6+"]:80", podA6)
	b.seenAs("["+podA6+"]:80", podB6)
	v.host.seenAs(internet+":80", nodeAddr)
}

func TestAddressesOfAnENIWithoutPrefixes(t *testing.T) {
	v := newVPC(t)
	e := v.uplink()
	e.Prefixes, e.Addresses = nil, addrs(podB, podB6)
	v.setUplink(e)
	b, c := v.pod(podB, podB6), v.pod(podC)
	v.router.serveTCP(":80")
	b.seenAs(peer+":80", podB)
	b.seenAs("["+peer6+"]:80", podB6)
	c.cannotReach("", peer+":80") // no longer the ENI's: leaves by the primary, where a VPC drops it
}

func TestIPv6IsTranslatedWhenAskedFor(t *testing.T) {
	v := newVPC(t, func(v *vpc) { v.uplinks.PrimaryIPv6 = netip.MustParseAddr(nodeAddr6) })
	b := v.pod(podB6)
	v.router.serveTCP(":80")
	b.seenAs("["+internet6+"]:80", nodeAddr6)
	b.seenAs("["+peer6+"]:80", podB6)
	v.uplinks.LocalCIDRs = prefixes("10.0.0.0/16", "2001:db8::/32")
	v.setup()
	b.seenAs("["+internet6+"]:80", podB6)
}

// nat adds a NAT rule of other software to a namespace.
func (s *space) nat(chain, hook, rule string) {
	s.t.Helper()
	s.run("nft add table inet services")
	s.run("nft add chain inet services " + chain + " { type nat hook " + hook + " ; }")
	s.run("nft add rule inet services " + chain + " " + rule)
}

// service translates an address and port to another, like a Service or a node port of kube-proxy.
func (s *space) service(from, to string) {
	s.t.Helper()
	addr, port, _ := strings.Cut(from, ":")
	s.nat("pre", "prerouting priority -100", "ip daddr "+addr+" tcp dport "+port+" dnat ip to "+to)
}

func TestServiceAddressesAreJudgedAfterDNAT(t *testing.T) {
	v := newVPC(t)
	a, b := v.pod(podA), v.pod(podB)
	v.router.serveTCP(":80")
	a.serveTCP(":80")
	v.host.service("172.20.0.1:80", peer+":80")     // a backend elsewhere in the VPC
	v.host.service("172.20.0.2:80", podA+":80")     // one on this node
	v.host.service("172.20.0.3:80", internet+":80") // one outside
	v.host.service("10.0.200.4:80", internet+":80") // a service address inside the VPC's range
	b.seenAs("172.20.0.1:80", podB)
	b.seenAs("172.20.0.2:80", podB)
	b.seenAs("172.20.0.3:80", nodeAddr)
	b.seenAs("10.0.200.4:80", nodeAddr)
}

// kube-proxy masquerades some connections of pods (hairpin traffic, or all if configured). The source that the kernel
// chooses must be one of the ENI by which the packet leaves.
func TestMasqueradedByOthersLeavesWithTheENIsAddress(t *testing.T) {
	v := newVPC(t)
	a, b := v.pod(podA, podA6), v.pod(podB, podB6)
	v.router.serveTCP(":80")
	v.host.nat("post", "postrouting priority 90", "ip daddr "+peer+" masquerade")
	v.host.run("nft add rule inet services post ip6 daddr " + peer6 + " masquerade")
	a.seenAs(peer+":80", nodeAddr)
	b.seenAs(peer+":80", eniAddr)
	b.seenAs(onPrem+":80", podB)
	a.seenAs("["+peer6+"]:80", nodeAddr6)
	b.seenAs("["+peer6+"]:80", eniAddr6)
	b.seenAs("["+internet6+"]:80", podB6)
}

func TestRepliesLeaveByWhereTheConnectionCameIn(t *testing.T) {
	v := newVPC(t)
	a, b := v.pod(podA), v.pod(podB)
	a.serveTCP(":80")
	b.serveTCP(":80")
	v.host.service(nodeAddr+":30080", podB+":80")
	v.host.service(nodeAddr+":30081", podA+":80")
	// In by the primary, to a pod on the secondary: the client sees the primary
	// address answer. It would not get an answer by the secondary.
	for _, client := range []string{internet, peer, onPrem} {
		for _, port := range []string{":30080", ":30081"} {
			v.router.seenFrom(client, nodeAddr+port, client)
		}
		// Straight to the pod by its own ENI, from outside too.
		v.router.seenFrom(client, podB+":80", client)
	}
}

func TestExternalSNAT(t *testing.T) {
	v := newVPC(t, func(v *vpc) { v.uplinks.ExternalSNAT = true; v.uplinks.PrimaryIPv4 = netip.Addr{} })
	a, b := v.pod(podA), v.pod(podB)
	v.router.serveTCP(":80")
	for _, p := range []*pod{a, b} {
		p.seenAs(internet+":80", p.want.IPv4.String())
	}
	for _, r := range v.inventory().Rules {
		if r.Priority == RuleOutside {
			t.Errorf("there is a rule %d with external SNAT: %+v", RuleOutside, r)
		}
	}
	v.uplinks.ExternalSNAT, v.uplinks.PrimaryIPv4 = false, netip.MustParseAddr(nodeAddr)
	v.setup()
	b.seenAs(internet+":80", nodeAddr)
}

func TestMarkShift(t *testing.T) {
	v := newVPC(t)
	b := v.pod(podB)
	v.router.serveTCP(":80")
	for _, shift := range []uint{16, 24, 0} {
		v.uplinks.MarkShift = shift
		v.setup()
		b.seenAs(peer+":80", podB)
		b.seenAs(internet+":80", nodeAddr)
		for _, r := range v.inventory().Rules {
			if r.Mask&^(0xff<<shift) != 0 {
				t.Errorf("with MarkShift %d there is %+v", shift, r)
			}
		}
	}
}

func TestBlockMetadata(t *testing.T) {
	v := newVPC(t, func(v *vpc) { v.config.BlockMetadata = true })
	v.router.serveTCP(":80")
	b := v.pod(podB, podB6)
	for _, to := range []string{"169.254.169.254:80", "[fd00:ec2::254]:80"} {
		got, err := b.dialTCP(to)
		if err == nil {
			t.Errorf("a pod reached %s as %s", to, got)
		}
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("%s is not refused but times out: %v", to, err)
		}
	}
	v.host.seenAs("169.254.169.254:80", nodeAddr)
	b.seenAs(internet+":80", nodeAddr)
	v.config.BlockMetadata = false
	v.setup()
	b.seenAs("169.254.169.254:80", nodeAddr)
}

func TestSpoofedSourcesAreDropped(t *testing.T) {
	v := newVPC(t)
	v.pod(podA, podA6) // whose addresses are forged
	b := v.pod(podB, podB6)
	got := v.host.senders()
	send := func(from, to string) {
		b.in(func() error {
			d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
			c, err := d.Dial("udp", net.JoinHostPort(to, "53"))
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			_, err = c.Write([]byte("x"))
			return err
		})
	}
	for _, c := range []struct{ own, to string }{{podB, nodeAddr}, {podB6, nodeAddr6}} {
		for _, forged := range map[string][]string{podB: {podA, podC, nodeAddr, peer, internet}, podB6: {podA6, nodeAddr6, peer6, internet6}}[c.own] {
			b.address("lo", rtnl.HostPrefix(netip.MustParseAddr(forged)).String())
			if forged != c.to { // a packet to an address of its own does not leave the pod
				send(forged, c.to)
			}
			b.must(b.nl.AddrDel(rtnl.LinkRef(1), podAddress(netip.MustParseAddr(forged))))
		}
		send(c.own, c.to)
		onlyFrom(t, got, c.own, 1)
	}
}

func TestPodsCannotAdvertiseRoutes(t *testing.T) {
	v := newVPC(t)
	b := v.pod(podB6)
	v.host.sysctl("net/ipv6/conf/"+b.want.HostIfName+"/accept_ra", "2")
	// Router advertisement, life time 1800 s (RFC 4861 section 4.2).
	ra := []byte{routerAdvertisement, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
	b.frames(unix.ETH_P_IPV6, discovery(rtnl.LinkLocal(b.links.PodMAC), netip.MustParseAddr("ff02::1"), ra))
	// A packet behind it on the same link has arrived: so had the advertisement.
	v.host.serveTCP(":81")
	b.seenAs("["+nodeAddr6+"]:81", podB6)
	routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
		return v.host.nl.RouteList(rtnl.LinkRef(b.links.HostIndex), unix.AF_INET6)
	})
	v.host.must(err)
	for _, r := range routes {
		if r.Protocol == unix.RTPROT_RA || rtnl.RouteDst(r).Bits() == 0 {
			t.Errorf("a pod gave the node a route: %s", r)
		}
	}
}
