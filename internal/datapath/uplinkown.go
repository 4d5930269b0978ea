package datapath

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/nft"
)

// A VPC delivers by an ENI what is sent to the ENI's own address, and takes by no other link what has this source. So what
// the node itself sends from there, and what IPVS translates to it, looks up the ENI's table by a rule for this source. What
// has this source only after the kernel's NAT, behind routing, gets the ENI's mark before: answers of pods to which a node
// port leads, and what others masquerade on its way out there.

// ownAddresses are those that links of ENIs have, with the ENI's number.
type ownAddresses map[netip.Addr]int

// own are the addresses of the ENI's link that no pod has and that others may send to.
func (e Uplink) own(u VPC) ownAddresses {
	m := ownAddresses{}
	if e.PrimaryIPv4.IsValid() && !e.ownForPods() {
		m[e.PrimaryIPv4] = e.Number
	}
	if a := e.linkAddress6(); u.ipv6() && a.IsValid() {
		m[a] = e.Number
	}
	return m
}

// set replaces those of an ENI.
func (m ownAddresses) set(number int, by ownAddresses) {
	maps.DeleteFunc(m, func(_ netip.Addr, i int) bool { return i == number })
	maps.Copy(m, by)
}

// kernelOwn reads them off the rules in the kernel.
func (k *kernel) kernelOwn() (ownAddresses, error) {
	m := ownAddresses{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := k.listRules(family)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			if r.Priority == RuleUplink && r.Src != nil {
				m[ruleSource(r).Addr()] = r.Table - UplinkTableBase
			}
		}
	}
	return m, nil
}

const ownChainName = "own"

// ownChain leads packets that will have an ENI's own address as source to that ENI's chain.
func ownChain(own ownAddresses) chainSpec {
	ch := chainSpec{chain: nftables.Chain{Name: ownChainName}}
	for _, a := range slices.SortedFunc(maps.Keys(own), func(a, b netip.Addr) int { return cmp.Or(cmp.Compare(own[a], own[b]), a.Compare(b)) }) {
		to := uplinkChainName(own[a])
		for _, direction := range []byte{nft.Original, nft.Reply} {
			ch.rules = append(ch.rules, ruleSpec{fmt.Sprintf("%s of ENI %d", a, own[a]),
				nft.Join(nft.CtDirection(direction), nft.CtDestinationIs(nft.Reply-direction, a), nft.GoTo(to))})
		}
	}
	return ch
}
