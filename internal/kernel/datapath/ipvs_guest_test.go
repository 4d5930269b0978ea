//go:build guest

package datapath

import (
	"encoding/binary"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Commands and attributes of IPVS (linux/ip_vs.h).
const (
	ipvsNewService, ipvsNewDest = 1, 5
	ipvsService, ipvsDest       = 1, 2
)

// virtualServer makes IPVS forward an address and port to another, as kube-proxy does: the address is the node's.
func (s *space) virtualServer(from, to string) {
	s.t.Helper()
	vip, backend := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	service := nl.NewRtAttr(ipvsService|unix.NLA_F_NESTED, nil)
	addr := func(of *nl.RtAttr, kind int, a netip.Addr) {
		of.AddRtAttr(kind, append(a.AsSlice(), make([]byte, 16-len(a.AsSlice()))...))
	}
	port := func(of *nl.RtAttr, kind int, p uint16) { of.AddRtAttr(kind, binary.BigEndian.AppendUint16(nil, p)) }
	service.AddRtAttr(1, nl.Uint16Attr(uint16(rtnl.FamilyOf(vip.Addr()))))
	service.AddRtAttr(2, nl.Uint16Attr(unix.IPPROTO_TCP))
	addr(service, 3, vip.Addr())
	port(service, 4, vip.Port())
	service.AddRtAttr(6, nl.ZeroTerminated("rr"))
	service.AddRtAttr(7, append(nl.Uint32Attr(0), nl.Uint32Attr(0xffffffff)...))
	service.AddRtAttr(8, nl.Uint32Attr(0))
	mask := uint32(0xffffffff)
	if vip.Addr().Is6() {
		mask = 128
	}
	service.AddRtAttr(9, nl.Uint32Attr(mask))
	dest := nl.NewRtAttr(ipvsDest|unix.NLA_F_NESTED, nil)
	addr(dest, 1, backend.Addr())
	port(dest, 2, backend.Port())
	for kind, value := range map[int]uint32{3: 0, 4: 1, 5: 0, 6: 0} { // masquerading, weight 1, no thresholds
		dest.AddRtAttr(kind, nl.Uint32Attr(value))
	}
	dest.AddRtAttr(11, nl.Uint16Attr(uint16(rtnl.FamilyOf(backend.Addr()))))
	s.in(func() error {
		family, err := s.nl.GenlFamilyGet("IPVS")
		if err != nil {
			return err
		}
		for _, c := range []struct {
			command uint8
			parts   []*nl.RtAttr
		}{{ipvsNewService, []*nl.RtAttr{service}}, {ipvsNewDest, []*nl.RtAttr{service, dest}}} {
			req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
			req.AddData(&nl.Genlmsg{Command: c.command, Version: 1})
			for _, p := range c.parts {
				req.AddData(p)
			}
			if _, err := req.Execute(unix.NETLINK_GENERIC, 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// With kube-proxy in mode IPVS a Service's address is the node's own, and is replaced after routing. Packets of pods
// have the same source as without it, and leave by their ENI.
func TestServicesByIPVS(t *testing.T) {
	if out, err := exec.Command("modprobe", "-a", "ip_vs", "ip_vs_rr").CombinedOutput(); err != nil {
		t.Fatalf("modprobe ip_vs: %v: %s", err, out)
	}
	const vips, vips6 = "172.20.0.", "fd00:172::"
	v := newVPC(t, withNodeLocal, func(v *vpc) { v.config.BlockMetadata = true })
	v.host.sysctl("net/ipv4/vs/conntrack", "1")
	a, b, six, branch := v.pod(podA, podA6), v.pod(podB, podB6), v.pod(local4, "2001:db8::1:0:0:6"), v.branchPod()
	for _, s := range []*space{v.router, a.space, b.space, six.space} {
		s.serveTCP(":80")
	}
	v.host.serveTCP(":81")
	for service, backend := range map[string]string{
		vips + "1:80": peer + ":80", vips + "2:80": podA + ":80", vips + "3:80": internet + ":80", "10.0.200.4:80": internet + ":80",
		vips + "5:80": nodeAddr + ":81", vips + "6:80": onPrem + ":80", vips + "7:80": internet + ":80",
		"[" + vips6 + "1]:80": "[" + peer6 + "]:80", "[" + vips6 + "2]:80": "[" + podA6 + "]:80", "[" + vips6 + "3]:80": "[" + internet6 + "]:80",
		"[" + vips6 + "4]:80": "[fd00:ec2::254]:80",
		nodeAddr + ":30080":   podB + ":80", nodeAddr + ":30081": podA + ":80", eniAddr + ":30080": podB + ":80", eniAddr + ":30081": podA + ":80",
		"[" + nodeAddr6 + "]:30080": "[" + podB6 + "]:80", "[" + eniAddr6 + "]:30081": "[" + podA6 + "]:80",
	} {
		v.host.virtualServer(service, backend)
		if vip := netip.MustParseAddrPort(service).Addr(); !netip.MustParsePrefix("10.0.0.0/24").Contains(vip) && vip.String() != nodeAddr6 && vip.String() != eniAddr6 {
			v.host.address("lo", rtnl.HostPrefix(vip).String())
		}
	}
	for _, external := range []bool{false, true} {
		v.uplinks.ExternalSNAT = external
		v.setup()
		for _, p := range []*pod{a, b} {
			own, own6 := p.want.IPv4.String(), p.want.IPv6.String()
			outside := nodeAddr
			if external {
				outside = own
			}
			p.seenAs(vips+"1:80", own)
			if p != a {
				p.seenAs(vips+"2:80", own)
				p.seenAs("["+vips6+"2]:80", own6)
			}
			p.seenAs(vips+"3:80", outside)
			p.seenAs("10.0.200.4:80", outside)
			p.seenAs(vips+"5:80", own)
			p.seenAs(vips+"6:80", own)
			p.seenAs("["+vips6+"1]:80", own6)
			p.seenAs("["+vips6+"3]:80", own6)
		}
		six.seenAs(vips+"1:80", nodeAddr)
		six.seenAs(vips+"3:80", nodeAddr)
		for _, client := range []string{internet, peer} {
			for _, to := range []string{nodeAddr + ":30080", nodeAddr + ":30081", eniAddr + ":30080", eniAddr + ":30081"} {
				v.router.seenFrom(client, to, client)
			}
		}
		for _, to := range []string{"[" + nodeAddr6 + "]:30080", "[" + eniAddr6 + "]:30081"} {
			v.router.seenFrom(internet6, to, internet6)
		}
	}
	v.uplinks.ExternalSNAT = false
	v.setup()
	for _, service := range []string{vips + "1:80", vips + "3:80", "10.0.200.4:80"} { // behind IPVS nothing tells the branch
		branch.seenAs(service, nodeAddr)
	}
	b.cannotReach("", "["+vips6+"4]:80") // the metadata service

	// Packets that connection tracking does not know do not leave untranslated.
	v.host.run("nft add table inet exempt")
	v.host.run("nft add chain inet exempt raw { type filter hook prerouting priority -300 ; }")
	v.host.run("nft add rule inet exempt raw ip daddr " + vips + "7 notrack")
	seen := v.router.sniff()
	b.cannotReach("", vips+"7:80")
	b.seenAs(vips+"3:80", nodeAddr)
	for _, s := range seen() {
		if s.from.String() == podB && s.to.String() == internet {
			t.Errorf("a packet left untranslated: % x", s.bytes)
		}
	}
}
