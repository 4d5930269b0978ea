package policytable

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
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

// addPolicy adds the chain of a policy's rules for a way, and the sets in these rules.
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
		of, err := c.rulesOf(w, p, r, i, do)
		if err != nil {
			return err
		}
		rules = append(rules, of...)
	}
	return c.addChain(nft.Regular(name, rules...))
}

// rulesOf returns the nftables rules for one rule of a policy. The number of rules, and the cost of a packet, grow with the sum of
// peers and ports, not the product: if a rule has several of both, a chain of peers leads to a chain of ports, which returns to the
// next rule of the policy.
func (c *content) rulesOf(w way, p *policy.Policy, r *policy.Rule, index int, do nft.Exprs) ([]nft.Rule, error) {
	text := fmt.Sprintf("%s rule %d %s", w.Direction, index, r.Action)
	if r.Name != "" {
		text += " " + r.Name
	}
	text = comment(text)
	var rules []nft.Rule
	for _, family := range eitherFamily {
		peers := c.peersOf(w, r, family)
		if len(peers) == 0 {
			continue
		}
		ports := c.portsOf(w, r, family)
		if len(peers) == 1 || len(ports) == 1 {
			for _, peer := range peers {
				for _, port := range ports {
					rules = append(rules, nft.NewRule(text, peer, port, do))
				}
			}
			continue
		}
		name := fmt.Sprintf("%s-%d", policyChain(w, p), index)
		ofPeers, ofPorts := familyName(name+"-peers", family), familyName(name+"-ports", family)
		var from, to []nft.Rule
		for _, peer := range peers {
			from = append(from, nft.NewRule(text, peer, nft.GoTo(ofPorts)))
		}
		for _, port := range ports {
			to = append(to, nft.NewRule(text, port, do))
		}
		if err := errors.Join(c.addChain(nft.Regular(ofPeers, from...)), c.addChain(nft.Regular(ofPorts, to...))); err != nil {
			return nil, err
		}
		rules = append(rules, nft.NewRule(text, nft.Family(family), nft.Jump(ofPeers)))
	}
	return rules, nil
}

// peersOf returns a match for each peer of a rule in a family; AF_UNSPEC stands for peers of either family.
func (c *content) peersOf(w way, r *policy.Rule, family int) (list []nft.Exprs) {
	if r.AnyPeer {
		switch both := len(r.Named) == 0 && !w.tunnelled || r.AnyPort; {
		case both != (family == unix.AF_UNSPEC):
			return nil
		case both:
			return []nft.Exprs{nil}
		}
		return []nft.Exprs{nft.Family(family)}
	}
	if family == unix.AF_UNSPEC {
		return nil
	}
	add := func(name string) {
		list = append(list, nft.Join(nft.Family(family), w.peer(family), in(name)))
	}
	if blocks := slices.DeleteFunc(slices.Clone(r.Blocks), func(b netip.Prefix) bool { return rtnl.FamilyOf(b.Addr()) != family }); len(blocks) > 0 {
		add(c.addBlocks(family, blocks))
	}
	union, merged, alone := c.unions.split(r.Peers)
	if union != "" {
		add(c.addUnion(family, union, merged))
	}
	for _, id := range alone {
		add(c.addSet(family, id))
	}
	return list
}

// portsOf returns matches for the ports of a rule and peers of a family: one for each protocol, and one for each named port.
func (c *content) portsOf(w way, r *policy.Rule, family int) []nft.Exprs {
	if r.AnyPort {
		return []nft.Exprs{nil}
	}
	var list []nft.Exprs
	ports := disjoint(r.Ports)
	for len(ports) > 0 {
		n := slices.IndexFunc(ports, func(p policy.Ports) bool { return p.Protocol != ports[0].Protocol })
		if n < 0 {
			n = len(ports)
		}
		if n == 1 {
			list = append(list, w.portsTo(family, ports[0]))
		} else {
			list = append(list, nft.Join(w.portOf(family, ports[0].Protocol), in(c.addPorts(ports[:n]))))
		}
		ports = ports[n:]
	}
	for _, id := range r.Named {
		list = append(list, nft.Join(w.destinationAndPort(family), in(c.addTargets(family, id))))
	}
	return list
}

