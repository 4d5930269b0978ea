package podegress

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/node/attachment"
)

// inputs determine a pod's egress.
type inputs struct {
	pod    string                      // UID
	uses   []use                       // Egresses of which the pod is a client, sorted by name
	find   func(use) (egress, bool)    // Egresses that are known and usable
	silent func(egress use) silentOnes // gateways that fail probes while others respond
	has    *attachment.Egress          // current egress of the pod; nil: none
}

// silentOnes is a set of gateways, by UID.
type silentOnes map[string]bool

// plan returns the desired egress of a pod. Equal inputs give equal results, and a pod that already has the planned egress
// keeps it.
//
// An Egress that is unknown or unusable stays as the pod has it, because its packets must not take another path. Egresses
// of which the pod is no longer a client are removed.
//
// Gateways keep their IDs. A new gateway gets the next free ID after the last assigned one, so that IDs are
// reused as late as possible. A pod uses at most as many gateways as there are IDs: see pick.
func plan(s inputs) attachment.Egress {
	var out attachment.Egress
	had := map[use]attachment.UsedEgress{}
	if s.has != nil {
		out.LastID, out.Forward = s.has.LastID, s.has.Forward
		for _, e := range s.has.Egresses {
			had[useOf(e)] = e
		}
	}
	ids := numbers{last: out.LastID, taken: map[int]bool{}}
	var direct []*path // Egresses whose gateways are next hops
	for _, u := range s.uses {
		t, known := s.find(u)
		before, has := had[u]
		p := &path{used: t.used(), egress: t, before: before, silent: s.silent(u)}
		switch {
		case !known && !has:
			continue
		case !known:
			p.used = before
			for _, g := range before.Gateways {
				ids.taken[g.ID] = true
			}
		case t.toService && len(t.service) > 0:
			p.used.Gateways = t.unnumbered()
		case !t.toService:
			direct = append(direct, p)
		}
		out.Egresses = append(out.Egresses, p.used)
		p.at = len(out.Egresses) - 1
	}
	lists := make([][]gateway, len(direct))
	for i, p := range direct {
		lists[i] = p.egress.gateways
	}
	picked := pick(s.pod, lists, attachment.MaxEgressGateways-ids.used())
	for i, p := range direct {
		p.keep(picked[i], &ids)
	}
	for i, p := range direct {
		out.Egresses[p.at].Gateways = p.number(s.pod, picked[i], &ids)
	}
	out.LastID = ids.last
	return out
}

// path is the plan for one Egress.
type path struct {
	at     int // the planned Egress
	used   attachment.UsedEgress
	egress egress
	before attachment.UsedEgress // current Egress of the pod; zero: none
	silent silentOnes
	ids    map[string]int // IDs of known gateways, by UID
}

// keep reserves the IDs of gateways that already have one.
func (p *path) keep(picked []gateway, ids *numbers) {
	p.ids = map[string]int{}
	for _, b := range p.before.Gateways {
		still := slices.ContainsFunc(picked, func(g gateway) bool { return g.uid == b.UID })
		if still && b.ID > 0 && !ids.taken[b.ID] {
			p.ids[b.UID], ids.taken[b.ID] = b.ID, true
		}
	}
}

// number returns the gateways, with new IDs for those without one, and marks those that new connections may use.
func (p *path) number(pod string, picked []gateway, ids *numbers) (out []attachment.EgressGateway) {
	takes := p.egress.choose(pod, picked, p.silent)
	for _, g := range picked {
		id, kept := p.ids[g.uid]
		if !kept {
			id = ids.next()
		}
		out = append(out, attachment.EgressGateway{ID: id, UID: g.uid, Addresses: g.addrs, Ending: g.ending, Chosen: takes[g.uid]})
	}
	slices.SortFunc(out, func(a, b attachment.EgressGateway) int { return a.ID - b.ID })
	return out
}

// used returns the recorded form of the Egress, without gateways.
func (t egress) used() attachment.UsedEgress {
	u := attachment.UsedEgress{
		Namespace: t.name.Namespace, Name: t.name.Name, UID: string(t.uid), Destinations: t.destinations,
		SourcePortAuto: t.sourceAuto, OriginatingOnly: t.originating,
	}
	if t.toService {
		u.Service = t.service
	}
	return u
}

// unnumbered returns the gateways behind the Service, which send the replies.
func (t egress) unnumbered() (out []attachment.EgressGateway) {
	for _, g := range t.gateways {
		out = append(out, attachment.EgressGateway{UID: g.uid, Addresses: g.addrs, Ending: g.ending})
	}
	return out
}

