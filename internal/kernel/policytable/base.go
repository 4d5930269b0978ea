package policytable

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/plug"
)

// base is the input of the chains that do not depend on policies.
type base struct {
	log     bool // denied connections
	tunnels bool // a pod has egress tunnels
	// inside is set for the table in a pod's network namespace. first and rest are then the chains of its policies by way,
	// as in judged.
	inside      bool
	first, rest [len(ways)]string
}

// chains returns the chains of a table. The node's table has:
//
//	from-pods, to-pods            packets that the node forwards
//	to-node                       packets from pods to the node itself; after IPVS, which takes packets for Services there
//	ipvs-from-pods, ipvs-to-pods  packets that IPVS forwards. Packets from programs of the node are not judged: a
//	                              node can always reach its pods
//	judge-egress, judge-ingress   the first packet of a connection
//	judge-tunnelled               each packet in an egress tunnel, because only the pod tracks its connections
//	pass-egress, pass-ingress …   connections that a rule of the Admin tier passes to the next tier
//
// A pod's table has, instead of the first five:
//
//	from-pod, to-pod              packets that the pod sends and receives on the interfaces of the set links
func (b base) chains() []nft.Chain {
	at := func(name string, hook *nftables.ChainHook, priority nftables.ChainPriority, w way, first ...nft.Rule) nft.Chain {
		return nft.Base(name, nftables.ChainTypeFilter, hook, &priority, append(first, nft.NewRule("judge", nft.GoTo("judge-"+w.name())))...)
	}
	local := nft.NewRule("the node's own", nft.SourceIsLocal(), nft.Accept())
	chains := []nft.Chain{
		at("from-pods", nftables.ChainHookForward, 0, egress),
		at("to-pods", nftables.ChainHookForward, 1, ingress),
		at("to-node", nftables.ChainHookInput, behindIPVS, egress, neighbourDiscovery()),
		at("ipvs-from-pods", nftables.ChainHookOutput, 0, egress),
		at("ipvs-to-pods", nftables.ChainHookOutput, 1, ingress, local),
	}
	if b.inside {
		link := func(key expr.MetaKey) nft.Rule {
			return nft.NewRule("another interface", nft.Meta(key), nft.NotIn(&nftables.Set{Name: linkSet}), nft.Accept())
		}
		listeners := nft.NewRule("multicast listeners", nft.Family(unix.AF_INET6), nft.ICMPv6Type(), nft.Is(listenerReport), nft.Accept())
		chains = []nft.Chain{
			at("from-pod", nftables.ChainHookOutput, 0, egress, link(expr.MetaKeyOIFNAME), neighbourDiscovery(), listeners),
			at("to-pod", nftables.ChainHookInput, 0, ingress, link(expr.MetaKeyIIFNAME), neighbourDiscovery()),
		}
	}
	for i, w := range ways {
		if w.tunnelled && !b.tunnels {
			continue
		}
		var judge, pass []nft.Rule
		if !w.tunnelled {
			judge = b.beforePolicies(w)
		}
		for _, family := range families {
			if w.tunnelled {
				judge = append(judge, plain(family)...)
			}
			if b.inside {
				continue
			}
			judge = append(judge, nft.NewRule("by the pod's policies", nft.Family(family), w.own(family), leadsTo(familyName(w.podMap(), family)), verdict(chainMap(w.podMap()))))
			pass = append(pass, nft.NewRule("by the next tier", nft.Family(family), w.own(family), leadsTo(familyName(w.passMap(), family)), verdict(chainMap(w.passMap()))))
		}
		if b.inside && b.first[i] != "" {
			judge = append(judge, nft.NewRule("by the pod's policies", nft.GoTo(b.first[i])))
		}
		if b.inside && b.rest[i] != "" {
			pass = append(pass, nft.NewRule("by the next tier", nft.GoTo(b.rest[i])))
		}
		pass = append(pass, nft.NewRule("no policy of the next tiers", nft.Accept())) // the end of a chain would return to the Admin tier
		chains = append(chains, nft.Regular("judge-"+w.name(), judge...), nft.Regular("pass-"+w.name(), pass...))
		chains = append(chains, b.refusals(w)...)
	}
	return chains
}

// neighbourDiscovery accepts messages by which neighbours find each other (RFC 4861).
func neighbourDiscovery() nft.Rule {
	return nft.NewRule("neighbour discovery", nft.ICMPv6Between(133, 137), nft.Accept())
}

