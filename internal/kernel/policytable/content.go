package policytable

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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
}

// Elements calls yield for each element of a set.
type Elements func(id policy.SetID, yield func(policy.Element))

// content is what a table contains. Keys of chains, sets and maps are their names.
type content struct {
	chains map[string]chain
	sets   map[string]set
}

// chain is a chain that is identified by its text.
type chain struct {
	nft.Chain
	text string // its rules as the kernel takes them
}

// set is a set or a verdict map. Of a policy's set the caller has the elements.
type set struct {
	kind     nftables.Set // without Table and Name
	id       policy.SetID // of a policy's set
	family   int
	elements map[string]string // of others: key, and the chain that a map leads to
}

// ownNames are the chains and sets that do not depend on policies.
const (
	selfSet  = "self"
	endedSet = "ended"
	refuse   = "refuse"
)

// families are both.
var families = [...]int{unix.AF_INET, unix.AF_INET6}

func familyName(name string, family int) string {
	if family == unix.AF_INET6 {
		return name + "6"
	}
	return name + "4"
}

// side names what belongs to a direction.
func side(d policy.Direction) string { return strings.ToLower(d.String()) }

// podMap leads from a pod's address to the chain of its policies, and passMap to those behind the Admin tier.
func podMap(d policy.Direction) string  { return side(d) }
func passMap(d policy.Direction) string { return "pass-" + side(d) }

// newContent builds the content of a table. It returns an error if a rule cannot be encoded.
func newContent(pods []Pod) (content, error) {
	c := content{chains: map[string]chain{}, sets: map[string]set{}}
	for _, family := range families {
		address := nft.AddressType(family)
		for _, d := range policy.Directions {
			for _, name := range []string{podMap(d), passMap(d)} {
				c.sets[familyName(name, family)] = set{nftables.Set{KeyType: address, DataType: nftables.TypeVerdict, IsMap: true}, "", family, map[string]string{}}
			}
		}
		c.sets[familyName(selfSet, family)] = set{nftables.Set{KeyType: nftables.MustConcatSetType(address, address), Concatenation: true}, "", family, map[string]string{}}
		c.sets[familyName(endedSet, family)] = set{nftables.Set{
			KeyType: endedType(family), Concatenation: true, HasTimeout: true, Timeout: endedFor,
		}, "", family, nil}
	}
	err := c.addBase()
	for _, p := range pods {
		if err == nil {
			err = c.addPod(p)
		}
	}
	return c, err
}

// addBase adds what is the same whatever the policies are.
//
//	from-pods, to-pods            what the node forwards
//	to-node                       what pods send to the node itself; behind IPVS, which takes packets for Services there
//	ipvs-from-pods, ipvs-to-pods  what IPVS forwards. What the node's own programs send is not judged: a
//	                              node reaches its pods
//	judge-egress, judge-ingress   a connection's first packet
//	pass-egress, pass-ingress     what a rule of the Admin tier passes on
func (c *content) addBase() error {
	at := func(name string, hook *nftables.ChainHook, priority nftables.ChainPriority, d policy.Direction, first ...nft.Rule) nft.Chain {
		return nft.Base(name, nftables.ChainTypeFilter, hook, &priority, append(first, nft.NewRule("judge", nft.GoTo("judge-"+side(d))))...)
	}
	local := nft.NewRule("the node's own", nft.SourceIsLocal(), nft.Accept())
	chains := []nft.Chain{
		at("from-pods", nftables.ChainHookForward, 0, policy.Egress),
		at("to-pods", nftables.ChainHookForward, 1, policy.Ingress),
		at("to-node", nftables.ChainHookInput, behindIPVS, policy.Egress, nft.NewRule("neighbour discovery", nft.ICMPv6Between(133, 137), nft.Accept())),
		at("ipvs-from-pods", nftables.ChainHookOutput, 0, policy.Egress, local),
		at("ipvs-to-pods", nftables.ChainHookOutput, 1, policy.Ingress, local),
		nft.Regular(endedSet,
			nft.NewRule("not a new connection", nft.Protocol(unix.IPPROTO_TCP), nft.Transport(13, 1), nft.Mask(finSynRstAck), nft.Is(syn), nft.Return()),
			nft.NewRule("ended", nft.GoTo(refuse))),
		nft.Regular(refuse, // a connection that goes on is told; a first packet may come too early, and comes again
			nft.NewRule("refused", nft.Protocol(unix.IPPROTO_TCP), nft.Transport(13, 1), nft.Mask(finSynRstAck), nft.IsNot(syn), nft.Count(), nft.Reset()),
			nft.NewRule("refused", nft.Count(), nft.Drop())),
	}
	for _, d := range policy.Directions {
		judge := []nft.Rule{nft.NewRule("connections go on", nft.CtState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), nft.Accept())}
		var pass []nft.Rule
		for _, family := range families {
			load := nft.Source
			if d == policy.Ingress {
				load = nft.Destination
			}
			judge = append(judge,
				nft.NewRule("an answer of an ended connection", nft.Family(family), nft.Endpoints(family), in(familyName(endedSet, family)), nft.Jump(endedSet)),
				nft.NewRule("a pod reaches itself", nft.Family(family), nft.SourceAndDestination(family), in(familyName(selfSet, family)), nft.Accept()),
				nft.NewRule("by the pod's policies", nft.Family(family), load(family), verdict(familyName(podMap(d), family))))
			pass = append(pass, nft.NewRule("by the next tier", nft.Family(family), load(family), verdict(familyName(passMap(d), family))))
		}
		chains = append(chains, nft.Regular("judge-"+side(d), judge...), nft.Regular("pass-"+side(d), pass...))
	}
	for _, ch := range chains {
		if err := c.addChain(ch); err != nil {
			return err
		}
	}
	return nil
}

