package datapath

import (
	"fmt"
	"math"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// addTo adds the sets and chains that choose the ENI by which a packet leaves, and the packet's source.
func (u VPC) addTo(rs *ruleset, primary string) {
	rs.markShift = u.MarkShift
	maps := uplinkMaps()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rs.Sets = append(rs.Sets, nft.Set{Set: directSet(family), Elements: nft.Intervals(u.direct(family))})
	}
	for _, m := range slices.Concat(maps, ownMaps()) {
		rs.Sets = append(rs.Sets, nft.Set{Set: m.set})
	}
	rs.Sets = append(rs.Sets, nft.Set{Set: noteMap()})
	rs.Chains = append(rs.Chains, u.fromPodChain(), byUplinkChain(maps), toOwnChain(), u.classifyChain(primary),
		u.byNodeChain(), u.fromIPVSChain(), u.toNodeChain(), u.snatChain())
	if ch := u.untranslatedChain(); len(ch.Rules) > 0 {
		rs.Chains = append(rs.Chains, ch)
	}
	if len(u.NodeLocal) > 0 {
		rs.Chains = append(rs.Chains, u.toNodeLocalChain("to_node_local", nftables.ChainHookForward),
			u.toNodeLocalChain("to_node_local_by_ipvs", nftables.ChainHookOutput, notFromNode()), u.fromNodeLocalChain())
	}
}

func (u VPC) classifyChain(primary string) nft.Chain {
	return nft.Base("classify", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, atClassify,
		nft.NewRule("from a pod", fromPod(), nft.GoTo("from_pod")),
		nft.NewRule("new connections from the primary link", fromLink(primary), nft.CtState(expr.CtStateBitNEW), nft.SetCtMark(u.mark(MarkPrimary), u.mark(MarkPrimary))),
		nft.NewRule("other replies to connections that arrived through an ENI", nft.CtDirection(nft.Reply), u.byNote()),
	)
}

// byNodeChain marks packets that the node sends: those that IPVS forwards for pods, and replies of programs on the
// node behind a node port.
func (u VPC) byNodeChain() nft.Chain {
	return nft.Base("by_node", nftables.ChainTypeRoute, nftables.ChainHookOutput, atClassify,
		nft.NewRule("packets of pods that IPVS forwards", nft.Meta(expr.MetaKeyMARK), nft.Mask(nft.Word(u.mark(allMarks))...), nft.Is(nft.Word(u.mark(MarkOutside))...), notFromNode(), nft.GoTo("from_ipvs")),
		nft.NewRule("replies to connections that arrived through an ENI", isTranslated(nft.Reply), u.byNote()),
	)
}

// toNodeChain marks packets of pods to the node itself. If kube-proxy uses IPVS, the node has the addresses of
// Services. IPVS replaces them after this chain, and forwards the packet by the main table with its mark. The mark
// must differ from the one that by_node sets afterwards, as the kernel reroutes only packets whose mark changes. The
// route of a branch depends on the pod's link, which the packet has lost at that point. So by_node ignores packets of
// pods of branches, and they leave by the primary link with its address.
func (u VPC) toNodeChain() nft.Chain {
	return nft.Base("to_node", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter,
		nft.NewRule("IPVS may forward packets of pods", fromPod(), nft.SetMark(u.mark(MarkOutside), u.mark(allMarks))),
		nft.NewRule("IPVS forwards packets of pods on branches through the primary link", fromPod(), fromGroup(rtnl.PortGroup, math.MaxUint32), nft.SetMark(u.mark(MarkOutside|MarkPrimary), u.mark(allMarks))))
}

// fromIPVSChain does the work of from_pod for packets that IPVS forwards, which no chain at the forward hook sees.
func (u VPC) fromIPVSChain() nft.Chain {
	ch := nft.Regular("from_ipvs")
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if u.snat(family).IsValid() {
			ch.Rules = append(ch.Rules, u.dropUntranslated(family))
		}
	}
	ch.Rules = append(ch.Rules, nft.NewRule("continue like other packets of pods", nft.SetMark(0, u.mark(allMarks)), nft.GoTo("from_pod")))
	return ch
}

// isTranslated matches packets in one direction of a connection whose source is translated: by SNAT in the original
// direction, by the reverse of DNAT in the reply direction.
func isTranslated(direction byte) nft.Exprs {
	of := nft.CtSNAT
	if direction == nft.Reply {
		of = nft.CtDNAT
	}
	return nft.Join(nft.CtDirection(direction), nft.CtStatus(of))
}

