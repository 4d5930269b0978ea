package policytable

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/policy"
)

// unions merges sets of addresses, so that one lookup replaces many. A union repeats elements: each address takes memory in each
// union. Large sets are therefore not merged, and the total size of all unions is limited.
type unions struct {
	elements Elements
	big      map[policy.SetID]bool // sets that are too large for unions
	sizes    map[policy.SetID]int  // during one Apply
	weights  map[string]int        // number of elements of each union in the table
	room     int                   // number of elements left for new unions
}

const (
	mostMerged   = 1000           // maximum number of elements of a set when it is merged
	mostGrown    = 4 * mostMerged // a set that has grown beyond this is removed from its unions
	mostInUnions = 1 << 18        // maximum number of elements of all unions when they are created
)

func newUnions() *unions {
	return &unions{big: map[policy.SetID]bool{}, weights: map[string]int{}, room: mostInUnions}
}

// begin begins an Apply.
func (u *unions) begin(elements Elements) { u.elements, u.sizes = elements, map[policy.SetID]int{} }

// prune forgets unions and large sets that are no longer in the table.
func (u *unions) prune(c content) {
	u.room = mostInUnions
	named := map[policy.SetID]bool{}
	for _, s := range c.sets {
		for _, id := range s.ids {
			named[id] = true
		}
	}
	maps.DeleteFunc(u.big, func(id policy.SetID, _ bool) bool { return !named[id] })
	maps.DeleteFunc(u.weights, func(name string, weight int) bool {
		_, used := c.sets[familyName(name, unix.AF_INET)]
		if used {
			u.room -= weight
		}
		return !used
	})
}

// size returns the number of a set's elements. ok is false if the set is too large for a union.
func (u *unions) size(id policy.SetID) (n int, ok bool) {
	if u.big[id] {
		return 0, false
	}
	n, known := u.sizes[id]
	if !known {
		n = count(u.elements, id)
		u.sizes[id] = n
	}
	if n > mostMerged {
		u.big[id] = true
		return 0, false
	}
	return n, true
}

func count(elements Elements, id policy.SetID) (n int) {
	elements(id, func(policy.Element) { n++ })
	return n
}

// split divides sets into those of a union, with its name, and those that are not merged. A nil receiver merges nothing.
func (u *unions) split(ids []policy.SetID) (name string, merged, alone []policy.SetID) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	if u == nil {
		return "", nil, ids
	}
	total := 0
	for _, id := range ids {
		if n, ok := u.size(id); ok {
			merged, total = append(merged, id), total+n
		} else {
			alone = append(alone, id)
		}
	}
	if len(merged) < 2 {
		return "", nil, ids
	}
	name = "any-" + hashOf(merged)
	if _, has := u.weights[name]; !has {
		if total > u.room {
			return "", nil, ids
		}
		u.weights[name] = total
		u.room -= total
	}
	return name, merged, alone
}

// outgrown returns those of the changed sets in unions that have become too large.
func (u *unions) outgrown(in *content, elements Elements, changed policy.SetChanges) (list map[policy.SetID]bool) {
	for id, change := range changed {
		if len(change.Elements) == 0 || !in.lists.inUnion(id) || count(elements, id) <= mostGrown {
			continue
		}
		if list == nil {
			list = map[policy.SetID]bool{}
		}
		list[id] = true
	}
	return list
}

// inUnion reports whether a set is in a union.
func (c *content) inUnion(ids ...policy.SetID) bool {
	for _, s := range c.sets {
		if len(s.ids) > 1 && slices.ContainsFunc(ids, s.has) {
			return true
		}
	}
	return false
}

// Merged rules exist once for each combination of policies. Policies with more rules, ports and peers than mostParts therefore keep a
// chain that all of their pods share, as do policies of a pod beyond the other limits, and policies with named ports, which rarely match.
const mostParts, mostPartsOfPod, mostAlone = 50, 1000, 10

// cost is the cost of merging rules.
type cost struct {
	parts    int // rules, ports and peers
	alone    int // sets that are too large for a union
	elements int // maximum number of elements of unions
}

// of returns the cost of rules. ok is false if they must not be merged.
func (u *unions) of(rules []policy.Rule) (c cost, ok bool) {
	c.parts = len(rules)
	for _, r := range rules {
		if len(r.Named) > 0 {
			return c, false
		}
		c.parts += len(r.Peers) + len(r.Blocks) + len(r.Ports)
		for _, id := range r.Peers {
			n, small := u.size(id)
			if !small {
				c.alone++
			}
			c.elements += n * max(1, len(r.Ports))
		}
	}
	return c, c.parts <= mostParts
}

// portKey identifies ports that rules of several policies may have in common: all ports, or a range of a protocol.
type portKey struct {
	policy.Ports
	any bool
}

// peerSum collects the peers of several rules.
type peerSum struct {
	any    bool
	ids    map[policy.SetID]bool
	blocks map[netip.Prefix]bool
}

// add adds the peers of a rule.
func (s *peerSum) add(r *policy.Rule) {
	s.any = s.any || r.AnyPeer
	for _, id := range r.Peers {
		s.ids[id] = true
	}
	for _, b := range r.Blocks {
		s.blocks[b] = true
	}
}