// choose returns the gateways that new connections of a pod may use, by UID: those that are not ending; among these, those
// that respond, if any do; and with session affinity the one of them that rendezvous hashing selects, so that adding or
// removing a gateway moves only that gateway's share of pods.
func (t egress) choose(pod string, of []gateway, silent silentOnes) map[string]bool {
	ready := slices.DeleteFunc(slices.Clone(of), func(g gateway) bool { return g.ending })
	answering := slices.DeleteFunc(slices.Clone(ready), func(g gateway) bool { return silent[g.uid] })
	if len(answering) > 0 {
		ready = answering
	}
	if t.affine && len(ready) > 1 {
		// Through a gateway without a family, destinations of that family cannot be reached.
		ready = []gateway{slices.MaxFunc(ready, func(a, b gateway) int {
			return cmp.Or(len(a.addrs)-len(b.addrs), heavier(pod, a, b))
		})}
	}
	chosen := map[string]bool{}
	for _, g := range ready {
		chosen[g.uid] = true
	}
	return chosen
}

// pick shortens lists of gateways, as equally as possible, until they have no more than most gateways in total. Within a
// list, the gateway that new connections prefer comes first, and the others follow by weight, so that adding or
// removing a gateway changes only its own position. Each list keeps its order.
func pick(pod string, lists [][]gateway, most int) [][]gateway {
	total := 0
	for _, l := range lists {
		total += len(l)
	}
	if total <= most {
		return lists
	}
	ranked, share := make([][]gateway, len(lists)), make([]int, len(lists))
	for i, l := range lists {
		ranked[i] = rank(pod, l)
	}
	for round := 0; most > 0; round++ {
		for i := range ranked {
			if round < len(ranked[i]) && most > 0 {
				share[i]++
				most--
			}
		}
	}
	out := make([][]gateway, len(lists))
	for i, l := range ranked {
		out[i] = l[:share[i]]
		slices.SortFunc(out[i], byUID)
	}
	return out
}

// rank orders gateways: first the heaviest that is not ending, then all others by weight.
func rank(pod string, list []gateway) []gateway {
	out := slices.SortedFunc(slices.Values(list), func(a, b gateway) int { return heavier(pod, b, a) })
	if i := slices.IndexFunc(out, func(g gateway) bool { return !g.ending }); i > 0 {
		first := out[i]
		out = slices.Insert(slices.Delete(out, i, i+1), 0, first)
	}
	return out
}

// heavier compares the weights of two gateways for a pod: highest random weight hashing
// (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM
// Transactions on Networking 6(1), 1998).
func heavier(pod string, a, b gateway) int {
	return cmp.Or(cmp.Compare(weight(pod, a.uid), weight(pod, b.uid)), cmp.Compare(a.uid, b.uid))
}

// weight must stay the same in every release, so that an upgrade moves no pod.
func weight(pod, gateway string) uint64 {
	sum := sha256.Sum256([]byte(pod + "\x00" + gateway))
	return binary.BigEndian.Uint64(sum[:])
}

// numbers assigns IDs.
type numbers struct {
	last  int // last assigned ID
	taken map[int]bool
}

// used counts the assigned IDs.
func (n *numbers) used() (used int) {
	for id := range n.taken {
		if id > 0 {
			used++
		}
	}
	return used
}

// next assigns the next free ID after the last one. There must be a free ID.
func (n *numbers) next() int {
	for range attachment.MaxEgressGateways {
		n.last = n.last%attachment.MaxEgressGateways + 1
		if !n.taken[n.last] {
			break
		}
	}
	n.taken[n.last] = true
	return n.last
}

func useOf(e attachment.UsedEgress) use {
	return use{types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, types.UID(e.UID)}
}

// sameEgress compares egresses without their states. nil equals an egress without Egresses.
func sameEgress(a, b *attachment.Egress) bool {
	plain := func(e *attachment.Egress) attachment.Egress {
		if e == nil {
			return attachment.Egress{}
		}
		return attachment.Egress{Egresses: e.Egresses, Forward: e.Forward}
	}
	x, y := plain(a), plain(b)
	return x.Forward == y.Forward && len(x.Egresses) == len(y.Egresses) && (len(x.Egresses) == 0 || reflect.DeepEqual(x.Egresses, y.Egresses))
}
