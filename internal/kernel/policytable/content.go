package policytable

import (
	"cmp"
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
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
)

// Name is the table's name, in the family inet.
const Name = "berth-policy"

// Pod is a pod of the node with the policies that select it, in the order in which they are judged.
type Pod struct {
	Addrs    []netip.Addr
	Policies []*policy.Policy
	Tunnels  []netip.AddrPort // of its Egresses: gateways, their Services, and the UDP port of Foo over UDP
}

// Elements calls yield for each element of a set.
type Elements func(id policy.SetID, yield func(policy.Element))

// content is what a table contains. Keys of chains, sets, maps and counters are their names.
type content struct {
	chains   map[string]*chain
	sets     map[string]set
	counters map[string]Refused // without Packets
	unions   *unions            // during compilation; if nil, sets are not merged
	aliases  map[string]string  // names of sets in the kernel, where they differ
	// lists is the part that depends on the pods' lists of policies, but not on the pods. If the pointer is the same, only
	// elements of policies' sets have changed.
	lists *content
}

func newContent(u *unions) content {
	return content{chains: map[string]*chain{}, sets: map[string]set{}, counters: map[string]Refused{}, unions: u, aliases: map[string]string{}}
}

// add adds another content.
func (c *content) add(other content) {
	maps.Copy(c.chains, other.chains)
	maps.Copy(c.sets, other.sets)
	maps.Copy(c.counters, other.counters)
}

// flat returns a content that includes its lists.
func (c content) flat() content {
	if c.lists == nil {
		return c
	}
	all := newContent(nil)
	all.add(c)
	all.add(*c.lists)
	all.aliases = c.aliases
	return all
}

// chain is a chain that is identified by its text.
type chain struct {
	nft.Chain
	text string // its encoded rules
}

// set is a set or a verdict map. The caller has the elements of sets that policies name.
type set struct {
	kind     nftables.Set   // without Table and Name
	ids      []policy.SetID // the policy sets whose union it is, sorted
	family   int
	elements map[string]string // of other sets: keys and, for a map, values
	verdict  expr.VerdictKind  // of a map that leads to chains
	fixed    bool              // its name is a hash of its elements
}

// has reports whether a set includes the elements of a set that policies name.
func (s set) has(id policy.SetID) bool {
	_, has := slices.BinarySearch(s.ids, id)
	return has
}

// ownNames are the chains and sets that do not depend on policies.
const (
	selfSet   = "self"
	endedSet  = "ended"
	tunnelSet = "tunnels"
	nodeSet   = "node"  // the node's addresses, in a pod's table
	linkSet   = "links" // the interfaces that a pod's table is for
)

// families are IPv4 and IPv6. eitherFamily contains AF_UNSPEC, for matches of either family.
var (
	families     = [...]int{unix.AF_INET, unix.AF_INET6}
	eitherFamily = [...]int{unix.AF_UNSPEC, unix.AF_INET, unix.AF_INET6}
)

// ofFamily matches a family; AF_UNSPEC matches both.
func ofFamily(family int) nft.Exprs {
	if family == unix.AF_UNSPEC {
		return nil
	}
	return nft.Family(family)
}

func familyName(name string, family int) string {
	if family == unix.AF_INET6 {
		return name + "6"
	}
	return name + "4"
}

// way is a way in which connections are judged: by direction, or by the inner header if they leave through an egress tunnel.
type way struct {
	policy.Direction
	tunnelled bool
}

var (
	ingress   = way{Direction: policy.Ingress}
	egress    = way{Direction: policy.Egress}
	tunnelled = way{Direction: policy.Egress, tunnelled: true}
	ways      = [...]way{ingress, egress, tunnelled}
)

// name is part of the names of objects of a way.
func (w way) name() string {
	if w.tunnelled {
		return "tunnelled"
	}
	return strings.ToLower(w.String())
}

// podMap maps a pod's address to the ID of the chain of its policies, and passMap to the ID of the chain after the Admin tier. When an
// element that leads to a chain is added, the kernel validates everything that may follow, for all pods. With IDs, it need not do so
// when a pod is added or removed.
func (w way) podMap() string  { return w.name() }
func (w way) passMap() string { return "pass-" + w.name() }

// chainMap maps the IDs of podMap or passMap to chains. Each has its own map, because the kernel rejects possible loops of chains.
func chainMap(of string) string { return "chains-" + of }

