package egressgateway

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// Reason is the reason for which packets were dropped.
type Reason string

// Reasons for dropping packets.
const (
	NotClient    Reason = "not-a-client"  // to the tunnels' port from an address that is not a client's, or with another inner source
	Destination  Reason = "destination"   // from a client to an address outside of the Egress's destinations
	Invalid      Reason = "invalid"       // part of no known connection, and not the first of a new one
	NotForwarded Reason = "not-forwarded" // between clients, to the gateway itself, or from outside and not a reply
)

// Reasons are all reasons.
var Reasons = []Reason{NotClient, Destination, Invalid, NotForwarded}

// Directions of translated packets.
const (
	Out = "out" // from clients
	In  = "in"  // to clients
)

func counterName(what string, of int) string { return fmt.Sprintf("%s-%d", what, tunnel.Digit(of)) }

func table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: tunnel.Table}
}

// ruleset has the table's chains. Sets and counters are kept when it changes.
func (s Setup) ruleset() (nft.Table, error) {
	t := nft.Table{Family: nftables.TableFamilyINet, Name: tunnel.Table, Chains: s.chains()}
	var err error
	t.Tag, err = t.Fingerprint()
	return t, err
}

// clientSet has each client's address twice: as the outer and as the inner source.
func clientSet(of int) *nftables.Set {
	kind := nft.AddressType(of)
	return &nftables.Set{
		Table: table(), Name: fmt.Sprintf("clients-%d", tunnel.Digit(of)), Concatenation: true, KeyType: nftables.MustConcatSetType(kind, kind),
	}
}

func clientElement(a netip.Addr, uid string) nftables.SetElement {
	return nftables.SetElement{Key: append(a.AsSlice(), a.AsSlice()...), Comment: uid}
}

func destinationSet(of int) *nftables.Set {
	kind := nft.AddressType(of)
	return &nftables.Set{Table: table(), Name: fmt.Sprintf("destinations-%d", tunnel.Digit(of)), Interval: true, KeyType: kind}
}

// linkLocal must not be forwarded (RFC 3927, section 2.6.2); clouds serve a node's credentials there. The kernel
// itself does not forward IPv6 link-local addresses.
var linkLocal = netip.MustParsePrefix("169.254.0.0/16")

