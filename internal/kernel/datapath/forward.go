package datapath

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Finding is a setting of other software that blocks pods' packets and that no rule of Berth's can override.
type Finding struct {
	Where   string // such as "nftables table ip filter, chain FORWARD"
	Message string // what it does and what to do about it
	Rule    bool   // it is a rule, not the policy of a chain
}

// ForwardPolicy finds packet filters that reject forwarded packets, such as those of pods, by the policy of a chain
// or by a rule that matches all packets. It reads nftables chains, including those of iptables-nft, and the
// iptables-legacy filter table if it is loaded. An ACCEPT of Berth's would not help, as a packet must pass the chains
// of all tables. Rules that cannot be evaluated (condition) may accept pods' packets first, so a Finding is a warning
// and not a failure.
func (n *Node) ForwardPolicy(ctx context.Context) ([]Finding, error) {
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	found, err := n.nftForwardDrops()
	if err != nil {
		return nil, err
	}
	legacy, err := n.legacyForwardDrops()
	if err != nil {
		return found, err
	}
	return append(found, legacy...), nil
}

// nftFamilies are the families whose chains see forwarded packets, with their names and address families.
var nftFamilies = map[nftables.TableFamily]struct {
	name     string
	families []int
}{
	nftables.TableFamilyINet: {"inet", []int{unix.AF_INET, unix.AF_INET6}},
	nftables.TableFamilyIPv4: {"ip", []int{unix.AF_INET}},
	nftables.TableFamilyIPv6: {"ip6", []int{unix.AF_INET6}},
}

func (k *kernel) nftForwardDrops() ([]Finding, error) {
	conn, err := k.nft()
	if err != nil {
		return nil, err
	}
	var found []Finding
	for family, f := range nftFamilies {
		chains, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			return nil, fmt.Errorf("list nftables chains: %w", err)
		}
		for _, c := range chains {
			if c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward || family == nftables.TableFamilyINet && c.Table.Name == NftTable {
				continue
			}
			r, err := nftRules(conn, c).refusal(c.Name, f.families)
			if err != nil {
				return nil, fmt.Errorf("read nftables table %s %s: %w", f.name, c.Table.Name, err)
			}
			if r != nil {
				found = append(found, nftFinding(family, c, *r))
			}
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.Where, b.Where) })
	return found, nil
}

// refusal finds a rule that rejects packets from or to pods of any of the families.
func (read filterChains) refusal(chain string, families []int) (*refusal, error) {
	for _, family := range families {
		for _, sent := range []bool{true, false} {
			if r, err := read.find(chain, flow{sent, family}); r != nil || err != nil {
				return r, err
			}
		}
	}
	return nil, nil
}

// nftRules reads chains of the table that a base chain is in.
func nftRules(conn *nftables.Conn, base *nftables.Chain) filterChains {
	return func(chain string) (rules []filterRule, err error) {
		have, err := conn.GetRules(base.Table, &nftables.Chain{Name: chain})
		if err != nil {
			return nil, err
		}
		for _, r := range have {
			rules = append(rules, nftRule(r.Exprs))
		}
		if chain == base.Name && base.Policy != nil && *base.Policy == nftables.ChainPolicyDrop {
			rules = append(rules, filterRule{does: refuses, policy: true})
		}
		return rules, nil
	}
}

// nftRule evaluates a rule's expressions. The library omits unknown expressions that load a value, but not the
// comparison that follows.
func nftRule(exprs []expr.Any) (r filterRule) {
	var loaded *expr.Meta
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Meta:
			loaded = e
		case *expr.Cmp:
			r.conditions = append(r.conditions, nftCondition(loaded, e))
			loaded = nil
		case *expr.Verdict:
			r.does, r.chain = nftActions[e.Kind], e.Chain
		case *expr.Reject:
			r.does = refuses
		case *expr.Target: // of iptables-nft
			if e.Name == rejectTarget {
				r.does = refuses
			}
		case *expr.Match:
			if e.Name != commentMatch {
				r.conditions = append(r.conditions, condition{})
			}
		default:
			r.conditions = append(r.conditions, condition{})
		}
	}
	return r
}

var nftActions = map[expr.VerdictKind]action{
	expr.VerdictAccept: accepts, expr.VerdictDrop: refuses, expr.VerdictReturn: returns, expr.VerdictJump: jumps, expr.VerdictGoto: leaps,
}

func nftCondition(loaded *expr.Meta, c *expr.Cmp) condition {
	if loaded == nil || loaded.SourceRegister || c.Op != expr.CmpOpEq && c.Op != expr.CmpOpNeq {
		return condition{}
	}
	name, _, whole := bytes.Cut(c.Data, []byte{0})
	link := condition{link: string(name), begins: !whole && len(name) < unix.IFNAMSIZ, not: c.Op == expr.CmpOpNeq}
	switch {
	case loaded.Key == expr.MetaKeyIIFNAME:
		link.about = comesBy
	case loaded.Key == expr.MetaKeyOIFNAME:
		link.about = leavesBy
	case loaded.Key == expr.MetaKeyNFPROTO && slices.Equal(c.Data, []byte{unix.NFPROTO_IPV4}):
		return condition{about: isOfFamily, family: unix.AF_INET, not: link.not}
	case loaded.Key == expr.MetaKeyNFPROTO && slices.Equal(c.Data, []byte{unix.NFPROTO_IPV6}):
		return condition{about: isOfFamily, family: unix.AF_INET6, not: link.not}
	default:
		return condition{}
	}
	return link
}