// chainID is the ID of a chain whose name ends with a hash, as text of the length of idType.
func chainID(chain string) string { return chain[len(chain)-int(idType.Bytes):] }

// idType is the type of chain IDs: text, so that nft(8) shows it.
var idType = nftables.TypeIFName

// refuse is the name of the chain that rejects packets, and of its counter.
func (w way) refuse() string { return "refuse-" + w.name() }

// destination loads the destination address.
func (w way) destination(family int) nft.Exprs {
	if w.tunnelled {
		return nft.InnerDestination(family)
	}
	return nft.Destination(family)
}

// own loads the address of the pod whose policies apply. peer loads the other address.
func (w way) own(family int) nft.Exprs {
	if w.Direction == policy.Ingress {
		return nft.Destination(family)
	}
	return nft.Source(family)
}

func (w way) peer(family int) nft.Exprs {
	if w.Direction == policy.Ingress {
		return nft.Source(family)
	}
	return w.destination(family)
}

// portsTo matches some ports.
func (w way) portsTo(family int, p policy.Ports) nft.Exprs {
	if w.tunnelled {
		return nft.InnerPortsTo(family, p.Protocol, p.First, p.Last)
	}
	return nft.PortsTo(p.Protocol, p.First, p.Last)
}

// portOf matches a protocol and loads the destination port.
func (w way) portOf(family int, protocol byte) nft.Exprs {
	if w.tunnelled {
		return nft.InnerPortOf(family, protocol)
	}
	return nft.PortOf(protocol)
}

// families returns the families for which ports are matched: each separately if the match depends on the family.
func (w way) families() []int {
	if w.tunnelled {
		return families[:]
	}
	return []int{unix.AF_UNSPEC}
}

// protocolAndPort loads the protocol and the destination port.
func (w way) protocolAndPort(family int) nft.Exprs {
	if w.tunnelled {
		return nft.InnerProtocolAndPort(family)
	}
	return nft.ProtocolAndPort()
}

func (w way) destinationAndPort(family int) nft.Exprs {
	if w.tunnelled {
		return nft.InnerDestinationAndPort(family)
	}
	return nft.DestinationAndPort(family)
}

// addChains adds the chains of lists of policies to the maps, also for pods without an address: adding an element that leads to a
// chain makes the kernel validate everything that may follow, and the pod's ADD would wait for that.
func (c *content) addChains(by *judged) {
	for i, w := range ways {
		if first, rest := by.first[i], by.rest[i]; first != "" {
			c.sets[chainMap(w.podMap())].elements[chainID(first)] = first
			if first != rest && rest != "" {
				c.sets[chainMap(w.passMap())].elements[chainID(rest)] = rest
			}
		}
	}
}

// addPod adds a pod to the maps.
func (c *content) addPod(p Pod, by *judged) {
	c.addChains(by)
	for _, a := range p.Addrs {
		family, key := rtnl.FamilyOf(a), string(a.AsSlice())
		elements := func(name string) map[string]string { return c.sets[familyName(name, family)].elements }
		for i, w := range ways {
			first, rest := by.first[i], by.rest[i]
			if first == "" {
				continue
			}
			elements(w.podMap())[key] = chainID(first)
			elements(selfSet)[key+key] = ""
			if first != rest && rest != "" {
				elements(w.passMap())[key] = chainID(rest)
			}
		}
		for _, t := range p.Tunnels {
			if rtnl.FamilyOf(t.Addr()) == family {
				elements(tunnelSet)[string(tunnelKey(a, t))] = ""
			}
		}
	}
}

// addSets adds the sets and maps that do not depend on policies.
func (c *content) addSets() {
	for _, w := range ways {
		for _, of := range []string{w.podMap(), w.passMap()} {
			c.sets[chainMap(of)] = set{
				kind:     nftables.Set{KeyType: idType, DataType: nftables.TypeVerdict, IsMap: true},
				elements: map[string]string{}, verdict: expr.VerdictGoto,
			}
		}
	}
	for _, family := range families {
		address := nft.AddressType(family)
		add := func(name string, kind nftables.Set) {
			c.sets[familyName(name, family)] = set{kind: kind, family: family, elements: map[string]string{}}
		}
		for _, w := range ways {
			add(w.podMap(), nftables.Set{KeyType: address, DataType: idType, IsMap: true})
			add(w.passMap(), nftables.Set{KeyType: address, DataType: idType, IsMap: true})
		}
		add(selfSet, nftables.Set{KeyType: nftables.MustConcatSetType(address, address), Concatenation: true})
		add(tunnelSet, nftables.Set{KeyType: nftables.MustConcatSetType(address, address, nftables.TypeInetService), Concatenation: true})
		c.sets[familyName(endedSet, family)] = set{kind: nftables.Set{
			KeyType: endedType(family), Concatenation: true, HasTimeout: true, Timeout: endedFor,
		}, family: family}
	}
}

