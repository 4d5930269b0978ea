package datapath

import (
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"
)

// A VPC delivers packets for every address of an ENI, whether a pod has it or not: it
// may be kept warm, cool, or have lost its pod a moment ago. With no route of its own
// such a packet takes the node's default route, back to the VPC, which drops it since
// its source is none of this node's: who sent it waits in vain, and the drop looks like
// a forged source. The chain no_pod refuses it instead, so that the sender hears at once
// that nobody is there (RFC 1812 section 5.2.7.1).
//
// The node may learn late that EC2 has given one of its addresses to another node. What
// goes there must pass meanwhile, so only what an ENI delivered to the address is refused:
// not what a pod, the node or another link sends to it, and not what had another
// destination when it came, such as a NodePort whose backend has the address now.

// noPodChain refuses what came in by an ENI for an address of the node's ENIs and is to
// leave by the primary link, where the default route leads. A packet of a pod leaves the
// chain at its second rule, one for a pod at the first.
func noPodChain(primary string) chainSpec {
	ch := base("no_pod", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter,
		ruleSpec{"has another way than the default route", rule(notByLink(primary), accept())},
		ruleSpec{"no ENI delivered it", rule(notArrivedBy(uplinkLinkSet()), accept())},
		ruleSpec{"was for another destination", rule(destinationTranslated(), accept())})
	for _, s := range ownSets() {
		match := rule(isFamily(s.family), loadDestination(s.family))
		if s.bits != 0 {
			match = rule(match, masked(s.family, s.bits))
		}
		ch.rules = append(ch.rules, ruleSpec{"no pod has the address", rule(match, in(s.set), count(), unreachable())})
	}
	return ch
}

// uplinkLinkSet has the indexes of the links of all ENIs.
func uplinkLinkSet() *nftables.Set {
	return &nftables.Set{Table: berthTable(), ID: 9, Name: "eni_links", KeyType: nftables.TypeIFIndex,
		KeyByteOrder: binaryutil.NativeEndian}
}

// ownSet is one of the sets of the addresses that pods of the node may have, of all its
// ENIs. As with uplinkMap, EC2's prefixes have one length, so exact lookups do.
type ownSet struct {
	set    *nftables.Set
	family int
	bits   int // of a set of prefixes, else 0
}

func ownSets() []ownSet {
	addresses := func(id uint32, name string, key nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: berthTable(), ID: id, Name: name, KeyType: key, KeyByteOrder: binaryutil.BigEndian}
	}
	return []ownSet{
		{addresses(10, "own_address4", nftables.TypeIPAddr), unix.AF_INET, 0},
		{addresses(11, "own_prefix4", nftables.TypeIPAddr), unix.AF_INET, prefixBits4},
		{addresses(12, "own_address6", nftables.TypeIP6Addr), unix.AF_INET6, 0},
		{addresses(13, "own_prefix6", nftables.TypeIP6Addr), unix.AF_INET6, prefixBits6},
	}
}
