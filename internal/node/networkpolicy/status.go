package networkpolicy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/policy"
)

// record is what an Enforcer records for its status. Enforcer.mu guards it.
type record struct {
	sets      int       // calls of Set
	began     time.Time // start of the process
	connected bool
	changed   time.Time // of connected; zero: never connected
	lost      string    // why it is not connected
	logged    bool      // the disconnection has been logged

	failure string // of the last change of the kernel
	failing time.Time
	applied time.Time
	force   map[string]inForce // policies in the kernel, by attachment
	digests map[*policy.Policy]string

	repaired time.Time // the last repair in the log
}

// away returns since when the operator has been disconnected.
func (r *record) away() time.Time {
	if r.changed.IsZero() {
		return r.began
	}
	return r.changed
}

// inForce lists the policies of a pod that the kernel has, and since when.
type inForce struct {
	pod   policy.PodName
	uid   string
	list  []*policy.Policy
	since time.Time
}

// same reports whether two pods have the same policies. It compares content, because each update may contain new copies.
func (r *record) same(f, o inForce) bool {
	return f.pod == o.pod && f.uid == o.uid && slices.EqualFunc(f.list, o.list, func(a, b *policy.Policy) bool { return a == b || r.digest(a) == r.digest(b) })
}

// digest returns the cached digest of a policy, which takes long to compute for a large policy.
func (r *record) digest(p *policy.Policy) string {
	d, has := r.digests[p]
	if !has {
		d = p.Digest()
		if r.digests == nil {
			r.digests = map[*policy.Policy]string{}
		}
		r.digests[p] = d
	}
	return d
}

// following records that the operator sends updates, or why not, and reports whether to log it. The end of a working stream is
// not logged, because operators end streams from time to time.
func (r *record) following(err error, now time.Time) (news bool) {
	switch connected := err == nil; {
	case connected:
		news = !r.connected && (r.logged || r.changed.IsZero())
	case !r.connected:
		news = !r.logged || r.lost != err.Error()
	}
	if connected := err == nil; connected != r.connected {
		r.connected, r.changed = connected, now
	}
	if r.lost = ""; err != nil {
		r.lost = err.Error()
	}
	r.logged = !r.connected && (r.logged || news)
	return news
}

// succeeded records the policies that the kernel has now; nil if they are unchanged.
func (r *record) succeeded(lists map[string]inForce, now time.Time) {
	r.applied = now
	if lists == nil {
		return
	}
	for attachment, f := range lists {
		f.since = now
		if before := r.force[attachment]; r.same(before, f) {
			f.since = before.since
		}
		lists[attachment] = f
	}
	r.force = lists
	digests := map[*policy.Policy]string{}
	for _, f := range lists {
		for _, p := range f.list {
			if d, has := r.digests[p]; has {
				digests[p] = d
			}
		}
	}
	r.digests = digests
}

// failed records the result of the last change of the kernel, and reports whether it failed for a new reason.
func (r *record) failed(err error, now time.Time) (news bool) {
	switch {
	case err == nil:
		r.failure, r.failing = "", time.Time{}
		return false
	case r.failure == "":
		r.failing = now
	}
	news = r.failure != err.Error()
	r.failure = err.Error()
	return news
}

