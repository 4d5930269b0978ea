package datapath

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/lab/network/dnscache"
	"github.com/berthnet/berth/lab/network/echo"
)

// Node-local addresses for pods without an address of the family.
const (
	local4, other4 = "169.254.172.5", "169.254.172.6"
	local6         = "fd00::ac:5"
)

func withNodeLocal(v *vpc) { v.uplinks.NodeLocal = prefixes("169.254.172.0/22", "fd00::ac:0/118") }

// A pod without an address of a family reaches that family with the node's address: in the VPC, outside, and in pods
// of this node. Its own family is not affected.
func TestPodsReachOtherFamilyThroughNode(t *testing.T) {
	for name, edit := range map[string]func(*vpc){
		"SNAT":             nil,
		"external SNAT":    func(v *vpc) { v.uplinks.ExternalSNAT = true },
		"IPv6 with SNAT":   func(v *vpc) { v.uplinks.PrimaryIPv6 = netip.MustParseAddr(nodeAddr6) },
		"VPC without IPv6": func(v *vpc) { v.uplinks.LocalCIDRs = prefixes("10.0.0.0/16") },
	} {
		t.Run(name, func(t *testing.T) {
			v := newVPC(t, withNodeLocal, func(v *vpc) {
				if edit != nil {
					edit(v)
				}
			})
			six, four := v.pod(local4, podB6), v.pod(podB, local6)
			dual := v.pod(podA, podA6)
			v.router.serveTCP(":80")
			dual.serveTCP(":80")
			v.host.serveTCP(":81")
			v.host.service("172.20.0.1:80", peer+":80")
			for _, to := range []string{peer, onPrem, internet, "169.254.169.254", podA, "172.20.0.1"} {
				six.seenAs(to+":80", nodeAddr)
			}
			for _, to := range []string{peer6, internet6, podA6} {
				four.seenAs("["+to+"]:80", nodeAddr6)
			}
			six.seenAs(nodeAddr+":81", local4)
			four.seenAs("["+nodeAddr6+"]:81", local6)
			four.seenAs(peer+":80", podB)
			if name != "VPC without IPv6" {
				six.seenAs("["+peer6+"]:80", podB6)
			}
			v.check(six)
			v.check(four)
		})
	}
}

// Connections to a node-local address are rejected, and packets from or to one never leave the node, also untracked
// and forged ones.
func TestNodeLocalAddressesStayOnTheNode(t *testing.T) {
	v := newVPC(t, withNodeLocal)
	six, forger, four := v.pod(local4, podB6), v.pod(other4, podA6), v.pod(podA, local6)
	six.serveTCP(":80")
	four.serveTCP(":80")
	v.router.serveTCP(":80")
	v.router.route("169.254.172.0/22", nodeAddr, "r0")
	v.router.route("fd00::ac:0/118", "fe80::a", "r0")
	v.router.cannotReach("", local4+":80")
	v.router.cannotReach("", "["+local6+"]:80")
	forger.cannotReach("", local4+":80")
	four.cannotReach("", local4+":80")
	six.cannotReach("", "["+local6+"]:80")
	seen := v.router.sniff()
	mine, theirs, outside := netip.MustParseAddr(local4), netip.MustParseAddr(other4), netip.MustParseAddr(internet)
	broken := udp(mine, outside)
	broken[27] ^= 1 // breaks the checksum, so that connection tracking calls the packet invalid
	six.frames(unix.ETH_P_IP, broken)
	forger.frames(unix.ETH_P_IP, udp(mine, outside))
	// An error about the node's own connection, which is not translated.
	v.host.in(func() error {
		c, err := net.Dial("udp", internet+":53")
		if err == nil {
			_, err = c.Write([]byte("x"))
			six.frames(unix.ETH_P_IP, ip4(unix.IPPROTO_ICMP, mine, outside, 0, nil, portUnreachable(c.LocalAddr().(*net.UDPAddr).AddrPort(), netip.AddrPortFrom(outside, 53))))
			_ = c.Close()
		}
		return err
	})
	forger.frames(unix.ETH_P_IP, udp(theirs, netip.MustParseAddr("169.254.172.77"))) // assigned to no pod
	mine6, outside6 := netip.MustParseAddr(local6), netip.MustParseAddr(internet6)
	for _, kind := range []byte{130, routerSolicitation, NeighbourAdvertisement} { // which connection tracking skips
		four.frames(unix.ETH_P_IPV6, icmp6(kind, four.links.PodMAC, mine6, outside6, outside6))
	}
	six.seenAs(internet+":80", nodeAddr) // sent after the packets above
	forger.seenAs(internet+":80", nodeAddr)
	four.seenAs("["+internet6+"]:80", nodeAddr6)
	for _, s := range seen() {
		if slices.ContainsFunc(v.uplinks.NodeLocal, func(p netip.Prefix) bool { return p.Contains(s.from) || p.Contains(s.to) }) {
			t.Errorf("a packet from %s to %s left the node: % x", s.from, s.to, s.bytes)
		}
		if s.to == outside && s.from == theirs {
			t.Errorf("a forged packet left the node: % x", s.bytes)
		}
	}
}