// beforePolicies returns the rules that are evaluated before a pod's policies.
func (b base) beforePolicies(w way) (rules []nft.Rule) {
	tunnels := func(load func(int) nft.Exprs, do nft.Exprs) {
		for _, family := range families {
			rules = append(rules, nft.NewRule("egress tunnels", nft.Family(family), nft.Protocol(unix.IPPROTO_UDP), load(family), in(familyName(tunnelSet, family)), do))
		}
	}
	if b.tunnels && w == egress { // the node sees all connections in a tunnel as one
		load := nft.TunnelTo
		if b.inside { // packets of tunnels are not tracked there
			load = nft.TunnelOut
		}
		tunnels(load, nft.GoTo("judge-"+tunnelled.name()))
	}
	rules = append(rules,
		nft.NewRule("established connections", nft.CtState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), nft.Accept()),
		// Flows without answers, such as UDP. Connection tracking confirms a flow only when a packet has passed all chains, so never a
		// rejected one.
		nft.NewRule("confirmed flows", nft.CtStatus(nft.CtConfirmed), nft.Accept()))
	switch {
	case w != ingress:
	case b.inside:
		for _, family := range families {
			rules = append(rules, nft.NewRule("the node's own", nft.Family(family), nft.Source(family), in(familyName(nodeSet, family)), nft.Accept()))
		}
	default: // probes of pods with strict branches arrive through the VLAN. On other links, such a source may be forged with IPv6
		rules = append(rules, nft.NewRule("the node's own", nft.ComesBy(plug.VLANPrefix), nft.SourceIsLocal(), nft.Accept()))
	}
	if b.tunnels && w == ingress { // the pod accepts only replies from tunnels
		tunnels(nft.TunnelFrom, nft.Accept())
	}
	for _, family := range families {
		rules = append(rules,
			nft.NewRule("an answer of an ended connection", nft.Family(family), nft.Endpoints(family), in(familyName(endedSet, family)), nft.Jump("ended-"+w.name())),
			nft.NewRule("a pod reaches itself", nft.Family(family), nft.SourceAndDestination(family), in(familyName(selfSet, family)), nft.Accept()))
	}
	return rules
}

// plain rejects packets in a tunnel whose ports are not at the expected offset: those with options or extension headers, and
// fragments.
func plain(family int) []nft.Rule {
	refuse := func(parts ...nft.Exprs) nft.Rule {
		return nft.NewRule("not a plain packet", nft.Family(family), nft.Join(parts...), nft.GoTo(tunnelled.refuse()))
	}
	if family == unix.AF_INET {
		return []nft.Rule{
			refuse(nft.Inner(0, 1), nft.IsNot(4<<4|5)),                     // version, and length in words
			refuse(nft.Inner(6, 2), nft.Mask(0x3f, 0xff), nft.IsNot(0, 0)), // more fragments, and offset
		}
	}
	protocol := nft.InnerProtocol(family)
	for _, p := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_ICMPV6} {
		protocol = nft.Join(protocol, nft.IsNot(p))
	}
	return []nft.Rule{refuse(nft.Inner(0, 1), nft.Mask(0xf0), nft.IsNot(6<<4)), refuse(protocol)}
}

// refusals returns the chains that reject packets.
func (b base) refusals(w way) []nft.Chain {
	notSYN := nft.Join(nft.Protocol(unix.IPPROTO_TCP), nft.Transport(13, 1), nft.Mask(finSynRstAck), nft.IsNot(syn))
	refuse := []nft.Rule{nft.NewRule("count", nft.CountAs(w.refuse()))}
	if b.log {
		refuse = append(refuse, nft.NewRule("log", nft.Within(logRate, logRate), nft.LogTo(LogGroup, prefixOf(w), logLength)))
	}
	refuse = append(refuse,
		// A reset would end an allowed connection if the packet is outside of its window.
		nft.NewRule("invalid", nft.CtState(expr.CtStateBitINVALID), nft.Drop()),
		// Packets of a known connection are reset. A first packet is dropped: it may be too early, and will be retransmitted.
		nft.NewRule("refused", notSYN, nft.Reset()),
		nft.NewRule("refused", nft.Drop()))
	chains := []nft.Chain{nft.Regular(w.refuse(), refuse...)}
	if w.tunnelled {
		return chains
	}
	return append(chains,
		nft.Regular("ended-"+w.name(),
			nft.NewRule("not a new connection", nft.Protocol(unix.IPPROTO_TCP), nft.Transport(13, 1), nft.Mask(finSynRstAck), nft.Is(syn), nft.Return()),
			nft.NewRule("ended", nft.GoTo(w.refuse()))))
}

// listenerReport is the type of reports of multicast listeners (RFC 3810, section 5.2).
const listenerReport = 143

// Flags of TCP (RFC 9293, section 3.1).
const (
	syn          = 0x02
	finSynRstAck = 0x17
)

// behindIPVS is a priority at the input hook after those of IPVS, NF_IP_PRI_NAT_SRC - 2 and - 1
// (net/netfilter/ipvs/ip_vs_core.c, ip_vs_ops4).
const behindIPVS = 200

func in(name string) nft.Exprs      { return nft.In(&nftables.Set{Name: name}) }
func leadsTo(name string) nft.Exprs { return nft.MapTo(&nftables.Set{Name: name}) }
func verdict(name string) nft.Exprs { return nft.VerdictOf(&nftables.Set{Name: name}) }

// tunnelKey is an element of the set of tunnels: the pod's end, the gateway's, and its port.
func tunnelKey(pod netip.Addr, to netip.AddrPort) []byte {
	b := append(pod.AsSlice(), to.Addr().AsSlice()...)
	return append(binary.BigEndian.AppendUint16(b, to.Port()), 0, 0)
}
