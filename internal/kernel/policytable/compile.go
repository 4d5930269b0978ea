package policytable

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/berthnet/berth/internal/policy"
)

// compiler builds the content of a table. It caches compiled policies, so that a change of a pod does not compile policies
// again. Policies are immutable: a changed policy has another pointer.
type compiler struct {
	ids      uint64
	base     base
	inside   *inside
	own      *content // chains of base
	unions   *unions
	lists    *content // of pods
	policies map[source]*compiled
	pods     map[string]*judged // by the policies' IDs
}

// source is the key of a compiled policy: the policy, for pods with or without egress tunnels.
type source struct {
	*policy.Policy
	tunnels bool
}

// ways returns the ways in which connections of such pods are judged.
func (s source) ways() []way {
	if s.tunnels {
		return ways[:]
	}
	return ways[:2]
}

// compiled contains the chains of a policy, if a pod needs them.
type compiled struct {
	*content
	id uint64
}

// judged contains the chains of pods with the same policies: for each way the first chain, and the chain after the Admin tier.
// jumps are the policies that have their own chains.
type judged struct {
	content
	first, rest [len(ways)]string
	jumps       map[*policy.Policy]bool
}

// content builds the content of a table. It returns an error if a rule cannot be encoded.
func (k *compiler) content(pods []Pod, b base) (content, error) {
	c := newContent(nil)
	c.addSets()
	next := &compiler{ids: k.ids, base: b, inside: k.inside, own: k.own, unions: k.unions, policies: map[source]*compiled{}, pods: map[string]*judged{}}
	for _, p := range pods {
		next.base.tunnels = next.base.tunnels || len(p.Tunnels) > 0
	}
	if k.inside != nil {
		if len(pods) != 1 {
			return content{}, fmt.Errorf("%d pods, expected only the pod of this network namespace", len(pods))
		}
		by, err := next.judged(pods[0].Policies, next.base.tunnels, k)
		if err != nil {
			return content{}, err
		}
		next.base.inside, next.base.first, next.base.rest = true, by.first, by.rest
		if err := k.inside.addTo(&c); err != nil {
			return content{}, err
		}
	}
	if next.own == nil || next.base != k.base {
		own := newContent(nil)
		if err := own.addBase(next.base); err != nil {
			return content{}, err
		}
		next.own = &own
	}
	c.add(*next.own)
	for _, p := range pods {
		by, err := next.judged(p.Policies, len(p.Tunnels) > 0, k)
		if err != nil {
			return content{}, err
		}
		c.addPod(p, by)
	}
	if next.lists = k.lists; next.lists == nil || !maps.Equal(next.pods, k.pods) {
		lists := newContent(nil)
		for _, by := range next.pods {
			lists.add(by.content)
		}
		next.lists = &lists
		k.unions.prune(lists)
	}
	c.lists = next.lists
	*k = *next
	return c, nil
}

// outgrew drops cached content with unions whose sets have become too large.
func (k *compiler) outgrew(sets map[policy.SetID]bool) {
	ids := slices.Collect(maps.Keys(sets))
	maps.DeleteFunc(k.pods, func(_ string, j *judged) bool { return j.inUnion(ids...) })
	for _, one := range k.policies {
		if one.content != nil && one.inUnion(ids...) {
			one.content = nil
		}
	}
}

// judged returns the chains of pods with a list of policies.
func (k *compiler) judged(policies []*policy.Policy, tunnels bool, last *compiler) (by *judged, err error) {
	var key []byte
	for _, p := range policies {
		from := source{p, tunnels}
		one := k.policies[from]
		if one == nil {
			if one = last.policies[from]; one == nil {
				k.ids++
				one = &compiled{id: k.ids}
			}
			k.policies[from] = one
		}
		key = binary.NativeEndian.AppendUint64(key, one.id)
	}
	if by = k.pods[string(key)]; by != nil {
		return by, nil
	}
	if by = last.pods[string(key)]; by == nil {
		by = &judged{content: newContent(k.unions), jumps: map[*policy.Policy]bool{}}
		for i, w := range (source{tunnels: tunnels}).ways() {
			if by.first[i], by.rest[i], err = by.addTiers(w, policies); err != nil {
				return nil, err
			}
		}
		for p := range by.jumps {
			one := k.policies[source{p, tunnels}]
			if err := one.compile(source{p, tunnels}, k.unions); err != nil {
				return nil, err
			}
			by.add(*one.content)
		}
	}
	k.pods[string(key)] = by
	return by, nil
}

// compile compiles the chains of a policy unless they are cached.
func (c *compiled) compile(from source, u *unions) error {
	if c.content != nil {
		return nil
	}
	made := newContent(u)
	for _, w := range from.ways() {
		if err := made.addPolicy(w, from.Policy); err != nil {
			return err
		}
	}
	c.content = &made
	return nil
}

// addBase adds the chains and counters of a base.
func (c *content) addBase(b base) error {
	for _, w := range ways {
		if !w.tunnelled || b.tunnels {
			c.counters[w.refuse()] = Refused{Direction: w.Direction}
		}
	}
	for _, ch := range b.chains() {
		if err := c.addChain(ch); err != nil {
			return err
		}
	}
	return nil
}