// chains are the table's chains. Packets that do not have the gateway's own address of the family are translated. A
// family without an own address has no tunnel.
func (s Setup) chains() []nft.Chain {
	receive := split{base: nft.Base("receive", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)}
	send := nft.Base("send", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityRaw)
	refuse := nft.Base("refuse", nftables.ChainTypeRoute, nftables.ChainHookOutput, nftables.ChainPriorityMangle)
	input := nft.Base("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
	forward := split{base: nft.Base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)}
	translate := nft.Base("translate", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	// Most packets match this first rule, which saves them the rules of both families.
	receive.base.Rules = append(receive.base.Rules, nft.NewRule("TCP is not a tunnel packet", nft.Protocol(unix.IPPROTO_TCP), nft.Accept()))
	refuse.Rules = append(refuse.Rules, nft.NewRule("tunnel packets", nft.UDPTo(s.Port), nft.Accept()))
	chains := []nft.Chain{}
	for _, of := range tunnel.Families {
		fou, from, to := s.fou(of), fromClients(of), toClients(of)
		chains = append(chains, fou, from, to)
		receive.of(of,
			nft.NewRule("to the tunnel port", notFromTunnel(of), nft.UDPTo(s.Port), nft.Destination(of), s.isOwn(of), nft.GoTo(fou.Name)),
			nft.NewRule("tunnel packet inside a tunnel", fromTunnel(of), nft.UDPTo(s.Port), nft.Destination(of), s.isOwn(of), nft.CountAs(counterName(string(NotForwarded), of)), nft.Drop()),
			nft.NewRule("tunnel packet without UDP", nft.Protocol(unix.IPPROTO_IPIP), nft.CountAs(counterName(string(NotClient), of)), nft.Drop()),
			nft.NewRule("tunnel packet without UDP", nft.Protocol(unix.IPPROTO_IPV6), nft.CountAs(counterName(string(NotClient), of)), nft.Drop()),
		)
		send.Rules = append(send.Rules, nft.NewRule("tunnel packets: bypass connection tracking", nft.Family(of), notToTunnel(of), nft.UDPTo(s.Port), nft.Notrack()))
		refuse.Rules = append(refuse.Rules, s.refusals(of)...)
		input.Rules = append(input.Rules, nft.NewRule("from a client to the gateway itself", fromTunnel(of), nft.CountAs(counterName(string(NotForwarded), of)), nft.Drop()))
		forward.of(of,
			nft.NewRule("invalid connection state", nft.CtState(expr.CtStateBitINVALID), nft.CountAs(counterName(string(Invalid), of)), nft.Drop()),
			nft.NewRule("from clients", fromTunnel(of), nft.GoTo(from.Name)),
			nft.NewRule("to clients", toTunnel(of), nft.GoTo(to.Name)),
			nft.NewRule("neither from nor to a client", nft.CountAs(counterName(string(NotForwarded), of)), nft.Drop()),
		)
		if own := s.own(of); own.IsValid() {
			translate.Rules = append(translate.Rules, nft.NewRule("source is not the gateway's address", nft.Family(of), notToTunnel(of), notFrom(own), nft.Masquerade()))
		}
	}
	chains = append(chains, receive.families...)
	chains = append(chains, forward.families...)
	return append(chains, receive.base, send, refuse, input, forward.base, translate)
}

// split is a chain with a chain for each family, so that packets skip the rules of the other family.
type split struct {
	base     nft.Chain
	families []nft.Chain
}

// of adds rules of a family.
func (c *split) of(of int, rules ...nft.Rule) {
	own := nft.Regular(fmt.Sprintf("%s-%d", c.base.Name, tunnel.Digit(of)), rules...)
	c.families = append(c.families, own)
	c.base.Rules = append(c.base.Rules, nft.NewRule(fmt.Sprintf("IPv%d", tunnel.Digit(of)), nft.Family(of), nft.GoTo(own.Name)))
}

// refusals route rejections of the gateway to clients through the tunnel, as replies: resets, which have the source
// of a host outside, and ICMP errors about packets that came out of a tunnel.
func (s Setup) refusals(of int) []nft.Rule {
	own := s.own(of)
	if !own.IsValid() {
		return nil
	}
	rules := []nft.Rule{nft.NewRule("TCP resets to clients", nft.Family(of), nft.Protocol(unix.IPPROTO_TCP), notFrom(own), nft.SetWholeMark(returnMark))}
	for _, kind := range icmpErrors[of] {
		rules = append(rules, nft.NewRule("ICMP errors to clients", nft.Family(of), icmp(of, kind), aboutDestination(of), nft.IsNot(own.AsSlice()...), nft.SetWholeMark(returnMark)))
	}
	return rules
}

// isOwn compares the loaded address with the gateway's own address, or without one in the family with the unspecified
// address, which never matches.
func (s Setup) isOwn(of int) nft.Exprs {
	if own := s.own(of); own.IsValid() {
		return nft.Is(own.AsSlice()...)
	}
	_, length := nft.SourceAt(of)
	return nft.Is(make([]byte, length)...)
}

// fou accepts packets from a client whose outer and inner source is its own address.
func (s Setup) fou(of int) nft.Chain {
	return nft.Regular(fmt.Sprintf("fou-%d", tunnel.Digit(of)),
		nft.NewRule("outer and inner source are the same client", plainHeaders(of), outerAndInner(of), nft.In(clientSet(of)), nft.Notrack(), nft.Accept()),
		nft.NewRule("not a client", nft.CountAs(counterName(string(NotClient), of)), nft.Drop()),
	)
}

func fromClients(of int) nft.Chain {
	c := nft.Regular(fmt.Sprintf("from-clients-%d", tunnel.Digit(of)))
	c.Rules = append(c.Rules,
		nft.NewRule("from a client to a client", toTunnel(of), nft.CountAs(counterName(string(NotForwarded), of)), nft.Drop()),
		nft.NewRule("existing connection", nft.CtState(answered), nft.CountAs(counterName(Out, of)), nft.Accept()),
	)
	if of == rtnl.FamilyOf(linkLocal.Addr()) {
		c.Rules = append(c.Rules, nft.NewRule("to a link-local address", nft.Destination(of), nft.Inside(linkLocal), nft.CountAs(counterName(string(Destination), of)), nft.Drop()))
	}
	c.Rules = append(c.Rules,
		nft.NewRule("TCP without SYN in an unknown connection, which may be another pod's", nft.Protocol(unix.IPPROTO_TCP), notBeginning(), nft.CountAs(counterName(string(Invalid), of)), nft.Reset()),
		nft.NewRule("to a destination of the Egress", nft.Destination(of), nft.In(destinationSet(of)), nft.CountAs(counterName(Out, of)), nft.Accept()),
		nft.NewRule("to any other destination", nft.CountAs(counterName(string(Destination), of)), nft.Drop()),
	)
	return c
}

func toClients(of int) nft.Chain {
	return nft.Regular(fmt.Sprintf("to-clients-%d", tunnel.Digit(of)),
		nft.NewRule("replies", nft.CtState(answered), nft.CountAs(counterName(In, of)), nft.Accept()),
		nft.NewRule("new connections to a client", nft.CountAs(counterName(string(NotForwarded), of)), nft.Drop()),
	)
}

// counters are the names of the table's counters.
func counters() []string {
	var names []string
	for _, of := range tunnel.Families {
		names = append(names, counterName(Out, of), counterName(In, of))
		for _, r := range Reasons {
			names = append(names, counterName(string(r), of))
		}
	}
	return names
}

// The tunnel device of a family: iifname, oifname.
func fromTunnel(family int) nft.Exprs    { return byTunnel(expr.MetaKeyIIFNAME, nft.Is, family) }
func notFromTunnel(family int) nft.Exprs { return byTunnel(expr.MetaKeyIIFNAME, nft.IsNot, family) }
func toTunnel(family int) nft.Exprs      { return byTunnel(expr.MetaKeyOIFNAME, nft.Is, family) }
func notToTunnel(family int) nft.Exprs   { return byTunnel(expr.MetaKeyOIFNAME, nft.IsNot, family) }

func byTunnel(direction expr.MetaKey, compare func(...byte) nft.Exprs, family int) nft.Exprs {
	return nft.Join(nft.Meta(direction), compare(nft.LinkName(tunnel.LinkOf(family))...))
}

// notFrom: ip saddr !=, ip6 saddr !=.
func notFrom(a netip.Addr) nft.Exprs {
	return nft.Join(nft.Source(rtnl.FamilyOf(a)), nft.IsNot(a.AsSlice()...))
}

// udpHeader is the length of a UDP header in bytes (RFC 768).
const udpHeader = 8

// outerAndInner loads the outer and the inner source of a tunnel's packet. The inner packet follows the UDP header.
func outerAndInner(family int) nft.Exprs {
	offset, length := nft.SourceAt(family)
	return nft.Join(nft.Source(family), nft.TransportBeside(family, udpHeader+offset, length))
}

// plainHeaders matches packets whose outer and inner header are of the family's version and, with IPv4, have no
// options (RFC 791: version 4, 5 words).
func plainHeaders(family int) nft.Exprs {
	if family == unix.AF_INET6 {
		return nft.Join(nft.Transport(udpHeader, 1), nft.Mask(0xf0), nft.Is(0x60))
	}
	return nft.Join(nft.Network(0, 1), nft.Is(0x45), nft.Transport(udpHeader, 1), nft.Is(0x45))
}

const answered = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED

// notBeginning: tcp flags & (fin | syn | rst | ack) != syn (RFC 9293, section 3.1).
func notBeginning() nft.Exprs {
	const flags, fin, syn, rst, ack = 13, 0x01, 0x02, 0x04, 0x10
	return nft.Join(nft.Transport(flags, 1), nft.Mask(fin|syn|rst|ack), nft.IsNot(syn))
}

// icmpErrors are the types of ICMP messages that quote a packet, by family (RFC 792: destination unreachable, time
// exceeded, parameter problem; RFC 4443: these, and packet too big).
var icmpErrors = map[int][]byte{unix.AF_INET: {3, 11, 12}, unix.AF_INET6: {1, 2, 3, 4}}

// icmp: icmp type, icmpv6 type.
func icmp(family int, kind byte) nft.Exprs {
	if family == unix.AF_INET6 {
		return nft.Join(nft.ICMPv6Type(), nft.Is(kind))
	}
	return nft.Join(nft.ICMPType(), nft.Is(kind))
}

// aboutDestination loads the destination of the packet that an ICMP error quotes after 8 bytes.
func aboutDestination(family int) nft.Exprs {
	offset, length := nft.SourceAt(family)
	return nft.Transport(8+offset+length, length)
}