// rule returns a rule for these peers and any port.
func (s *peerSum) rule() policy.Rule {
	if s.any {
		return policy.Rule{AnyPeer: true, AnyPort: true}
	}
	return policy.Rule{AnyPort: true, Peers: slices.Sorted(maps.Keys(s.ids)), Blocks: policy.Disjoint(slices.Collect(maps.Keys(s.blocks)))}
}

// accepted is a group of ports with the same peers.
type accepted struct {
	peers  policy.Rule // for any port
	any    bool
	single []policy.Ports
	ranges []policy.Ports
}

// acceptedBy merges the rules of NetworkPolicies, in order. A connection is accepted if any of them accepts it.
func acceptedBy(w way, policies []*policy.Policy) (list []*accepted) {
	sums := map[portKey]*peerSum{}
	for _, p := range policies {
		for i := range p.Rules[w.Direction] {
			r := &p.Rules[w.Direction][i]
			add := func(k portKey) {
				if sums[k] == nil {
					sums[k] = &peerSum{ids: map[policy.SetID]bool{}, blocks: map[netip.Prefix]bool{}}
				}
				sums[k].add(r)
			}
			if r.AnyPort {
				add(portKey{any: true})
				continue
			}
			for _, ports := range r.Ports {
				add(portKey{Ports: ports})
			}
		}
	}
	groups := map[string]*accepted{}
	for k, sum := range sums {
		rule := sum.rule()
		key := fmt.Sprint(rule)
		g := groups[key]
		if g == nil {
			g = &accepted{peers: rule}
			groups[key] = g
		}
		switch {
		case k.any:
			g.any = true
		case k.First == k.Last:
			g.single = append(g.single, k.Ports)
		default:
			g.ranges = append(g.ranges, k.Ports)
		}
	}
	for _, key := range sorted(groups) {
		list = append(list, groups[key])
	}
	return list
}

const acceptComment = "a NetworkPolicy accepts it"

// addAccepts adds the merged rules of NetworkPolicies, so that a packet takes few lookups regardless of their number: a map leads
// from ports to the chain of the peers that may reach them. It returns these rules, and the policies that are too large to merge.
func (c *content) addAccepts(w way, policies []*policy.Policy) (rules []nft.Rule, rest []*policy.Policy, err error) {
	var small []*policy.Policy
	room := cost{mostPartsOfPod, mostAlone, c.unions.room}
	for _, p := range policies {
		n, ok := c.unions.of(p.Rules[w.Direction])
		if !ok || n.parts > room.parts || n.alone > room.alone || n.elements > room.elements {
			rest = append(rest, p)
			continue
		}
		room = cost{room.parts - n.parts, room.alone - n.alone, room.elements - n.elements}
		small = append(small, p)
	}
	ports := map[string]string{}
	var behind []nft.Rule
	for _, a := range acceptedBy(w, small) {
		var peers []nft.Exprs
		for _, family := range eitherFamily {
			peers = append(peers, c.peersOf(w, &a.peers, family)...)
		}
		if len(peers) == 0 {
			continue
		}
		if a.any {
			rules = append(rules, accepting(peers)...)
		}
		if len(a.single)+len(a.ranges) == 0 {
			continue
		}
		chain, err := c.addPeers(w, peers)
		if err != nil {
			return nil, nil, err
		}
		for _, p := range a.single {
			ports[string(portElement(p))] = chain
		}
		for _, family := range w.families() {
			for _, to := range c.portsOf(w, &policy.Rule{Ports: a.ranges}, family) {
				behind = append(behind, nft.NewRule(acceptComment, ofFamily(family), to, nft.Jump(chain)))
			}
		}
	}
	if len(ports) > 0 {
		name := c.addPortMap(ports)
		for _, family := range w.families() {
			rules = append(rules, nft.NewRule("by port", ofFamily(family), w.protocolAndPort(family), verdict(name)))
		}
	}
	return append(rules, behind...), rest, nil
}

func accepting(peers []nft.Exprs) (rules []nft.Rule) {
	for _, p := range peers {
		rules = append(rules, nft.NewRule(acceptComment, p, nft.Accept()))
	}
	return rules
}

// addPeers adds the chain that accepts some peers, and returns its name. The ports of all pods with the same peers share it.
func (c *content) addPeers(w way, peers []nft.Exprs) (string, error) {
	ch := nft.Regular("", accepting(peers)...)
	id, err := nft.Table{Family: nftables.TableFamilyINet, Chains: []nft.Chain{ch}}.Fingerprint()
	if err != nil {
		return "", err
	}
	ch.Name = "peers-" + w.name() + "-" + id
	return ch.Name, c.addChain(ch)
}

// addPortMap adds a map from protocols and ports to chains, and returns its name.
func (c *content) addPortMap(ports map[string]string) string {
	var text strings.Builder
	for _, key := range sorted(ports) {
		fmt.Fprintf(&text, "%x %s\n", key, ports[key])
	}
	name := "ports-to-" + hashOf(text.String())
	c.sets[name] = set{kind: nftables.Set{
		KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService), Concatenation: true,
		DataType: nftables.TypeVerdict, IsMap: true,
	}, elements: ports, verdict: expr.VerdictJump, fixed: true}
	return name
}

// portElement returns a port as a key. Each part starts at a 32-bit word.
func portElement(p policy.Ports) []byte {
	return []byte{p.Protocol, 0, 0, 0, byte(p.First >> 8), byte(p.First), 0, 0}
}

func hashOf(v any) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q", v)
	return hex.EncodeToString(h.Sum(nil)[:12])
}
