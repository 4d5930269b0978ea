package datapath

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// patience is the time limit for packets that should arrive immediately.
const patience = 20 * time.Second

// talk is an open TCP connection with both of its ends.
type talk struct {
	name string
	ends [2]net.Conn
}

// talks are the connections of a test.
type talks struct {
	t     testing.TB
	taken map[*space]chan net.Conn
	open  []talk
}

func newTalks(t testing.TB) *talks { return &talks{t: t, taken: map[*space]chan net.Conn{}} }

// serve accepts connections to port 90.
func (l *talks) serve(s *space) {
	taken := make(chan net.Conn, 1)
	l.taken[s] = taken
	var listener net.Listener
	s.in(func() (err error) {
		listener, err = net.Listen("tcp", ":90")
		return err
	})
	l.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			taken <- c
		}
	}()
}

// begin opens a connection between two namespaces. Its server must see it come from the address seenAs.
func (l *talks) begin(when string, from *space, source, to string, server *space, seenAs string) {
	l.t.Helper()
	d := net.Dialer{Timeout: dialTimeout}
	if source != "" {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(source), 0))
	}
	t := talk{name: fmt.Sprintf("%s, %s to %s", when, from.name, to)}
	from.in(func() (err error) {
		t.ends[0], err = d.Dial("tcp", to)
		return err
	})
	t.ends[1] = <-l.taken[server]
	for _, c := range t.ends {
		l.t.Cleanup(func() { _ = c.Close() })
	}
	if got := t.ends[1].RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String(); got != seenAs {
		l.t.Errorf("%s: source address at the server = %s, want %s", t.name, got, seenAs)
	}
	l.open = append(l.open, t)
}

// goOn asserts that all connections still carry data both ways.
func (l *talks) goOn(when string) {
	l.t.Helper()
	for _, t := range l.open {
		for i, from := range t.ends {
			to := t.ends[1-i]
			_ = to.SetReadDeadline(time.Now().Add(patience))
			_, err := fmt.Fprintln(from, when)
			got := ""
			if err == nil {
				got, err = bufio.NewReader(to).ReadString('\n')
			}
			if err != nil {
				l.t.Errorf("%s: connection of %s from end %d: received %q, error %v", when, t.name, i, got, err)
			}
		}
	}
}

// Settings affect new connections only. Open connections keep their ENI and addresses when settings change, and while
// Berth's table is missing.
func TestConnectionsSurviveSettingsChanges(t *testing.T) {
	v := newVPC(t)
	a, b, branch := v.pod(podA, podA6), v.pod(podB, podB6), v.branchPod()
	pods := []Pod{a.want, b.want, branch.want}
	l := newTalks(t)
	for _, s := range []*space{v.router, a.space, b.space} {
		l.serve(s)
	}
	v.host.service(nodeAddr+":30080", podB+":90")
	v.host.run("nft add rule inet services pre ip daddr " + nodeAddr + " tcp dport 30081 dnat ip to " + podA + ":90")
	v.host.run("nft add rule inet services pre ip6 daddr " + nodeAddr6 + " tcp dport 30080 dnat ip6 to [" + podB6 + "]:90")
	v.host.run("nft add rule inet services pre ip daddr 172.20.0.1 dnat ip to " + peer)
	v.host.nat("post", "postrouting priority 90", "ip saddr "+podB+" ip daddr "+peer+" tcp dport 90 ct original ip daddr 172.20.0.1 masquerade")
	v.host.run("nft add rule inet services pre ip daddr 172.20.0.2 dnat ip to " + peer)
	for _, pod := range []string{podA, podB, branchPod} { // another port, as of two connections that would be the same behind DNAT
		v.host.run("nft add rule inet services post ip saddr " + pod + " tcp dport 90 ct original ip daddr 172.20.0.2 snat ip to " + pod + ":20000-29999")
	}

	excluded := prefixes("192.168.0.0/16", "203.0.113.0/24", "2001:db8:f::/48")
	external := netip.MustParseAddr(nodeAddr6)
	for _, c := range []struct {
		name string
		edit func(u *VPC)
		out  bool // destinations outside of the VPC see the node's address
		out6 bool
		on   bool // destinations on-premises do too
	}{
		{name: "at first", edit: func(*VPC) {}, out: true},
		// The notes of earlier connections are not found, as after an upgrade from a release without notes.
		{name: "other mark bits", edit: func(u *VPC) { u.MarkShift = 16 }, out: true},
		{name: "all excluded", edit: func(u *VPC) { u.ExcludeCIDRs = excluded }},
		{name: "no exclusions", edit: func(u *VPC) { u.ExcludeCIDRs, u.PrimaryIPv6 = nil, external }, out: true, out6: true, on: true},
		{name: "external SNAT", edit: func(u *VPC) { u.ExternalSNAT = true }},
		{name: "SNAT enabled again", edit: func(u *VPC) { u.ExternalSNAT = false }, out: true, out6: true, on: true},
		{name: "excluded again", edit: func(u *VPC) { u.ExcludeCIDRs, u.PrimaryIPv6 = excluded, netip.Addr{} }},
	} {
		c.edit(&v.uplinks)
		v.setup()
		l.goOn(c.name)
		for _, p := range []*pod{a, b} {
			own, own6 := p.want.IPv4.String(), p.want.IPv6.String()
			seen := func(node bool, as, own string) string {
				if node {
					return as
				}
				return own
			}
			l.begin(c.name, p.space, "", internet+":90", v.router, seen(c.out, nodeAddr, own))
			l.begin(c.name, p.space, "", onPrem+":90", v.router, seen(c.on, nodeAddr, own))
			l.begin(c.name, p.space, "", peer+":90", v.router, own)
			l.begin(c.name, p.space, "", "["+internet6+"]:90", v.router, seen(c.out6, nodeAddr6, own6))
			l.begin(c.name, v.router, internet, own+":90", p.space, internet)
		}
		l.begin(c.name, b.space, "", "172.20.0.1:90", v.router, eniAddr)
		for _, p := range []*pod{a, b, branch} {
			l.begin(c.name, p.space, "", "172.20.0.2:90", v.router, p.want.IPv4.String())
		}
		l.begin(c.name, v.router, internet, nodeAddr+":30080", b.space, internet)
		l.begin(c.name, v.router, peer, nodeAddr+":30081", a.space, peer)
		l.begin(c.name, v.router, internet6, "["+nodeAddr6+"]:30080", b.space, internet6)
		v.host.run("nft delete table inet berth")
		l.begin("without the table", v.router, internet, nodeAddr+":30080", b.space, internet)
		l.begin("without the table", v.router, internet6, "["+nodeAddr6+"]:30080", b.space, internet6)
		v.repair(Desired{Config: v.settings(), Supply: UplinkList{v.uplink()}, Pods: pods})
		l.goOn(c.name + ", after the table was restored")
	}
	again := v.host.open()
	v.uplinks.ExcludeCIDRs = nil
	v.ok(again.Setup(ctx, v.settings()))
	l.goOn("another daemon")
}