// addChain adds a chain unless it exists.
func (c *content) addChain(ch nft.Chain) error {
	if _, there := c.chains[ch.Name]; there {
		return nil
	}
	var comments []string // part of the text, because Present compares them
	for _, r := range ch.Rules {
		comments = append(comments, r.Comment)
	}
	text, err := nft.Table{Family: nftables.TableFamilyINet, Chains: []nft.Chain{ch}}.Fingerprint(comments)
	if err != nil {
		return err
	}
	c.chains[ch.Name] = &chain{ch, text}
	return nil
}

// addTiers adds the chain of a list of policies for a way, and returns its name and the name of the chain for connections that
// the Admin tier passes. A name is empty if no policy applies there. addPolicy adds the chains of policies in jumps.
func (c *judged) addTiers(w way, policies []*policy.Policy) (first, rest string, err error) {
	var admin, namespaced, baseline []*policy.Policy
	var isolating []policy.Ref
	for _, p := range policies {
		if !p.Judges(w.Direction) {
			continue
		}
		switch p.Tier {
		case policy.Admin:
			admin = append(admin, p)
		case policy.Namespaced:
			namespaced = append(namespaced, p)
			if p.Isolates[w.Direction] {
				isolating = append(isolating, p.Ref)
			}
		case policy.Baseline:
			baseline = append(baseline, p)
		}
	}
	then := namespaced
	if len(isolating) == 0 {
		then = append(then, baseline...)
	}
	if len(then) > 0 {
		rest = "tiers-" + w.name() + "-" + hash(then)
		last := nft.NewRule("no policy refuses it", nft.Accept())
		if len(isolating) > 0 {
			c.counters[rest] = Refused{Direction: w.Direction, Policies: isolating}
			last = nft.NewRule("no policy accepts it", nft.CountAs(rest), nft.GoTo(w.refuse()))
		}
		rules, others, err := c.addAccepts(w, namespaced)
		if err != nil {
			return "", "", err
		}
		if len(isolating) == 0 {
			others = append(others, baseline...)
		}
		if err := c.addJumps(rest, w, rules, others, last); err != nil {
			return "", "", err
		}
	}
	if len(admin) == 0 {
		return rest, rest, nil
	}
	last := nft.NewRule("no rule of the Admin tier decides", nft.Accept())
	if rest != "" {
		last = nft.NewRule("no rule of the Admin tier decides", nft.GoTo(rest))
	}
	first = "admin-" + w.name() + "-" + hash(policies)
	return first, rest, c.addJumps(first, w, nil, admin, last)
}

func (c *judged) addJumps(name string, w way, rules []nft.Rule, policies []*policy.Policy, last nft.Rule) error {
	for _, p := range policies {
		if len(p.Rules[w.Direction]) > 0 {
			c.jumps[p] = true
			rules = append(rules, nft.NewRule(comment(p.String()), nft.Jump(policyChain(w, p))))
		}
	}
	return c.addChain(nft.Regular(name, append(rules, last)...))
}

func policyChain(w way, p *policy.Policy) string {
	return "policy-" + w.name() + "-" + hash([]*policy.Policy{p})
}

// hash identifies a list of policies by their names.
func hash(policies []*policy.Policy) string {
	h := sha256.New()
	for _, p := range policies {
		fmt.Fprintf(h, "%d %q %q\n", p.Tier, p.Namespace, p.Name)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// comment truncates a text to the length that the kernel accepts (NFT_USERDATA_MAXLEN is 256 bytes, of which nft(8) prints 128).
func comment(text string) string { return text[:min(len(text), 120)] }

// sorted returns the sorted keys of a map, or those of wanted entries.
func sorted[K cmp.Ordered, V any](m map[K]V, wanted ...func(K, V) bool) []K {
	var keys []K
	for k, v := range m {
		if !slices.ContainsFunc(wanted, func(w func(K, V) bool) bool { return !w(k, v) }) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}
