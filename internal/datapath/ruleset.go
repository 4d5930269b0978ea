package datapath

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ruleset is the wanted content of one of Berth's nftables tables, as data.
type ruleset struct {
	table  *nftables.Table
	sets   []setSpec
	chains []chainSpec
	// tag is a hash of all of it. Every rule carries it in its comment, so
	// that the kernel's content can be compared without decoding rules.
	tag string
}

type setSpec struct {
	set      *nftables.Set
	elements []nftables.SetElement
}

type chainSpec struct {
	chain nftables.Chain // Table unset
	rules []ruleSpec
}

type ruleSpec struct {
	comment string
	exprs   exprs
}

// Where the base chains hook in. Spoofed packets go before conntrack sees
// them. Marks are set after any DNAT at its usual priority, and before routing.
var (
	atAntispoof = nftables.ChainPriorityRaw
	atClassify  = nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest + 10)
)

// buildRuleset writes the ruleset of a node. primary is the primary link's
// name; secondary ENIs add to it by their maps and chains.
func buildRuleset(c Config, primary string, indexes []int) (ruleset, error) {
	rs := ruleset{table: berthTable(), chains: []chainSpec{antispoofChain()}}
	if c.MaxConnections > 0 {
		rs.addConnectionLimit(uint32(c.MaxConnections))
	}
	if !c.pools() {
		rs.addPolicy(c, primary)
	}
	if c.BlockMetadata {
		rs.chains = append(rs.chains, forwardChain())
	}
	var err error
	if rs.tag, err = rs.fingerprint(c); err != nil {
		return ruleset{}, err
	}
	// Chains of ENIs come and go without a change of the rest.
	for _, i := range indexes {
		rs.chains = append(rs.chains, eniChain(c, i))
	}
	return rs, nil
}

// addPolicy adds what chooses the ENI by which a packet leaves, and its source.
func (rs *ruleset) addPolicy(c Config, primary string) {
	maps := eniMaps()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rs.sets = append(rs.sets, setSpec{directSet(family), intervals(c.direct(family))})
	}
	for _, m := range maps {
		rs.sets = append(rs.sets, setSpec{set: m.set})
	}
	rs.chains = append(rs.chains, fromPodChain(c), byENIChain(maps), classifyChain(c, primary), snatChain(c))
}

func base(name string, kind nftables.ChainType, hook *nftables.ChainHook, at *nftables.ChainPriority, rules ...ruleSpec) chainSpec {
	return chainSpec{nftables.Chain{Name: name, Type: kind, Hooknum: hook, Priority: at}, rules}
}

// antispoofChain lets a pod send from its own addresses only. A pod whose
// routes are gone can send nothing.
//
// A link-local source would pass the comparison with the routes, and a pod can
// take any of 2^64: each would be a peer of its own to whatever counts peers or
// connections by address, and each answer to it an entry of the neighbour table.
// So would a source of zeros, which the comparison passes for DHCP and for the
// search for duplicates. A packet to a link-local address that is not the node's own
// would be passed on to the pod's own link, for an entry each.
func antispoofChain() chainSpec {
	return base("antispoof", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, atAntispoof,
		ruleSpec{"not from a pod", rule(notFromPod(), accept())},
		ruleSpec{"pods are no routers", rule(icmpv6(routerAdvertisement), count(), drop())},
		ruleSpec{"pods are no routers", rule(icmpv6(redirect), count(), drop())},
		ruleSpec{"the node's loopback is not for pods", rule(toLoopback(), count(), drop())},
		ruleSpec{"solicitations fill the neighbour table", rule(solicitation(), atMost(solicitRate, solicitBurst), count(), drop())},
		ruleSpec{"link-local addresses are on one link", rule(toLinkLocal(), notToNode(), count(), drop())},
		ruleSpec{"IPv6 neighbour discovery", rule(linkLocalSource(), neighbourDiscovery(), accept())},
		ruleSpec{"link-local sources are for neighbour discovery", rule(linkLocalSource(), count(), drop())},
		ruleSpec{"no source", rule(sourceIs(netip.IPv4Unspecified()), count(), drop())},
		ruleSpec{"no source", rule(sourceIs(netip.IPv6Unspecified()), count(), drop())},
		ruleSpec{"source is not the pod's", rule(sourceNotBehindLink(), count(), drop())},
	)
}

func classifyChain(c Config, primary string) chainSpec {
	return base("classify", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, atClassify,
		ruleSpec{"from a pod", rule(fromPod(), goTo("from_pod"))},
		ruleSpec{"came in by the primary link", rule(fromLink(primary), isNew(), setCtMark(c.mark(MarkPrimary)))},
	)
}

// Solicitations that the node takes from all its pods together, a second and at
// once. A pod needs none: its gateway is a permanent neighbour. Each may become
// an entry of the neighbour table, of which the kernel has 1,024 for all of its
// namespaces (arp(7), gc_thresh3).
const (
	solicitRate  = 10
	solicitBurst = 50
)