const branchPod = "10.0.0.200"

// branchPod imitates the routing of a pod with a branch in mode standard: its packets leave by a link of its own.
func (v *vpc) branchPod() *pod {
	v.t.Helper()
	wire(v.host, "eth2", v.router, "r2")
	v.router.sysctl("net/ipv4/conf/r2/rp_filter", "1")
	r, h := v.router, v.host
	r.must(r.nl.NeighSet(rtnl.PermanentNeighbour(r.link("r2").Attrs().Index, netip.MustParseAddr(branchPod), h.link("eth2").Attrs().HardwareAddr)))
	h.must(h.nl.NeighSet(rtnl.PermanentNeighbour(h.link("eth2").Attrs().Index, netip.MustParseAddr("10.0.0.1"), r.link("r2").Attrs().HardwareAddr)))
	r.route(branchPod+"/32", "", "r2")
	p := v.pod(branchPod)
	v.host.run("ip link set " + p.want.HostIfName + fmt.Sprintf(" group %d", uint32(rtnl.PortGroup)))
	v.host.run("ip route add default via 10.0.0.1 dev eth2 onlink table 19100")
	v.host.run(fmt.Sprintf("ip rule add priority %d iif %s lookup 19100", RuleBranchStandard, p.want.HostIfName))
	return p
}

// Berth removes unanswered connections that started while the table was missing, as they would never be translated.
// Answered ones continue.
func TestUntranslatedFlowsAreForgotten(t *testing.T) {
	v := newVPC(t, withNodeLocal)
	a, b, six := v.pod(podA), v.pod(podB), v.pod(local4, podB6)
	v.host.nat("post", "postrouting priority 110", "meta l4proto tcp masquerade") // a chain of other software that enables connection tracking
	server := v.router.packets(internet + ":53")
	arrives := func(text, from string) net.Addr {
		t.Helper()
		_ = server.SetReadDeadline(time.Now().Add(patience))
		buf := make([]byte, 64)
		n, sender, err := server.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%q from %s did not arrive", text, from)
		}
		v.ok(err)
		if got := sender.(*net.UDPAddr).AddrPort().Addr().Unmap().String(); got != from || string(buf[:n]) != text {
			t.Errorf("%q came from %s, want %q from %s", buf[:n], got, text, from)
		}
		return sender
	}
	send := func(c net.Conn, text string) {
		t.Helper()
		_, err := c.Write([]byte(text))
		v.ok(err)
	}
	v.host.run("nft delete table inet berth")
	var flows []net.Conn
	for _, p := range []*pod{a, b, six} {
		p.in(func() error {
			c, err := net.Dial("udp", internet+":53")
			flows = append(flows, c)
			return err
		})
	}
	send(flows[0], "first")
	_, err := server.WriteTo([]byte("answer"), arrives("first", podA))
	v.ok(err)
	_ = flows[0].SetReadDeadline(time.Now().Add(patience))
	_, err = flows[0].Read(make([]byte, 64))
	v.ok(err)
	send(flows[1], "lost") // the VPC drops it, like the packet from the node-local address
	send(flows[2], "lost")
	v.repair(Desired{Config: v.settings(), Supply: UplinkList{v.uplink()}, Pods: []Pod{a.want, b.want, six.want}})
	for i, from := range []string{podA, nodeAddr, nodeAddr} {
		send(flows[i], "again")
		arrives("again", from)
	}
}

// translates depends on the settings.
func TestTranslates(t *testing.T) {
	u := VPC{PrimaryIPv4: netip.MustParseAddr(nodeAddr), LocalCIDRs: prefixes("10.0.0.0/16", "2001:db8::/48"), ExcludeCIDRs: prefixes("192.168.0.0/16"),
		NodeLocal: prefixes("169.254.172.0/22")}
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{podA, internet, true}, {podA, peer, false}, {podA, onPrem, false}, {podA6, internet6, false}, {local4, peer, true},
	} {
		if got := u.translates(netip.MustParseAddr(c.from), netip.MustParseAddr(c.to)); got != c.want {
			t.Errorf("translates(%s, %s) = %v", c.from, c.to, got)
		}
	}
}

// packets listens on a UDP address of the namespace.
func (s *space) packets(addr string) (c net.PacketConn) {
	s.t.Helper()
	s.must(rtnl.InNetns(s.handle, func() (err error) {
		c, err = net.ListenPacket("udp", addr)
		return err
	}))
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}
