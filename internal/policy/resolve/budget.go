package resolve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
)

// MaxMembers limits the pods and addresses that the NetworkPolicies of a namespace select in other namespaces, counted once for each
// selector. The operator holds each of them in memory, and users of one namespace can write any number of selectors that select all
// pods of the cluster. For policies that are read while the operator starts, the limit is doubled, because the cluster may have grown
// since they were written.
const MaxMembers = 2_000_000

// budget limits the pods that the policies of a namespace select in other namespaces.
type budget struct {
	inNamespace map[string]map[policy.Ref]bool // policies
	over        map[policy.Ref]refused
	members     int // the budget
	limit       int // members, or twice that while the operator starts
}

func newBudget(members int) budget {
	return budget{inNamespace: map[string]map[policy.Ref]bool{}, over: map[policy.Ref]refused{}, members: members, limit: 2 * members}
}

// refused is a policy that is only partly in force, because its namespace has exhausted the budget.
type refused struct {
	compile.Compiled
	members int // minimum number of members in addition to those of other policies
}

// Loaded applies the limit for new policies from now on.
func Loaded(r *Resolver) { r.budget.limit = r.budget.members }

// Refused describes the part of a policy that is not in force, if any.
func Refused(r *Resolver, ref policy.Ref) (problems []string) {
	if _, is := r.budget.over[ref]; is {
		problems = append(problems, fmt.Sprintf("rules that select pods of other namespaces match nothing: with them, selectors of the NetworkPolicies in namespace %s would have more than %d pods and addresses of other namespaces; delete policies there or let them select fewer pods", ref.Namespace, r.budget.members))
	}
	return problems
}

// isWide reports whether a selector selects pods of namespaces other than the policy's.
func isWide(s compile.Selector) bool { return s.Kind != compile.Nodes && s.Namespace == "" }

// members returns the part of the budget that a selection uses.
func (s *selection) members() int { return len(s.pods) + len(s.elements) }

// set adds or changes a policy, as far as it is within the budget.
func (b *budget) set(r *Resolver, changes *Changes, c compile.Compiled) {
	c = b.within(r, changes, c)
	ref := c.Policy.Ref
	before, had := r.policies[ref]
	if r.policies[ref] = c; b.inNamespace[ref.Namespace] == nil {
		b.inNamespace[ref.Namespace] = map[policy.Ref]bool{}
	}
	b.inNamespace[ref.Namespace][ref] = true
	changes.Policies[ref] = true
	subject := r.selection(changes, c.Subject)
	subject.subjects[ref] = c.Policy
	changes.allPods(subject)
	for _, selector := range c.Sets {
		s := r.selection(changes, selector)
		if len(s.users) == 0 {
			changes.whole(s)
		}
		s.users[ref] = true
	}
	if had {
		r.release(changes, before, &c)
	}
}

// within returns the part of a policy that may be in force. Parts that are already in force stay regardless of the budget.
func (b *budget) within(r *Resolver, changes *Changes, c compile.Compiled) compile.Compiled {
	ref := c.Policy.Ref
	if ref.Namespace == "" {
		return c // only administrators write these
	}
	delete(b.over, ref)
	if !slices.ContainsFunc(slices.Collect(maps.Values(c.Sets)), isWide) { // the common case; counting the others takes long
		return c
	}
	others, total := b.wide(r, ref)
	own := r.policies[ref].Sets
	members, fits := 0, true
	var fresh []*selection
	for _, id := range slices.Sorted(maps.Keys(c.Sets)) {
		if selector := c.Sets[id]; isWide(selector) && !others[id] {
			s := r.selection(changes, selector)
			fresh = append(fresh, s)
			members += s.members()
			if _, had := own[id]; !had && total+members > b.limit {
				fits = false
				break
			}
		}
	}
	if fits {
		return c
	}
	b.over[ref] = refused{c, members}
	c = without(c, func(id policy.SetID) bool {
		_, had := own[id]
		return isWide(c.Sets[id]) && !others[id] && !had
	})
	for _, s := range fresh {
		r.forget(s)
	}
	return c
}

// wide returns the sets with pods of other namespaces in all other policies of a policy's namespace, and their number of members.
func (b *budget) wide(r *Resolver, ref policy.Ref) (sets map[policy.SetID]bool, members int) {
	sets = map[policy.SetID]bool{}
	for other := range b.inNamespace[ref.Namespace] {
		if other == ref {
			continue
		}
		for id, selector := range r.policies[other].Sets {
			if isWide(selector) && !sets[id] {
				sets[id] = true
				members += r.selections[id].members()
			}
		}
	}
	return sets, members
}

// without returns a NetworkPolicy in which rules with certain sets match nothing.
func without(c compile.Compiled, is func(policy.SetID) bool) compile.Compiled {
	p := *c.Policy
	c.Policy = &p
	for d, rules := range p.Rules {
		p.Rules[d] = slices.Clone(rules)
		for i, rule := range rules {
			if slices.ContainsFunc(rule.Peers, is) || slices.ContainsFunc(rule.Named, is) {
				p.Rules[d][i] = policy.Rule{Name: rule.Name, Action: policy.Accept}
			}
		}
	}
	named := p.Sets()
	c.Sets = maps.Clone(c.Sets)
	maps.DeleteFunc(c.Sets, func(id policy.SetID, _ compile.Selector) bool { _, still := named[id]; return !still })
	return c
}

// admit puts refused policies of a namespace in force as far as the budget now allows, oldest first.
func (b *budget) admit(r *Resolver, changes *Changes, namespace string) {
	var refs []policy.Ref
	for ref := range b.over {
		if ref.Namespace == namespace {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, func(x, y policy.Ref) int {
		return cmp.Or(b.over[x].Created.Compare(b.over[y].Created), cmp.Compare(x.Name, y.Name))
	})
	for _, ref := range refs {
		before := b.over[ref]
		if _, total := b.wide(r, ref); total+before.members > b.limit {
			return
		}
		b.set(r, changes, before.Compiled)
		if _, still := b.over[ref]; still {
			return
		}
	}
}
