package policytable

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
)

// addPolicy adds the chain of a policy's rules for a way, and the sets that they name.
func (c *content) addPolicy(w way, p *policy.Policy) error {
	if len(p.Rules[w.Direction]) == 0 {
		return nil
	}
	name := policyChain(w, p)
	var rules []nft.Rule
	for i := range p.Rules[w.Direction] {
		r := &p.Rules[w.Direction][i]
		do := nft.Accept()
		switch r.Action {
		case policy.Accept:
		case policy.Pass:
			do = nft.GoTo("pass-" + w.name())
		case policy.Deny:
			c.counters[name] = Refused{Direction: w.Direction, Policies: []policy.Ref{p.Ref}}
			do = nft.Join(nft.CountAs(name), nft.GoTo(w.refuse()))
		}
		rules = append(rules, c.rulesOf(w, r, i, do)...)
	}
	return c.addChain(nft.Regular(name, rules...))
}

// rulesOf are the rules of nftables for one rule: each of its peers with each of its ports.
func (c *content) rulesOf(w way, r *policy.Rule, index int, do nft.Exprs) []nft.Rule {
	text := fmt.Sprintf("%s rule %d %s", w.Direction, index, r.Action)
	if r.Name != "" {
		text += " " + r.Name
	}
	var rules []nft.Rule
	for _, peer := range c.peersOf(w, r) {
		for _, port := range c.portsOf(w, r, peer.family) {
			rules = append(rules, nft.NewRule(comment(text), peer.match, port, do))
		}
	}
	return rules
}

// peerMatch matches some peers of a rule, of one family; 0: of both.
type peerMatch struct {
	family int
	match  nft.Exprs
}

func (c *content) peersOf(w way, r *policy.Rule) []peerMatch {
	if r.AnyPeer {
		if len(r.Named) == 0 && !w.tunnelled || r.AnyPort {
			return []peerMatch{{}}
		}
		return []peerMatch{{unix.AF_INET, nft.Family(unix.AF_INET)}, {unix.AF_INET6, nft.Family(unix.AF_INET6)}}
	}
	var list []peerMatch
	for _, family := range families {
		add := func(name string) {
			list = append(list, peerMatch{family, nft.Join(nft.Family(family), w.peer(family), in(name))})
		}
		if blocks := slices.DeleteFunc(slices.Clone(r.Blocks), func(b netip.Prefix) bool { return rtnl.FamilyOf(b.Addr()) != family }); len(blocks) > 0 {
			add(c.addBlocks(family, blocks))
		}
		for _, id := range r.Peers {
			add(c.addSet(family, id))
		}
	}
	return list
}

// portsOf match the ports of a rule, one after the other, for peers of a family.
func (c *content) portsOf(w way, r *policy.Rule, family int) []nft.Exprs {
	if r.AnyPort {
		return []nft.Exprs{nil}
	}
	var list []nft.Exprs
	for _, p := range r.Ports {
		list = append(list, w.portsTo(family, p))
	}
	for _, id := range r.Named {
		list = append(list, nft.Join(w.destinationAndPort(family), in(c.addTargets(family, id))))
	}
	return list
}

// addSet adds the set of addresses of a family and returns its name.
func (c *content) addSet(family int, id policy.SetID) string {
	return c.addPolicySet(family, id, nftables.Set{KeyType: nft.AddressType(family)})
}

// addTargets adds the set of named ports of a family and returns its name.
func (c *content) addTargets(family int, id policy.SetID) string {
	key := nftables.MustConcatSetType(nft.AddressType(family), nftables.TypeInetProto, nftables.TypeInetService)
	return c.addPolicySet(family, id, nftables.Set{KeyType: key, Concatenation: true})
}

func (c *content) addPolicySet(family int, id policy.SetID, kind nftables.Set) string {
	name := familyName(string(id)+"-ip", family)
	c.sets[name] = set{kind, id, family, nil}
	return name
}

// key is an element of a policy's set as the kernel has it; ok is false if it is of the other family.
func (s set) key(e policy.Element) (key []byte, ok bool) {
	if rtnl.FamilyOf(e.Addr) != s.family {
		return nil, false
	}
	key = e.Addr.AsSlice()
	if s.kind.Concatenation {
		key = append(key, e.Protocol, 0, 0, 0, byte(e.Port>>8), byte(e.Port), 0, 0)
	}
	return key, true
}

// addBlocks adds the set of some networks and returns its name.
func (c *content) addBlocks(family int, blocks []netip.Prefix) string {
	h := sha256.New()
	for _, b := range blocks {
		fmt.Fprintln(h, b)
	}
	name := familyName("blocks-"+hex.EncodeToString(h.Sum(nil)[:8])+"-ip", family)
	if _, there := c.sets[name]; !there {
		s := set{nftables.Set{KeyType: nft.AddressType(family), Interval: true}, "", family, map[string]string{}}
		for _, b := range blocks {
			s.elements[string(b.Masked().Addr().AsSlice())+string([]byte{byte(b.Bits())})] = ""
		}
		c.sets[name] = s
	}
	return name
}

// differ are the elements that have to go and to come.
func (s set) differ(from set) (gone, come []nftables.SetElement) {
	for _, key := range sorted(from.elements) {
		if now, still := s.elements[key]; !still || now != from.elements[key] {
			gone = append(gone, from.element(key)...)
		}
	}
	for _, key := range sorted(s.elements) {
		if before, had := from.elements[key]; !had || before != s.elements[key] {
			come = append(come, s.element(key)...)
		}
	}
	return gone, come
}

// element is an element as netlink takes it; a network is two.
func (s set) element(key string) []nftables.SetElement {
	switch {
	case s.kind.Interval:
		a, _ := netip.AddrFromSlice([]byte(key[:len(key)-1]))
		return nft.Intervals([]netip.Prefix{netip.PrefixFrom(a, int(key[len(key)-1]))})
	case s.kind.IsMap:
		return []nftables.SetElement{{Key: []byte(key), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: s.elements[key]}}}
	}
	return []nftables.SetElement{{Key: []byte(key)}}
}