func nftFinding(family nftables.TableFamily, c *nftables.Chain, r refusal) Finding {
	name := nftFamilies[family].name
	where := fmt.Sprintf("nftables table %s %s, chain %s", name, c.Table.Name, c.Name)
	if c.Table.Name == "filter" && c.Name == forwardName && family != nftables.TableFamilyINet { // as iptables-nft names it
		return iptablesFinding(where, map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "iptables", nftables.TableFamilyIPv6: "ip6tables"}[family], r)
	}
	if r.rule.policy {
		return policyFinding(where, fmt.Sprintf("nft add chain %s %s %s '{ policy accept; }'", name, c.Table.Name, c.Name))
	}
	if c.Table.Name == "firewalld" { // it restores its table after other software changes it
		return ruleFinding(where, r, "stop firewalld: systemctl disable --now firewalld")
	}
	insert := fmt.Sprintf("nft insert rule %s %s %s", name, c.Table.Name, c.Name)
	return ruleFinding(where, r, acceptFirst+fmt.Sprintf(`%s iifname "%s*" accept && %s oifname "%s*" accept`, insert, LinkPrefix, insert, LinkPrefix))
}

// iptablesFinding is a Finding whose remedy is an iptables command.
func iptablesFinding(where, command string, r refusal) Finding {
	if r.rule.policy {
		return policyFinding(where, command+" -P FORWARD ACCEPT")
	}
	insert := command + " -I FORWARD"
	return ruleFinding(where, r, acceptFirst+fmt.Sprintf("%s -i %s+ -j ACCEPT && %s -o %s+ -j ACCEPT", insert, LinkPrefix, insert, LinkPrefix))
}

func policyFinding(where, fix string) Finding {
	return Finding{Where: where, Message: fmt.Sprintf(
		"%s drops forwarded packets unless a rule there accepts them, and with them those of pods; "+
			"accept packets from and to links %s* there, or change its policy: %s", where, LinkPrefix, fix)}
}

// acceptFirst begins the remedy for a rule.
const acceptFirst = "accept packets from and to links " + LinkPrefix + "* before it: "

func ruleFinding(where string, r refusal, fix string) Finding {
	return Finding{Where: where, Rule: true, Message: fmt.Sprintf(
		"%s refuses forwarded packets, and with them those of pods, by a rule of chain %s, unless a rule before it accepts them; %s", where, r.chain, fix)}
}

// Packet filters of other software are evaluated by the rules that match every packet from or to a pod. Rules that
// depend on addresses, ports or connection state are ignored: whether they accept pods' packets is unknown.

// flow is the packets of one family that a pod sends or receives.
type flow struct {
	sent   bool
	family int
}

// answer reports whether something matches all packets of a flow, none, or some.
type answer int8

const (
	no    answer = -1
	maybe answer = 0
	yes   answer = 1
)

// condition is a match of a rule. The zero value is one that cannot be evaluated.
type condition struct {
	about  subject
	link   string // a name, or how it begins
	begins bool
	family int
	not    bool
}

type subject int

const (
	comesBy subject = iota + 1
	leavesBy
	isOfFamily
)

func (c condition) holds(f flow) (a answer) {
	switch {
	case c.about == isOfFamily && c.family == f.family:
		a = yes
	case c.about == isOfFamily:
		a = no
	case c.about == comesBy && f.sent, c.about == leavesBy && !f.sent:
		a = c.isPodLink()
	}
	if c.not {
		return -a
	}
	return a
}

// isPodLink reports whether the condition's link is a pod's.
func (c condition) isPodLink() answer {
	switch {
	case c.begins && strings.HasPrefix(LinkPrefix, c.link):
		return yes
	case strings.HasPrefix(c.link, LinkPrefix):
		return maybe
	}
	return no
}

type action int

const (
	goesOn action = iota // or what cannot be evaluated
	accepts
	refuses
	returns
	jumps
	leaps // and does not come back (goto)
)

// filterRule is a rule of a packet filter, or the policy of a base chain, which is its last rule.
type filterRule struct {
	conditions []condition
	does       action
	chain      string // to which it jumps or leaps
	policy     bool
}

func (r filterRule) matches(f flow) answer {
	a := yes
	for _, c := range r.conditions {
		a = min(a, c.holds(f))
	}
	return a
}

// filterChains reads the rules of a chain.
type filterChains func(chain string) ([]filterRule, error)

// refusal is a rule that rejects pods' packets, and its chain.
type refusal struct {
	chain string
	rule  filterRule
}

// maxJumps is the most chains that are followed; the kernel follows 16 (NFT_JUMP_STACK_SIZE).
const maxJumps = 16

// find follows the rules from a base chain, and returns the first one that rejects all packets of a flow.
func (read filterChains) find(chain string, f flow) (*refusal, error) {
	found, decided, err := read.follow(chain, f, maxJumps)
	if decided || err != nil {
		return found, err
	}
	rules, err := read(chain) // the packets left the chain, for its policy
	if i := slices.IndexFunc(rules, func(r filterRule) bool { return r.policy }); i >= 0 && rules[i].does == refuses {
		found = &refusal{chain, rules[i]}
	}
	return found, err
}

// follow reports whether the chain accepts or rejects the packets.
func (read filterChains) follow(chain string, f flow, deeper int) (found *refusal, decided bool, err error) {
	if deeper == 0 {
		return nil, false, nil
	}
	rules, err := read(chain)
	if err != nil {
		return nil, false, err
	}
	for _, r := range rules {
		if r.does == goesOn || r.matches(f) != yes {
			continue
		}
		switch r.does {
		case accepts:
			return nil, true, nil
		case refuses:
			return &refusal{chain, r}, true, nil
		case returns:
			return nil, false, nil
		}
		if found, decided, err = read.follow(r.chain, f, deeper-1); err != nil || decided || r.does == leaps {
			return found, decided, err
		}
	}
	return nil, false, nil
}
