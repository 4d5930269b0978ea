package datapath

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
)

// ruleset is the desired content of one of Berth's nftables tables.
type ruleset struct {
	nft.Table
	// markShift is VPC.MarkShift. The chains of ENIs, which are not part of Table, depend on it too.
	markShift uint
}

// seal sets the tag, which covers the chains of ENIs by including those of one ENI.
func (rs *ruleset) seal() error {
	uplink, err := nft.Table{Family: rs.Family, Chains: uplinkChains(rs.markShift, 1)}.Fingerprint()
	if err != nil {
		return err
	}
	rs.Tag, err = rs.Fingerprint(uplink)
	return err
}

// Priorities of the base chains. Spoofed packets are dropped before conntrack sees them. Marks are set after DNAT at
// its usual priority, and before routing.
var (
	atAntispoof = nftables.ChainPriorityRaw
	beforeDNAT  = nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest - 10)
	atClassify  = nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest + 10)
	afterSNAT   = nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource + 10)
)

// buildRuleset builds the ruleset of a node. primary is the name of the primary link; of is the state of the ENIs.
func buildRuleset(c Config, primary string, of uplinkState) (ruleset, error) {
	rs := ruleset{Table: nft.Table{Family: nftables.TableFamilyINet, Name: NftTable, Chains: []nft.Chain{antispoofChain()}}}
	if c.MaxConnections > 0 {
		rs.addConnectionLimit(uint32(c.MaxConnections))
	}
	c.Uplinks.addTo(&rs, primary)
	if c.BlockMetadata {
		rs.Chains = append(rs.Chains, metadataChain("forward", nftables.ChainHookForward, fromPod()), metadataChain("forward_by_ipvs", nftables.ChainHookOutput, notFromNode()))
	}
	if err := rs.seal(); err != nil {
		return ruleset{}, err
	}
	// Chains of ENIs are added and removed without replacing the table.
	for _, i := range of.numbers() {
		rs.Chains = append(rs.Chains, uplinkChains(rs.markShift, i)...)
	}
	return rs, nil
}

// antispoofChain allows packets from a pod's own addresses only. A pod without routes on the node can send nothing.
//
// The reverse path check accepts link-local sources, of which a pod can use 2^64: each would count as another peer,
// and each answer to one would add an entry to the neighbour table. The check also accepts the unspecified address,
// for DHCP and duplicate address detection. A packet to a link-local address other than the node's would be forwarded
// back to the pod's link, which adds an entry too. All of these are dropped.
func antispoofChain() nft.Chain {
	return nft.Base("antispoof", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, atAntispoof,
		nft.NewRule("not from a pod", notFromPod(), nft.Accept()),
		nft.NewRule("router advertisements from pods", icmpv6(routerAdvertisement), nft.Count(), nft.Drop()),
		nft.NewRule("ICMPv6 redirects from pods", icmpv6(redirect), nft.Count(), nft.Drop()),
		nft.NewRule("to the node's loopback addresses", nft.DestinationIn(loopback4), nft.Count(), nft.Drop()),
		nft.NewRule("solicitations over the rate limit", solicitation(), nft.Over(solicitRate, solicitBurst), nft.Count(), nft.Drop()),
		nft.NewRule("to link-local addresses other than the node's", nft.DestinationIn(LinkLocalNet), notToNode(), nft.Count(), nft.Drop()),
		nft.NewRule("IPv6 neighbour discovery", nft.SourceIn(LinkLocalNet), neighbourDiscovery(), nft.Accept()),
		nft.NewRule("other packets with a link-local source", nft.SourceIn(LinkLocalNet), nft.Count(), nft.Drop()),
		nft.NewRule("unspecified source", nft.SourceIs(netip.IPv4Unspecified()), nft.Count(), nft.Drop()),
		nft.NewRule("unspecified source", nft.SourceIs(netip.IPv6Unspecified()), nft.Count(), nft.Drop()),
		nft.NewRule("source is not the pod's", sourceNotBehindLink(), nft.Count(), nft.Drop()),
	)
}

// Rate limit, a second, and burst of the solicitations that the node accepts from all its pods together. A pod needs
// none: its gateway is a permanent neighbour. Each may add an entry to the neighbour table, which has at most 1,024
// entries for all namespaces of the kernel (arp(7), gc_thresh3).
const (
	solicitRate  = 10
	solicitBurst = 50
)

// metadata are the addresses of the instance metadata service (EC2 user guide,
// "Use IMDSv2").
var metadata = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}

// metadataChain matches after DNAT, so that an agent on the node that replaces the metadata service keeps working.
func metadataChain(name string, hook *nftables.ChainHook, of nft.Exprs) nft.Chain {
	ch := nft.Base(name, nftables.ChainTypeFilter, hook, nftables.ChainPriorityFilter)
	for _, a := range metadata {
		ch.Rules = append(ch.Rules, nft.NewRule("pods must not reach instance metadata",
			nft.DestinationIs(a), of, nft.Count(), nft.Reject(unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED)))
	}
	return ch
}

// berthTable identifies Berth's table.
func berthTable() *nftables.Table {
	return &nftables.Table{Name: NftTable, Family: nftables.TableFamilyINet}
}