// fromPodChain chooses the table by which a pod's packet leaves. Destination and settings decide for the first packet
// of a connection only. Later ones follow connection tracking: they leave by the link that has their translated
// source, even if the settings changed or Berth's table was missing for a while. Translated connections are routed by
// the note in their mark, or like a first packet if they have none.
func (u VPC) fromPodChain() nft.Chain {
	ch := nft.Regular("from_pod")
	ch.Rules = append(ch.Rules, nft.NewRule("leaves through the pod's branch",
		nft.Marked(u.mark(BranchOut)), nft.Accept()))
	ch.Rules = append(ch.Rules, nft.NewRule("replies to connections from the primary link",
		nft.CtDirection(nft.Reply), nft.CtMarked(u.mark(MarkPrimary)), u.byPrimary()))
	for _, p := range u.NodeLocal {
		ch.Rules = append(ch.Rules, nft.NewRule("from node-local addresses", nft.SourceIn(p), nft.SetMark(u.mark(MarkOutside), u.mark(MarkOutside)), nft.Accept()))
	}
	ch.Rules = append(ch.Rules,
		nft.NewRule("SNATed connections that have an ENI in their mark", isTranslated(nft.Original), u.byNote()),
		nft.NewRule("SNATed connections that have the primary link in their mark", isTranslated(nft.Original), nft.CtMark(u.mark(MarkUplink)), nft.Is(nft.Word(u.mark(notePrimary))...), u.byPrimary()),
		nft.NewRule("replies to connections that arrived through an ENI", nft.CtDirection(nft.Reply), u.byNote()),
		nft.NewRule("other replies of DNATed connections", isTranslated(nft.Reply), u.byPrimary()),
		nft.NewRule("later packets of connections without SNAT", nft.CtDirection(nft.Original), confirmedUntranslated(), nft.GoTo("by_eni")))
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if u.snat(family).IsValid() {
			ch.Rules = append(ch.Rules, nft.NewRule("leaves the VPC",
				nft.CtDirection(nft.Original), beyondVPC(family), nft.SetCtMark(u.mark(notePrimary), u.mark(MarkUplink)), nft.SetMark(u.mark(MarkOutside), u.mark(MarkOutside)), nft.Accept()))
		}
	}
	ch.Rules = append(ch.Rules, nft.NewRule("leaves through the ENI of the source", nft.GoTo("by_eni")))
	return ch
}

// byPrimary routes packets by the primary link.
func (u VPC) byPrimary() nft.Exprs {
	return nft.Join(nft.SetMark(u.mark(MarkPrimary), u.mark(MarkPrimary)), nft.Accept())
}

// confirmedUntranslated: ct status & (confirmed | snat) == confirmed.
func confirmedUntranslated() nft.Exprs {
	return nft.Join(nft.Ct(expr.CtKeySTATUS), nft.Mask(nft.Word(nft.CtConfirmed|nft.CtSNAT)...), nft.Is(nft.Word(nft.CtConfirmed)...))
}

// byNote: ct mark & MarkUplink vmap @eni_note.
func (u VPC) byNote() nft.Exprs {
	return nft.Join(nft.CtMark(u.mark(MarkUplink)), nft.VerdictOf(noteMap()))
}

// toOwnChain notes the ENI of connections to the ENI's own address, before DNAT (node ports).
func toOwnChain() nft.Chain {
	ch := nft.Base("to_own", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, beforeDNAT)
	for _, m := range ownMaps() {
		ch.Rules = append(ch.Rules, nft.NewRule("new connections to an ENI's own address",
			nft.CtState(expr.CtStateBitNEW), notFromPod(), nft.Family(m.family), nft.Destination(m.family), nft.VerdictOf(m.set)))
	}
	return ch
}

// beyondVPC matches destinations to which packets are translated.
func beyondVPC(family int) nft.Exprs {
	return nft.Join(nft.Family(family), nft.Destination(family), nft.NotIn(directSet(family)))
}

// untranslatedChain drops packets of pods that would leave the VPC with the pod's own address, because NAT ignores
// them. It sees only forwarded packets: software on the node, such as NodeLocal DNSCache, may exempt packets to its
// own addresses from tracking.
func (u VPC) untranslatedChain() nft.Chain {
	ch := nft.Base("untranslated", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if u.snat(family).IsValid() {
			ch.Rules = append(ch.Rules, u.dropUntranslated(family, fromPod()))
		}
	}
	return ch
}

func (u VPC) dropUntranslated(family int, of ...nft.Exprs) nft.Rule {
	return nft.NewRule("would leave the VPC untranslated",
		nft.Join(of...), isUntranslatable(), nft.NotMarked(u.mark(BranchOut)), beyondVPC(family), nft.Count(), nft.Drop())
}

func byUplinkChain(maps []uplinkMap) nft.Chain {
	ch := nft.Regular("by_eni")
	for _, m := range maps {
		match := nft.Join(nft.Family(m.family), nft.Source(m.family))
		if m.bits != 0 {
			match = nft.Join(match, nft.MaskBits(m.family, m.bits))
		}
		ch.Rules = append(ch.Rules, nft.NewRule("look up the ENI of the source", match, nft.VerdictOf(m.set)))
	}
	return ch
}

func uplinkChainName(number int) string { return fmt.Sprintf("eni_%d", number) }

// noteSuffix ends the names of chains that note an ENI and do not mark the packet.
const noteSuffix = "_note"