// disjoint sorts ports by protocol and number, and merges those that overlap or follow each other.
func disjoint(ports []policy.Ports) (list []policy.Ports) {
	for _, p := range slices.SortedFunc(slices.Values(ports), func(a, b policy.Ports) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First))
	}) {
		n := len(list) - 1
		switch {
		case p.First > p.Last: // empty
		case n >= 0 && list[n].Protocol == p.Protocol && int(p.First) <= int(list[n].Last)+1:
			list[n].Last = max(list[n].Last, p.Last)
		default:
			list = append(list, p)
		}
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
	c.sets[name] = set{kind: kind, ids: []policy.SetID{id}, family: family}
	return name
}

// addUnion adds the union of sets of addresses of a family and returns its name.
func (c *content) addUnion(family int, union string, ids []policy.SetID) string {
	name := familyName(union, family)
	c.sets[name] = set{kind: nftables.Set{KeyType: nft.AddressType(family)}, ids: ids, family: family}
	return name
}

// key returns the kernel's key of an element of a policy's set. ok is false if the element is of the other family.
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

// addBlocks adds a set of networks and returns its name.
func (c *content) addBlocks(family int, blocks []netip.Prefix) string {
	h := sha256.New()
	for _, b := range blocks {
		fmt.Fprintln(h, b)
	}
	name := familyName("blocks-"+hex.EncodeToString(h.Sum(nil)[:8])+"-ip", family)
	if _, there := c.sets[name]; !there {
		s := set{kind: nftables.Set{KeyType: nft.AddressType(family), Interval: true}, family: family, elements: map[string]string{}, fixed: true}
		for _, b := range blocks {
			s.elements[string(b.Masked().Addr().AsSlice())+string([]byte{byte(b.Bits())})] = ""
		}
		c.sets[name] = s
	}
	return name
}

// addPorts adds a set of ports of one protocol and returns its name.
func (c *content) addPorts(ports []policy.Ports) string {
	s := set{kind: nftables.Set{KeyType: nftables.TypeInetService, Interval: true}, elements: map[string]string{}, fixed: true}
	h := sha256.New()
	for _, p := range ports {
		fmt.Fprintln(h, p.First, p.Last)
		s.elements[string(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, p.First), p.Last))] = ""
	}
	name := "ports-" + hex.EncodeToString(h.Sum(nil)[:8])
	c.sets[name] = s
	return name
}

// differ returns the elements to remove and to add.
func (s set) differ(from set) (gone, come []nftables.SetElement) {
	for _, key := range sorted(from.elements, func(key, before string) bool {
		now, still := s.elements[key]
		return !still || now != before
	}) {
		gone = append(gone, from.element(key)...)
	}
	for _, key := range sorted(s.elements, func(key, now string) bool {
		before, had := from.elements[key]
		return !had || before != now
	}) {
		come = append(come, s.element(key)...)
	}
	return gone, come
}

// element returns an element in netlink's form. Networks and port ranges consist of two.
func (s set) element(key string) []nftables.SetElement {
	switch {
	case s.kind.Interval && s.family == unix.AF_UNSPEC:
		list := []nftables.SetElement{{Key: []byte(key[:2])}}
		if last := binary.BigEndian.Uint16([]byte(key[2:])); last < 65535 {
			list = append(list, nftables.SetElement{Key: binary.BigEndian.AppendUint16(nil, last+1), IntervalEnd: true})
		}
		return list
	case s.kind.Interval:
		a, _ := netip.AddrFromSlice([]byte(key[:len(key)-1]))
		return nft.Intervals([]netip.Prefix{netip.PrefixFrom(a, int(key[len(key)-1]))})
	case s.kind.IsMap && s.verdict == 0:
		return []nftables.SetElement{{Key: []byte(key), Val: []byte(s.elements[key])}}
	case s.kind.IsMap:
		return []nftables.SetElement{{Key: []byte(key), VerdictData: &expr.Verdict{Kind: s.verdict, Chain: s.elements[key]}}}
	}
	return []nftables.SetElement{{Key: []byte(key)}}
}