// portUnreachable is the ICMP error (RFC 792) with which to would answer a datagram from from.
func portUnreachable(to, from netip.AddrPort) []byte {
	inner := udp(to.Addr(), from.Addr())
	binary.BigEndian.PutUint16(inner[20:], to.Port())
	binary.BigEndian.PutUint16(inner[22:], from.Port())
	message := append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, inner...)
	none := netip.IPv4Unspecified()
	binary.BigEndian.PutUint16(message[2:], checksum(-uint32(len(message)), none, none, message))
	return message
}

// A node-local network turns on the data path of a family that is not used otherwise.
func TestNodeLocalNetworkEnablesItsFamily(t *testing.T) {
	u := VPC{LocalCIDRs: prefixes("10.0.0.0/16")}
	if u.ipv6() {
		t.Error("ipv6() = true without any IPv6 setting")
	}
	if u.NodeLocal = prefixes("fd00::ac:0/118"); !u.ipv6() {
		t.Error("ipv6() = false with an IPv6 node-local network")
	}
}

// asksCache asserts that pods and the node get answers at all addresses of a NodeLocal DNSCache, whose packets
// connection tracking skips.
func (b *bed) asksCache(pods ...*pod) {
	b.t.Helper()
	server, err := echo.Serve(b.host.path())
	b.ok(err)
	defer func() { b.ok(server.Close()) }()
	for _, backend := range dnscache.Backends {
		cache, err := dnscache.Install(b.host.path(), backend, echo.Port)
		b.ok(err)
		for _, a := range dnscache.Addrs {
			seen := map[*space]netip.Addr{b.host: a}
			for _, p := range pods {
				seen[p.space] = netip.MustParseAddr(p.want.addrLike(a.String()))
			}
			for s, as := range seen {
				for _, network := range []string{"udp", "tcp"} {
					patience, cancel := context.WithTimeout(ctx, dialTimeout)
					r, err := echo.Ask(patience, s.path(), network, netip.AddrPortFrom(a, echo.Port), netip.Addr{}, "name")
					cancel()
					if err != nil || r.You != as || r.To != a {
						b.t.Fatalf("iptables-%s: query from %s to %s over %s = %v, %v, want an answer to %s", backend, s.name, a, network, r, err, as)
					}
				}
			}
		}
		b.ok(cache.Tracked())
		b.ok(cache.Remove())
	}
}

func TestNodeLocalDNSCache(t *testing.T) {
	own := [][]string{{podA, podA6}, {podB, podB6}} // of the primary ENI, and of the secondary
	for name, c := range map[string]struct {
		edit func(*vpc)
		pods [][]string
	}{
		"SNAT":              {func(*vpc) {}, own},
		"SNAT for IPv6 too": {func(v *vpc) { v.uplinks.PrimaryIPv6 = netip.MustParseAddr(nodeAddr6) }, own},
		"external SNAT":     {func(v *vpc) { v.uplinks.ExternalSNAT = true }, own},
		"other mark bits":   {func(v *vpc) { v.uplinks.MarkShift = 16 }, own},
		"node-local addresses": {func(v *vpc) {
			withNodeLocal(v)
			v.uplinks.PrimaryIPv6 = netip.MustParseAddr(nodeAddr6)
		}, [][]string{{podB, local6}, {local4, podB6}}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVPC(t, c.edit)
			var pods []*pod
			for _, addrs := range c.pods {
				pods = append(pods, v.pod(addrs...))
			}
			v.asksCache(pods...)
		})
	}
	t.Run("address pool", func(t *testing.T) {
		r := newRack(t)
		r.set(block("a", block4, block6))
		r.asksCache(r.pod("10.2.0.33", "fd02::21"))
	})
}
