package wire

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/berthnet/berth/internal/policy"
)

// Decoder assembles updates from parts.
type Decoder struct{ update *policy.Update }

// Add decodes a part. It returns the update if this is its last part, otherwise nil. After an error, which names the invalid
// content, the update is lost.
func (d *Decoder) Add(in *Update) (*policy.Update, error) {
	if d.update == nil {
		d.update = &policy.Update{Version: in.Version, Whole: in.Whole, Pods: map[policy.PodName]*policy.Selected{}, Policies: map[policy.Ref]*policy.Policy{}, Sets: policy.SetChanges{}}
	}
	u := d.update
	if in.Version != u.Version {
		d.update = nil
		return nil, fmt.Errorf("part of version %d within version %d", in.Version, u.Version)
	}
	if err := addPart(u, in); err != nil {
		d.update = nil
		return nil, fmt.Errorf("version %d: %w", in.Version, err)
	}
	if in.More {
		return nil, nil
	}
	d.update = nil
	return u, nil
}

func addPart(u *policy.Update, in *Update) error {
	for _, p := range in.Pods {
		name := policy.PodName{Namespace: p.Namespace, Name: p.Name}
		if u.Pods[name] = nil; p.Gone {
			continue
		}
		s := &policy.Selected{UID: p.Uid}
		for _, ref := range p.Policies {
			s.Policies = append(s.Policies, policy.Ref{Namespace: ref.GetNamespace(), Name: ref.GetName()})
		}
		u.Pods[name] = s
	}
	for _, p := range in.Policies {
		ref := policy.Ref{Namespace: p.GetRef().GetNamespace(), Name: p.GetRef().GetName()}
		if u.Policies[ref] = nil; p.Gone {
			continue
		}
		read, err := decodePolicy(ref, p)
		if err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
		u.Policies[ref] = read
	}
	for _, s := range in.Sets {
		change := u.Sets.Of(policy.SetID(s.Id))
		change.Whole = change.Whole || s.Whole
		err := errors.Join(
			elements(s.Gone, func(e policy.Element) { change.Note(e, false) }),
			elements(s.Came, func(e policy.Element) { change.Note(e, true) }))
		if err != nil {
			return fmt.Errorf("set %s: %w", s.Id, err)
		}
	}
	return nil
}

func decodePolicy(ref policy.Ref, in *Policy) (*policy.Policy, error) {
	p := &policy.Policy{Ref: ref, Tier: policy.Tier(in.Tier), Priority: in.Priority}
	if p.Tier < policy.Admin || p.Tier > policy.Baseline {
		return nil, fmt.Errorf("tier %d is unknown", in.Tier)
	}
	for d, rules := range map[policy.Direction]*Rules{policy.Ingress: in.Ingress, policy.Egress: in.Egress} {
		p.Isolates[d] = rules.GetIsolates()
		for i, r := range rules.GetRules() {
			rule, err := decodeRule(r)
			if err != nil {
				return nil, fmt.Errorf("%s rule %d: %w", d, i, err)
			}
			if p.Tier == policy.Namespaced && rule.Action != policy.Accept { // enforcement relies on this
				return nil, fmt.Errorf("%s rule %d: action %s of tier %s, expected %s", d, i, rule.Action, p.Tier, policy.Accept)
			}
			p.Rules[d] = append(p.Rules[d], rule)
		}
	}
	return p, nil
}

func decodeRule(in *Rule) (policy.Rule, error) {
	r := policy.Rule{Name: in.Name, Action: policy.Action(in.Action), AnyPeer: in.AnyPeer, AnyPort: in.AnyPort, Peers: ids(in.Peers), Named: ids(in.Named)}
	if r.Action < policy.Accept || r.Action > policy.Pass {
		return r, fmt.Errorf("action %d is unknown", in.Action)
	}
	for _, text := range in.Blocks {
		b, err := netip.ParsePrefix(text)
		if err != nil {
			return r, err
		}
		r.Blocks = append(r.Blocks, b)
	}
	for _, s := range in.Ports {
		if s.Protocol > 255 || s.First > s.Last || s.Last > 65535 {
			return r, fmt.Errorf("ports %d-%d of protocol %d", s.First, s.Last, s.Protocol)
		}
		r.Ports = append(r.Ports, policy.Ports{Protocol: uint8(s.Protocol), First: uint16(s.First), Last: uint16(s.Last)})
	}
	return r, nil
}

func ids(in []string) (out []policy.SetID) {
	for _, id := range in {
		out = append(out, policy.SetID(id))
	}
	return out
}