// All connections of a node share one connection tracking table, and a pod that fills it blocks new connections of
// all others. Config.MaxConnections limits the connections of each pod.

// atConnections is after connection tracking and before NAT.
var atConnections = nftables.ChainPriorityMangle

// addConnectionLimit adds a chain that drops packets of a pod that would open more than limit connections.
func (rs *ruleset) addConnectionLimit(limit uint32) {
	ch := nft.Base("connections", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, atConnections,
		nft.NewRule("not from a pod", notFromPod(), nft.Accept()))
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		set := connectionSet(family)
		rs.Sets = append(rs.Sets, nft.Set{Set: set})
		ch.Rules = append(ch.Rules, nft.NewRule("over the pod's connection limit",
			nft.Family(family), nft.CtState(expr.CtStateBitNEW), nft.Source(family), countedOver(set, limit), nft.Count(), nft.Drop()))
	}
	rs.Chains = append(rs.Chains, ch)
}

// connectionSet holds the pods of a family that have connections. The kernel removes a pod after its last connection.
func connectionSet(family int) *nftables.Set {
	s := &nftables.Set{Table: berthTable(), ID: 7, Name: "connections4", KeyType: nftables.TypeIPAddr, Dynamic: true, Size: 65536}
	if family == unix.AF_INET6 {
		s.ID, s.Name, s.KeyType = 8, "connections6", nftables.TypeIP6Addr
	}
	return s
}

// countedOver: add @set { the loaded value ct count over N }.
func countedOver(s *nftables.Set, limit uint32) nft.Exprs {
	return nft.Exprs{&expr.Dynset{SrcRegKey: nft.Register, SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_ADD,
		Exprs: []expr.Any{&expr.Connlimit{Count: limit, Flags: expr.NFT_CONNLIMIT_F_INV}}}}
}

func fromPod() nft.Exprs { return nft.ComesBy(LinkPrefix) }

// fromGroup: iifgroup & mask == GROUP.
func fromGroup(group, mask uint32) nft.Exprs {
	return nft.Join(nft.Meta(expr.MetaKeyIIFGROUP), nft.Mask(nft.Word(mask)...), nft.Is(nft.Word(group)...))
}

func notFromPod() nft.Exprs { return nft.ComesByOther(LinkPrefix) }

// fromLink: iifname NAME.
func fromLink(name string) nft.Exprs {
	return nft.Join(nft.Meta(expr.MetaKeyIIFNAME), nft.Is(nft.LinkName(name)...))
}

// loopback4 is the loopback network of IPv4. The kernel itself drops packets from a link to ::1.
var loopback4 = netip.MustParsePrefix("127.0.0.0/8")

// LinkLocalNet are the link-local addresses of IPv6 (RFC 4291, section 2.4).
var LinkLocalNet = netip.MustParsePrefix("fe80::/10")

// isUntranslatable: ct state invalid,untracked. NAT ignores both. The kernel never tracks neighbour and listener
// discovery (ICMPv6 types 130 to 133, 135, 136 and 143), whatever its destination.
func isUntranslatable() nft.Exprs {
	return nft.CtState(expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED)
}

// sourceNotBehindLink: fib saddr . mark . iif oif missing. This is strict reverse path filtering (RFC 3704) for both
// families, without a sysctl for each link. Only packets of pods of branches already have a mark, which selects the
// table with their addresses.
func sourceNotBehindLink() nft.Exprs {
	return nft.Join(nft.Exprs{&expr.Fib{Register: nft.Register, FlagSADDR: true, FlagMARK: true, FlagIIF: true, ResultOIF: true}}, nft.Is(nft.Word(0)...))
}

// notToNode: fib daddr . iif type != local.
func notToNode() nft.Exprs {
	return nft.Join(nft.Exprs{&expr.Fib{Register: nft.Register, FlagDADDR: true, FlagIIF: true, ResultADDRTYPE: true}}, nft.IsNot(nft.Word(unix.RTN_LOCAL)...))
}

// notFromNode: fib saddr type != local. In the output hook this matches what IPVS forwards.
func notFromNode() nft.Exprs {
	return nft.Join(nft.Exprs{&expr.Fib{Register: nft.Register, FlagSADDR: true, ResultADDRTYPE: true}}, nft.IsNot(nft.Word(unix.RTN_LOCAL)...))
}

// icmpv6: icmpv6 type.
func icmpv6(kind byte) nft.Exprs {
	return nft.Join(nft.Family(unix.AF_INET6), nft.ICMPv6Type(), nft.Is(kind))
}

// solicitation: icmpv6 type 133-135: router and neighbour solicitations, and the router advertisements between them.
func solicitation() nft.Exprs { return nft.ICMPv6Between(routerSolicitation, NeighbourSolicitation) }

// neighbourDiscovery: icmpv6 type 133-136.
func neighbourDiscovery() nft.Exprs {
	return nft.ICMPv6Between(routerSolicitation, NeighbourAdvertisement)
}

// Types of neighbour discovery (RFC 4861 section 4).
const (
	routerSolicitation     byte = 133
	routerAdvertisement    byte = 134
	NeighbourSolicitation  byte = 135
	NeighbourAdvertisement byte = 136
	redirect               byte = 137
)