// Flags of TCP (RFC 9293, section 3.1).
const (
	syn          = 0x02
	finSynRstAck = 0x17
)

// behindIPVS is a priority at the input hook behind those of IPVS, NF_IP_PRI_NAT_SRC - 2 and - 1
// (net/netfilter/ipvs/ip_vs_core.c, ip_vs_ops4).
const behindIPVS = 200

func in(name string) nft.Exprs      { return nft.In(&nftables.Set{Name: name}) }
func verdict(name string) nft.Exprs { return nft.VerdictOf(&nftables.Set{Name: name}) }

func (c *content) addChain(ch nft.Chain) error {
	if _, there := c.chains[ch.Name]; there {
		return nil
	}
	text, err := nft.Table{Family: nftables.TableFamilyINet, Chains: []nft.Chain{ch}}.Fingerprint()
	if err != nil {
		return err
	}
	c.chains[ch.Name] = chain{ch, text}
	return nil
}

// addPod adds a pod, the chain of its policies in each direction, and what these need.
func (c *content) addPod(p Pod) error {
	for _, d := range policy.Directions {
		first, rest, err := c.addPolicies(d, p.Policies)
		if err != nil {
			return err
		}
		for _, a := range p.Addrs {
			family := rtnl.FamilyOf(a)
			if first != "" {
				c.sets[familyName(podMap(d), family)].elements[string(a.AsSlice())] = first
				c.sets[familyName(selfSet, family)].elements[string(a.AsSlice())+string(a.AsSlice())] = ""
			}
			if first != rest && rest != "" {
				c.sets[familyName(passMap(d), family)].elements[string(a.AsSlice())] = rest
			}
		}
	}
	return nil
}

// addPolicies adds the chain of some policies for a direction, and returns its name, and that of the chain for
// connections that the Admin tier passes. A name is empty if nothing is judged there.
func (c *content) addPolicies(d policy.Direction, policies []*policy.Policy) (first, rest string, err error) {
	var admin, namespaced, baseline []*policy.Policy
	isolated := false
	for _, p := range policies {
		if !p.Judges(d) {
			continue
		}
		switch p.Tier {
		case policy.Admin:
			admin = append(admin, p)
		case policy.Namespaced:
			namespaced, isolated = append(namespaced, p), isolated || p.Isolates[d]
		case policy.Baseline:
			baseline = append(baseline, p)
		}
		if err := c.addPolicy(d, p); err != nil {
			return "", "", err
		}
	}
	then := namespaced
	last := nft.NewRule("no policy accepts it", nft.GoTo(refuse))
	if !isolated {
		then = append(then, baseline...)
		last = nft.NewRule("no policy refuses it", nft.Accept())
	}
	if len(then) > 0 {
		rest = "tiers-" + side(d) + "-" + hash(then)
		if err := c.addJumps(rest, d, then, last); err != nil {
			return "", "", err
		}
	}
	if len(admin) == 0 {
		return rest, rest, nil
	}
	last = nft.NewRule("no rule of the Admin tier decides", nft.Accept())
	if rest != "" {
		last = nft.NewRule("no rule of the Admin tier decides", nft.GoTo(rest))
	}
	first = "admin-" + side(d) + "-" + hash(policies)
	return first, rest, c.addJumps(first, d, admin, last)
}

func (c *content) addJumps(name string, d policy.Direction, policies []*policy.Policy, last nft.Rule) error {
	var rules []nft.Rule
	for _, p := range policies {
		if len(p.Rules[d]) > 0 {
			rules = append(rules, nft.NewRule(comment(p.String()), nft.Jump(policyChain(d, p))))
		}
	}
	return c.addChain(nft.Regular(name, append(rules, last)...))
}

func policyChain(d policy.Direction, p *policy.Policy) string {
	return "policy-" + side(d) + "-" + hash([]*policy.Policy{p})
}

// hash identifies some policies by their names.
func hash(policies []*policy.Policy) string {
	h := sha256.New()
	for _, p := range policies {
		fmt.Fprintf(h, "%d %q %q\n", p.Tier, p.Namespace, p.Name)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// comment shortens a text to what the kernel takes (NFT_USERDATA_MAXLEN is 256 bytes, of which nft(8) prints 128).
func comment(text string) string { return text[:min(len(text), 120)] }

// sorted are the keys of a map in order.
func sorted[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
