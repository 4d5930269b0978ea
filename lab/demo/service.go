package demo

import (
	"context"
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/network/echo"
)

// The service that the demo invents, outside the VPC as service addresses are, by family.
var serviceAddrs = [ipfamily.Number]netip.AddrPort{netip.MustParseAddrPort("172.20.0.10:7777"), netip.MustParseAddrPort("[fd00:172:20::10]:7777")}

// nodePortNumber is open in the lab's default security group.
const nodePortNumber = 30777

// service gives every node the rule that kube-proxy would for a service with
// one endpoint, and asks the service from pods of every ENI.
func service(ctx context.Context, s *stage) string {
	backend := s.onSecondary(s.nodes[0])
	serviceAddr, to := serviceAddrs[s.lead()], netip.AddrPortFrom(backend.Addr(), echo.Port)
	for _, n := range s.nodes {
		checkf(dnat(n.Netns, "service", serviceAddr, to), "DNAT rule on %s", n.Name)
	}
	var a asks
	for _, n := range s.nodes {
		for _, p := range n.Pods() {
			if p != backend {
				a.ask(ctx, n.Name+"/"+p.Name, p.Netns(), serviceAddr, p.Addr())
			}
		}
	}
	return a.result("%s is %s", serviceAddr.Addr(), backend.Addr())
}

// nodePort asks from the internet for a port of a node's primary address that
// leads to a pod on a secondary ENI. The answer has the primary address as its
// source once translated back, so it must leave by the primary interface: by
// the pod's own ENI the VPC would drop it.
func nodePort(ctx context.Context, s *stage) string {
	n := s.nodes[0]
	backend := s.onSecondary(n)
	front := netip.AddrPortFrom(s.primary(n), nodePortNumber)
	checkf(dnat(n.Netns, "nodeport", front, netip.AddrPortFrom(backend.Addr(), echo.Port)), "DNAT rule on %s", n.Name)
	var a asks
	a.ask(ctx, "internet", s.lab.Fabric.InternetPath(), front, s.internet())
	a.ask(ctx, "on-premises", s.lab.Fabric.OnPremPath(), front, s.onPrem())
	eni := s.index(n, backend.Addr())
	return a.result("%s to a pod on ENI %d, client address kept", front, eni)
}

// dnat adds a table of its own to a namespace that sends what is for front to back.
func dnat(path, name string, front, back netip.AddrPort) error {
	return ns.Do(path, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		family := nftables.TableFamilyIPv4
		if front.Addr().Is6() {
			family = nftables.TableFamilyIPv6
		}
		t := c.AddTable(&nftables.Table{Family: family, Name: "demo-" + name})
		chain := c.AddChain(&nftables.Chain{
			Table: t, Name: "prerouting", Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
		})
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: dnatExprs(proto, front, back)})
		}
		return c.Flush()
	})
}

// {ip|ip6} daddr FRONT meta l4proto PROTO th dport PORT dnat to BACK
func dnatExprs(proto byte, front, back netip.AddrPort) []expr.Any {
	be := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	destination, family := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}, uint32(unix.NFPROTO_IPV4)
	if front.Addr().Is6() {
		destination.Offset, destination.Len, family = 24, 16, unix.NFPROTO_IPV6
	}
	return []expr.Any{
		destination,
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: front.Addr().AsSlice()},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: be(front.Port())},
		&expr.Immediate{Register: 1, Data: back.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: be(back.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: 1, RegProtoMin: 2},
	}
}
