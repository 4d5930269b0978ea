package demo

import (
	"context"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/ns"
)

// The demo's service addresses by family, outside the VPC as usual.
var serviceAddrs = [ipfamily.Number]netip.AddrPort{netip.MustParseAddrPort("172.20.0.10:7777"), netip.MustParseAddrPort("[fd00:172:20::10]:7777")}

// nodePortNumber is open in the lab's default security group.
const nodePortNumber = 30777

// service adds to every node the rule that kube-proxy would add for a service with one endpoint, and calls the service
// from pods of every ENI.
func service(ctx context.Context, s *stage) string {
	backend := s.onSecondary(s.nodes[0])
	serviceAddr := serviceAddrs[s.lead()]
	for _, n := range s.nodes {
		checkf(dnat(n.Netns, "service", serviceAddr, port(backend.Addr())), "DNAT rule on %s", n.Name)
	}
	var a asks
	for _, p := range s.everyPod() {
		if p != backend {
			a.ask(ctx, p.Node+"/"+p.Name, p.Netns(), serviceAddr, p.Addr())
		}
	}
	return a.result("%s is %s", serviceAddr.Addr(), backend.Addr())
}

// nodePort sends a request from the internet to a port of a node's primary address that leads to a pod on a secondary
// ENI. The translated reply has the primary address as its source, so it must leave through the primary interface: the
// VPC would drop it on the pod's own ENI.
func nodePort(ctx context.Context, s *stage) string {
	n := s.nodes[0]
	backend := s.onSecondary(n)
	front := netip.AddrPortFrom(s.primary(n), nodePortNumber)
	checkf(dnat(n.Netns, "nodeport", front, port(backend.Addr())), "DNAT rule on %s", n.Name)
	var a asks
	a.ask(ctx, "internet", s.lab.Fabric.InternetPath(), front, s.internet())
	a.ask(ctx, "on-premises", s.lab.Fabric.OnPremPath(), front, s.onPrem())
	return a.result("%s to a pod on ENI %d, client address kept", front, s.index(n, backend.Addr()))
}

// dnat adds a table to a namespace that redirects packets for front to back.
func dnat(path, name string, front, back netip.AddrPort) error {
	be := func(p uint16) []byte { return binaryutil.BigEndian.PutUint16(p) }
	to := nft.Exprs{
		&expr.Immediate{Register: 1, Data: back.Addr().AsSlice()}, &expr.Immediate{Register: 2, Data: be(back.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	}
	family := nftables.TableFamilyIPv4
	if front.Addr().Is6() {
		family, to[2].(*expr.NAT).Family = nftables.TableFamilyIPv6, unix.NFPROTO_IPV6
	}
	var rules []nft.Rule
	for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		rules = append(rules, nft.NewRule("", nft.DestinationIs(front.Addr()), nft.Protocol(proto), nft.Transport(2, 2), nft.Is(be(front.Port())...), to))
	}
	table := nft.Table{Family: family, Name: "demo-" + name, Chains: []nft.Chain{
		nft.Base("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, rules...),
	}}
	return ns.Do(path, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		if err := table.Replace(c); err != nil {
			return err
		}
		return c.Flush()
	})
}