// fromPodChain decides by which table a pod's packet leaves. Only the first
// direction of a connection is judged by its destination: an answer goes back
// by where the question came from.
func fromPodChain(c Config) chainSpec {
	ch := chainSpec{chain: nftables.Chain{Name: "from_pod"}}
	ch.rules = append(ch.rules, ruleSpec{"answers to what came in by the primary link",
		rule(direction(reply), ctMarked(c.mark(MarkPrimary)), setMark(c.mark(MarkPrimary), c.mark(MarkPrimary)), accept())})
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if c.snat(family).IsValid() {
			outside := rule(isFamily(family), loadDestination(family), notIn(directSet(family)))
			ch.rules = append(ch.rules,
				ruleSpec{"leaves the VPC",
					rule(direction(original), outside, setMark(c.mark(MarkOutside), c.mark(MarkOutside)), accept())},
				ruleSpec{"would leave the VPC untranslated", rule(isUntranslatable(), outside, count(), drop())})
		}
	}
	ch.rules = append(ch.rules, ruleSpec{"by the ENI of the source", goTo("by_eni")})
	return ch
}

func byENIChain(maps []eniMap) chainSpec {
	ch := chainSpec{chain: nftables.Chain{Name: "by_eni"}}
	for _, m := range maps {
		match := rule(isFamily(m.family), loadSource(m.family))
		if m.bits != 0 {
			match = rule(match, masked(m.family, m.bits))
		}
		ch.rules = append(ch.rules, ruleSpec{"ENI of the source", rule(match, verdictOf(m.set))})
	}
	return ch
}

func eniChainName(deviceIndex int) string { return fmt.Sprintf("eni_%d", deviceIndex) }

func eniChain(c Config, deviceIndex int) chainSpec {
	return chainSpec{nftables.Chain{Name: eniChainName(deviceIndex)}, []ruleSpec{
		{"table of the ENI", setMark(c.mark(uint32(deviceIndex)), c.mark(MarkENI))},
	}}
}

func snatChain(c Config) chainSpec {
	ch := base("snat", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if to := c.snat(family); to.IsValid() {
			ch.rules = append(ch.rules, ruleSpec{"to the primary address",
				rule(isFamily(family), notToPod(), marked(c.mark(MarkOutside)), count(), snatTo(to))})
		}
	}
	return ch
}

// metadata are the addresses of the instance metadata service (EC2 user guide,
// "Use IMDSv2").
var metadata = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}

// forwardChain judges after DNAT, so that an agent on the node that stands in
// for the metadata service keeps working.
func forwardChain() chainSpec {
	ch := base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	for _, a := range metadata {
		ch.rules = append(ch.rules, ruleSpec{"pods are kept from instance metadata",
			rule(fromPod(), destinationIs(a), count(), reject())})
	}
	return ch
}

// table is what every chain and set names.
func berthTable() *nftables.Table {
	return &nftables.Table{Name: NftTable, Family: nftables.TableFamilyINet}
}

// directSet holds the destinations of a family that see a pod's own address.
func directSet(family int) *nftables.Set {
	s := &nftables.Set{Table: berthTable(), ID: 1, Name: "direct4", KeyType: nftables.TypeIPAddr, Interval: true}
	if family == unix.AF_INET6 {
		s.ID, s.Name, s.KeyType = 2, "direct6", nftables.TypeIP6Addr
	}
	return s
}

// intervals are disjoint prefixes as the elements of an interval set: each
// start, and the first address after the end unless that is past the last.
func intervals(prefixes []netip.Prefix) []nftables.SetElement {
	var out []nftables.SetElement
	for _, p := range prefixes {
		out = append(out, nftables.SetElement{Key: p.Addr().AsSlice()})
		if after := lastAddr(p).Next(); after.IsValid() {
			out = append(out, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// fingerprint hashes what the kernel will be given.
func (rs ruleset) fingerprint(c Config) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, c.MarkShift)
	for _, s := range rs.sets {
		fmt.Fprintln(h, s.set.Name, s.set.KeyType.Name, s.set.Interval, s.set.IsMap, s.set.Dynamic, s.elements)
	}
	for _, ch := range rs.chains {
		fmt.Fprintln(h, ch.chain.Name, ch.chain.Type)
		if ch.chain.Hooknum != nil {
			fmt.Fprintln(h, *ch.chain.Hooknum, *ch.chain.Priority)
		}
		for _, r := range ch.rules {
			for _, e := range r.exprs {
				b, err := expr.Marshal(byte(rs.table.Family), e)
				if err != nil {
					return "", fmt.Errorf("encode rule %q: %w", r.comment, err)
				}
				fmt.Fprintf(h, "%x\n", b)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:4]), nil
}

// eniMap is one of the maps from a source address to the chain of its ENI.
// EC2 hands out addresses and prefixes of one length only, so exact lookups of
// the address and of the masked address do, at the same cost for any number.
type eniMap struct {
	set    *nftables.Set
	family int
	bits   int // of a prefix map, else 0
}

func eniMaps() []eniMap {
	verdicts := func(id uint32, name string, key nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: berthTable(), ID: id, Name: name, IsMap: true, KeyType: key,
			DataType: nftables.TypeVerdict, KeyByteOrder: binaryutil.BigEndian}
	}
	return []eniMap{
		{verdicts(3, "eni_address4", nftables.TypeIPAddr), unix.AF_INET, 0},
		{verdicts(4, "eni_prefix4", nftables.TypeIPAddr), unix.AF_INET, prefixBits4},
		{verdicts(5, "eni_address6", nftables.TypeIP6Addr), unix.AF_INET6, 0},
		{verdicts(6, "eni_prefix6", nftables.TypeIP6Addr), unix.AF_INET6, prefixBits6},
	}
}
