package networkpolicy

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
)

// view is the desired policies of pods.
type view struct {
	pods   []policytable.Pod              // pods of the node's table
	node   map[netip.Addr]policytable.Pod // the same, by address
	inside map[string]wanted              // by attachment
	byAddr map[netip.Addr][]*policy.Policy
	sets   policy.Sets
}

// view returns the view of the node's attachments with their policies.
func (e *Enforcer) view(lists map[string]inForce) view {
	v := view{node: map[netip.Addr]policytable.Pod{}, inside: map[string]wanted{}, byAddr: map[netip.Addr][]*policy.Policy{}, sets: e.state}
	for attachment, f := range lists {
		p := e.pods[attachment]
		addrs := p.allAddrs()
		if p.byNode() {
			list := f.list
			if e.holding.of(list) != nil {
				list = []*policy.Policy{closed(p.PodName, refusedByKernel)}
			}
			pod := policytable.Pod{Addrs: addrs, Policies: list, Tunnels: p.Tunnels}
			v.pods = append(v.pods, pod)
			for _, a := range addrs {
				v.node[a] = pod
			}
		}
		if p.Inside != nil {
			v.inside[attachment] = wanted{*p.Inside, policytable.Pod{Addrs: addrs, Policies: f.list, Tunnels: p.Tunnels}}
		}
		for _, a := range addrs {
			if _, taken := v.byAddr[a]; !taken || p.Inside == nil { // pods in separate networks may have the same addresses
				v.byAddr[a] = f.list
			}
		}
	}
	v.expect(e.state, lists, &e.holding)
	return v
}

// expect adds the policies of known pods without an attachment, so that their ADD adds little more than addresses.
func (v *view) expect(state *policy.State, lists map[string]inForce, h *holding) {
	here := map[policy.PodName]bool{}
	for _, f := range lists {
		here[f.pod] = true
	}
	for name, uid := range state.Pods() {
		if here[name] {
			continue
		}
		if list, _ := state.Of(name, uid); len(list) > 0 && h.of(list) == nil {
			v.pods = append(v.pods, policytable.Pod{Policies: list})
		}
	}
}

// lists returns the desired policies of attachments, and records which pods the operator knows. A pod that the operator no
// longer knows is about to end, and is closed.
func (e *Enforcer) lists() map[string]inForce {
	all := map[string]inForce{}
	for attachment, p := range e.pods {
		list, known := e.state.Of(p.PodName, p.UID)
		if known && !p.known {
			p.known = true
			e.pods[attachment] = p
		}
		if !known && !e.open(p) {
			list = []*policy.Policy{closed(p.PodName, unknownPod)}
		}
		all[attachment] = inForce{pod: p.PodName, uid: p.UID, list: list}
	}
	return all
}

// open reports whether a pod is open while the operator does not know it.
func (e *Enforcer) open(p Pod) bool {
	return !p.known && (e.StartUnknown || p.restored && e.session == 0)
}

// Names of the policy that closes a pod, which give the reason.
const (
	unknownPod      = "(unknown pod)"
	refusedByKernel = "(policy that the kernel rejects)"
)

// closed is a policy that accepts nothing.
func closed(name policy.PodName, why string) *policy.Policy {
	return &policy.Policy{Ref: policy.Ref{Namespace: name.Namespace, Name: why}, Tier: policy.Namespaced, Isolates: [2]bool{true, true}}
}

// allows reports whether the node's table allows a connection. Like the table, it judges tunnels of Egresses by the inner header,
// and ignores pods with a table in their own network namespace, because another pod or host may have the same address.
func (v view) allows(f policy.Flow) bool {
	from, to := v.node[f.Source], v.node[f.Destination]
	return (tunnelTo(from, f.Destination, f) || policy.Decide(from.Policies, policy.Egress, f, v.sets).Allowed) &&
		(tunnelTo(to, f.Source, f) || policy.Decide(to.Policies, policy.Ingress, f, v.sets).Allowed)
}

// tunnelTo reports whether a connection is a tunnel between a pod and a gateway of its Egresses. Both ends send to the same port.
func tunnelTo(pod policytable.Pod, gateway netip.Addr, f policy.Flow) bool {
	return f.Protocol == unix.IPPROTO_UDP && slices.Contains(pod.Tunnels, netip.AddrPortFrom(gateway, f.Port))
}