// Status returns the known policies and those in force.
func (e *Enforcer) Status(now time.Time) introspect.NetworkPolicies {
	s := introspect.NetworkPolicies{
		Time: now.UTC(), Enabled: true,
		Attachments: []introspect.PolicyAttachment{}, Policies: []introspect.NodePolicy{}, Sets: []introspect.PolicySet{},
	}
	s.Denied = deniedPackets(e.insides.refused(e.Kernel))
	e.mu.Lock()
	defer e.mu.Unlock()
	r := &e.record
	s.Connected, s.ConnectedSince, s.ConnectError = r.connected, utc(r.changed), r.lost
	s.Failure, s.FailureSince, s.Applied, s.Version = r.failure, utc(r.failing), utc(r.applied), e.state.Version()
	policies := map[policy.Ref]*introspect.NodePolicy{}
	for attachment, f := range e.lists() {
		a := e.record.attachment(attachment, f, e.pods[attachment].allAddrs(), e.state)
		s.Attachments = append(s.Attachments, a)
		for _, p := range f.list {
			if !a.Known {
				continue
			}
			if policies[p.Ref] == nil {
				policies[p.Ref] = &introspect.NodePolicy{PolicyRef: refOf(p), Digest: r.digest(p)}
			}
			policies[p.Ref].Pods++
			if a.InForce {
				policies[p.Ref].InForce++
			}
		}
	}
	for _, p := range policies {
		s.Policies = append(s.Policies, *p)
	}
	for id := range e.state.SetIDs() {
		s.Sets = append(s.Sets, introspect.PolicySet{Name: string(id), Elements: e.state.Size(id)})
	}
	slices.SortFunc(s.Attachments, func(a, b introspect.PolicyAttachment) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), slices.CompareFunc(a.Addresses, b.Addresses, netip.Addr.Compare))
	})
	slices.SortFunc(s.Policies, func(a, b introspect.NodePolicy) int { return a.Compare(b.PolicyRef) })
	slices.SortFunc(s.Sets, func(a, b introspect.PolicySet) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// deniedPackets converts counts of denied packets.
func deniedPackets(counts []policytable.Refused) []introspect.DeniedPackets {
	list := []introspect.DeniedPackets{}
	for _, c := range counts {
		r := introspect.DeniedPackets{Direction: c.Direction.String(), Policies: []introspect.PolicyRef{}, Packets: c.Packets}
		for _, ref := range c.Policies {
			r.Policies = append(r.Policies, introspect.PolicyRef{Kind: ref.Kind(), Namespace: ref.Namespace, Name: ref.Name})
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b introspect.DeniedPackets) int {
		return cmp.Or(cmp.Compare(a.Direction, b.Direction), slices.CompareFunc(a.Policies, b.Policies, introspect.PolicyRef.Compare))
	})
	return list
}

// attachment describes one attachment with the policies that it should have.
func (r *record) attachment(key string, f inForce, addrs []netip.Addr, state *policy.State) introspect.PolicyAttachment {
	_, known := state.Of(f.pod, f.uid)
	a := introspect.PolicyAttachment{
		Namespace: f.pod.Namespace, Pod: f.pod.Name, UID: f.uid, Addresses: append([]netip.Addr{}, addrs...), Known: known,
		Ingress: []introspect.AppliedPolicy{}, Egress: []introspect.AppliedPolicy{},
	}
	if has, ok := r.force[key]; ok && r.same(has, f) {
		a.InForce, a.Since = true, utc(has.since)
	}
	if !known {
		return a
	}
	for _, p := range f.list {
		if p.Judges(policy.Ingress) {
			a.Ingress = append(a.Ingress, appliedOf(p, policy.Ingress))
		}
		if p.Judges(policy.Egress) {
			a.Egress = append(a.Egress, appliedOf(p, policy.Egress))
		}
	}
	return a
}

// Judge evaluates a connection with the policies that the node knows, and checks whether the kernel has these.
func (e *Enforcer) Judge(f policy.Flow) introspect.PolicyJudgement {
	kernel, compares := e.Kernel.(interface {
		Compare(pods []netip.Addr, elements []policytable.Expected) error
	})
	for again := false; ; again = true {
		j, pods, elements := e.judge(f)
		if !compares || j.Failure != "" {
			return j
		}
		err := kernel.Compare(pods, elements)
		if err != nil && !again { // policies may have changed in the meantime
			continue
		}
		if err != nil {
			j.Failure = fmt.Sprintf("the kernel differs from what berthd applied: %v", err)
		}
		return j
	}
}

// judge evaluates the known policies. It returns the node's pods at both ends, and the set elements that decide.
func (e *Enforcer) judge(f policy.Flow) (j introspect.PolicyJudgement, pods []netip.Addr, elements []policytable.Expected) {
	e.mu.Lock()
	defer e.mu.Unlock()
	lists := e.lists()
	v := e.view(lists)
	j = introspect.PolicyJudgement{Time: e.Clock.Now().UTC(), Enabled: true, Failure: e.record.failure}
	j.Egress = introspect.DecisionOf(policy.Egress, policy.Decide(v.byAddr[f.Source], policy.Egress, f, v.sets))
	j.Ingress = introspect.DecisionOf(policy.Ingress, policy.Decide(v.byAddr[f.Destination], policy.Ingress, f, v.sets))
	for attachment, list := range lists {
		pod := e.pods[attachment]
		for _, a := range pod.allAddrs() {
			var d *introspect.PolicyDecision
			direction := policy.Egress
			switch a {
			case f.Source:
				d = &j.Egress
			case f.Destination:
				d, direction = &j.Ingress, policy.Ingress
			default:
				continue
			}
			if pod.Inside == nil { // otherwise the table in the pod's own namespace decides, which is not compared
				pods, elements = append(pods, a), append(elements, expected(list.list, direction, f, v.sets)...)
			}
			d.Namespace, d.Pod = list.pod.Namespace, list.pod.Name
			if has, ok := e.record.force[attachment]; j.Failure == "" && (!ok || !e.record.same(has, list)) {
				j.Failure = fmt.Sprintf("the policies of pod %s/%s are not in force yet", list.pod.Namespace, list.pod.Name)
			}
		}
	}
	return j, pods, elements
}

// expected returns the set elements by which the policies of one end decide about a connection.
func expected(list []*policy.Policy, d policy.Direction, f policy.Flow, sets policy.Sets) (elements []policytable.Expected) {
	peer := policy.Element{Addr: f.Source}
	if d == policy.Egress {
		peer.Addr = f.Destination
	}
	add := func(ids []policy.SetID, e policy.Element) {
		for _, id := range ids {
			elements = append(elements, policytable.Expected{Set: id, Element: e, Has: sets.Has(id, e)})
		}
	}
	for _, p := range list {
		for _, r := range p.Rules[d] {
			add(r.Peers, peer)
			add(r.Named, policy.Element{Addr: f.Destination, Protocol: f.Protocol, Port: f.Port})
		}
	}
	return elements
}

func refOf(p *policy.Policy) introspect.PolicyRef {
	return introspect.PolicyRef{Kind: p.Kind(), Namespace: p.Namespace, Name: p.Name}
}

func appliedOf(p *policy.Policy, d policy.Direction) introspect.AppliedPolicy {
	return introspect.AppliedPolicy{PolicyRef: refOf(p), Tier: p.Tier.String(), Priority: p.Priority, Isolates: p.Isolates[d]}
}

// utc converts a time to UTC, and keeps the zero time.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}
