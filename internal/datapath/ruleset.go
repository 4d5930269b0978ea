package datapath

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/nft"
)

// ruleset is the wanted content of one of Berth's nftables tables, as data.
type ruleset struct {
	table  *nftables.Table
	sets   []setSpec
	chains []chainSpec
	// markShift is of VPC: chains of ENIs, which come and go, follow it too.
	markShift uint
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
	exprs   nft.Exprs
}

// Where the base chains hook in. Spoofed packets go before conntrack sees
// them. Marks are set after any DNAT at its usual priority, and before routing.
var (
	atAntispoof = nftables.ChainPriorityRaw
	beforeDNAT  = nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest - 10)
	atClassify  = nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest + 10)
	afterSNAT   = nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource + 10)
)

// buildRuleset writes the ruleset of a node. primary is the primary link's
// name; secondary ENIs add to it by their maps and chains.
func buildRuleset(c Config, primary string, of uplinkState) (ruleset, error) {
	rs := ruleset{table: berthTable(), chains: []chainSpec{antispoofChain()}}
	if c.MaxConnections > 0 {
		rs.addConnectionLimit(uint32(c.MaxConnections))
	}
	c.Uplinks.addTo(&rs, primary)
	if c.BlockMetadata {
		rs.chains = append(rs.chains, metadataChain("forward", nftables.ChainHookForward, fromPod()), metadataChain("forward_by_ipvs", nftables.ChainHookOutput, notFromNode()))
	}
	var err error
	if rs.tag, err = rs.fingerprint(); err != nil {
		return ruleset{}, err
	}
	// Chains of ENIs come and go without a change of the rest.
	for _, i := range of.numbers() {
		rs.chains = append(rs.chains, uplinkChains(rs.markShift, i)...)
	}
	return rs, nil
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
		ruleSpec{"not from a pod", nft.Join(notFromPod(), nft.Accept())},
		ruleSpec{"pods are no routers", nft.Join(icmpv6(routerAdvertisement), nft.Count(), nft.Drop())},
		ruleSpec{"pods are no routers", nft.Join(icmpv6(redirect), nft.Count(), nft.Drop())},
		ruleSpec{"the node's loopback is not for pods", nft.Join(nft.DestinationIn(loopback4), nft.Count(), nft.Drop())},
		ruleSpec{"solicitations fill the neighbour table", nft.Join(solicitation(), nft.Over(solicitRate, solicitBurst), nft.Count(), nft.Drop())},
		ruleSpec{"link-local addresses are on one link", nft.Join(nft.DestinationIn(LinkLocalNet), notToNode(), nft.Count(), nft.Drop())},
		ruleSpec{"IPv6 neighbour discovery", nft.Join(nft.SourceIn(LinkLocalNet), neighbourDiscovery(), nft.Accept())},
		ruleSpec{"link-local sources are for neighbour discovery", nft.Join(nft.SourceIn(LinkLocalNet), nft.Count(), nft.Drop())},
		ruleSpec{"no source", nft.Join(nft.SourceIs(netip.IPv4Unspecified()), nft.Count(), nft.Drop())},
		ruleSpec{"no source", nft.Join(nft.SourceIs(netip.IPv6Unspecified()), nft.Count(), nft.Drop())},
		ruleSpec{"source is not the pod's", nft.Join(sourceNotBehindLink(), nft.Count(), nft.Drop())},
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

// metadata are the addresses of the instance metadata service (EC2 user guide,
// "Use IMDSv2").
var metadata = []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}

// metadataChain judges after DNAT, so that an agent on the node that stands in
// for the metadata service keeps working.
func metadataChain(name string, hook *nftables.ChainHook, of nft.Exprs) chainSpec {
	ch := base(name, nftables.ChainTypeFilter, hook, nftables.ChainPriorityFilter)
	for _, a := range metadata {
		ch.rules = append(ch.rules, ruleSpec{"pods are kept from instance metadata",
			nft.Join(nft.DestinationIs(a), of, nft.Count(), nft.Reject(unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED))})
	}
	return ch
}

// table is what every chain and set names.
func berthTable() *nftables.Table {
	return &nftables.Table{Name: NftTable, Family: nftables.TableFamilyINet}
}

// fingerprint hashes what the kernel will be given.
func (rs ruleset) fingerprint() (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, rs.markShift)
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