// uplinkChains are the chains of an ENI. Both note the ENI in the mark of a new connection; the first also marks the
// packet for the ENI.
func uplinkChains(markShift uint, number int) []nft.Chain {
	mark, mask := uint32(number)<<markShift, uint32(MarkUplink)<<markShift
	note := nft.NewRule("save the ENI in the connection mark", nft.CtState(expr.CtStateBitNEW), nft.SetCtMark(mark, mask))
	return []nft.Chain{
		nft.Regular(uplinkChainName(number), note, nft.NewRule("use the ENI's routing table", nft.SetMark(mark, mask), nft.Accept())),
		nft.Regular(uplinkChainName(number)+noteSuffix, note),
	}
}

func (u VPC) snatChain() nft.Chain {
	ch := nft.Base("snat", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	for _, p := range u.NodeLocal {
		// The node may get its IPv6 address later than its pods.
		to := nft.MasqueradeFullyRandom()
		if own := u.primary(rtnl.FamilyOf(p.Addr())); own.IsValid() {
			to = nft.SNATTo(own)
		}
		ch.Rules = append(ch.Rules, nft.NewRule("SNAT node-local sources to the node's address", nft.SourceIn(p), nft.Count(), to))
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if to := u.snat(family); to.IsValid() {
			ch.Rules = append(ch.Rules, nft.NewRule("SNAT to the primary address",
				nft.Family(family), nft.LeavesByOther(LinkPrefix), nft.Marked(u.mark(MarkOutside)), nft.Count(), nft.SNATTo(to)))
		}
	}
	return ch
}

// toNodeLocalChain rejects connections from other pods and machines to pods' node-local addresses.
func (u VPC) toNodeLocalChain(name string, hook *nftables.ChainHook, of ...nft.Exprs) nft.Chain {
	ch := nft.Base(name, nftables.ChainTypeFilter, hook, nftables.ChainPriorityFilter)
	opens := nft.CtState(expr.CtStateBitNEW | expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED)
	for _, p := range u.NodeLocal {
		ch.Rules = append(ch.Rules, nft.NewRule("to node-local addresses from elsewhere", nft.DestinationIn(p), opens, nft.Join(of...), nft.Count(), nft.Drop()))
	}
	return ch
}

// fromNodeLocalChain drops packets that were not translated: untracked ones, and forged ICMP errors about other
// connections.
func (u VPC) fromNodeLocalChain() nft.Chain {
	ch := nft.Base("from_node_local", nftables.ChainTypeFilter, nftables.ChainHookPostrouting, afterSNAT)
	for _, p := range u.NodeLocal {
		ch.Rules = append(ch.Rules, nft.NewRule("node-local source without SNAT", nft.SourceIn(p), nft.Count(), nft.Drop()))
	}
	return ch
}

// directSet has the destinations of a family to which packets are not translated.
func directSet(family int) *nftables.Set {
	s := &nftables.Set{Table: berthTable(), ID: 1, Name: "direct4", KeyType: nftables.TypeIPAddr, Interval: true}
	if family == unix.AF_INET6 {
		s.ID, s.Name, s.KeyType = 2, "direct6", nftables.TypeIP6Addr
	}
	return s
}

// uplinkMap is one of the maps from a source address to the chain of its ENI. EC2 assigns prefixes of one length
// only, so exact lookups of the address and of the masked address suffice, at constant cost.
type uplinkMap struct {
	set    *nftables.Set
	family int
	bits   int    // of a prefix map, else 0
	suffix string // of the chains' names
}

func uplinkMaps() []uplinkMap {
	return []uplinkMap{
		{verdictMap(3, "eni_address4", nftables.TypeIPAddr), unix.AF_INET, 0, ""},
		{verdictMap(4, "eni_prefix4", nftables.TypeIPAddr), unix.AF_INET, prefixBits4, ""},
		{verdictMap(5, "eni_address6", nftables.TypeIP6Addr), unix.AF_INET6, 0, ""},
		{verdictMap(6, "eni_prefix6", nftables.TypeIP6Addr), unix.AF_INET6, prefixBits6, ""},
	}
}

// ownMaps returns the maps from an ENI's own address to the chain that notes the ENI.
func ownMaps() []uplinkMap {
	return []uplinkMap{
		{verdictMap(9, "eni_own4", nftables.TypeIPAddr), unix.AF_INET, 0, noteSuffix},
		{verdictMap(10, "eni_own6", nftables.TypeIP6Addr), unix.AF_INET6, 0, noteSuffix},
	}
}

// noteMap is the map from the ENI's number in a connection's mark to the ENI's chain.
func noteMap() *nftables.Set {
	m := verdictMap(11, "eni_note", nftables.TypeMark)
	m.KeyByteOrder = binaryutil.NativeEndian
	return m
}

func verdictMap(id uint32, name string, key nftables.SetDatatype) *nftables.Set {
	return &nftables.Set{Table: berthTable(), ID: id, Name: name, IsMap: true, KeyType: key,
		DataType: nftables.TypeVerdict, KeyByteOrder: binaryutil.BigEndian}
}
