package nodenetwork

import (
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/nodenetwork"
)

var _ = failpoint.Register("operator.withdraw.after", "operator.publish.before", "operator.publish.after")

// Addresses go back by a handshake (docs/design.md, section 6). What the fleet would
// take back is a candidate: listed in spec.ipam.releasing, until the daemon
// confirms in status.ipam.released that no pod has it or will. Then it is
// handed to the fleet, and once that is recorded it is unassigned: see mark.go.
// Candidates that the fleet asks for no more, or that pods need, leave the list
// without having been handed out, and are the daemon's again.

// patience is how long candidates are kept that the fleet did not ask for:
// it may be waiting for EC2 in between.
const patience = 2 * time.Minute

// keeps tells what is not free although no pod uses it: on its way back, or an
// ENI's own address, which EC2 does not unassign. n.mu is held.
func (n *node) keeps(p netip.Prefix) bool { return n.leaves(p) || n.primaries[p] }

// ObserveFailed implements fleet.Node: the daemon goes on with what was published.
func (*node) ObserveFailed(error) {}

// Withdraw implements fleet.Node: it hands out what the daemon has confirmed,
// and makes candidates of what is still missing.
func (n *node) Withdraw(id string, want cloud.Amount) []netip.Prefix {
	n.mu.Lock()
	out := slices.Concat(n.withdraw(id, want.Addresses, true), n.withdraw(id, want.Prefixes, false))
	listed := n.listingDue()
	n.mu.Unlock()
	if listed {
		n.c.later(n.name, 0)
	}
	if len(out) > 0 && failpoint.Hit("operator.withdraw.after") != nil {
		n.takeBack(out)
		return nil
	}
	return out
}

// takeBack makes candidates again of what was handed to the fleet, and did not
// reach it.
func (n *node) takeBack(list []netip.Prefix) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range list {
		delete(n.handed, p)
		n.candidates[p] = true
	}
}

// withdraw is Withdraw for one kind of thing. n.mu is held.
func (n *node) withdraw(id string, want int, single bool) (out []netip.Prefix) {
	if want <= 0 || n.inv == nil {
		return nil
	}
	n.asked[id] = n.c.now()
	listed := 0
	for _, p := range n.candidatesOf(id) {
		switch {
		case n.marked(nodenetwork.Format(p)):
			delete(n.candidates, p)
		case p.IsSingleIP() != single:
		case n.confirmed(p) && len(out) < want:
			out = append(out, p)
		case uses(n.obj, p):
			delete(n.candidates, p) // a pod was faster
		default:
			listed++
		}
	}
	if len(out) > 0 {
		for _, p := range out {
			delete(n.candidates, p)
			n.handed[p] = true
		}
		return out
	}
	for _, p := range n.freeOf(id, single) {
		if listed >= want {
			break
		}
		n.candidates[p] = true
		listed++
	}
	return nil
}

// confirmed tells whether the daemon withdrew what it was asked for. n.mu is held.
func (n *node) confirmed(p netip.Prefix) bool {
	text := nodenetwork.Format(p)
	return slices.Contains(n.obj.Spec.IPAM.Releasing, text) && slices.Contains(n.obj.Status.IPAM.Released, text) && !uses(n.obj, p)
}

// candidatesOf lists an ENI's candidates, the highest first. n.mu is held.
func (n *node) candidatesOf(id string) (out []netip.Prefix) {
	for p := range n.candidates {
		if n.obj.Spec.IPAM.Available[nodenetwork.Format(p)].Resource == id {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y netip.Prefix) int { return y.Compare(x) })
	return out
}

// freeOf lists what of an ENI could become a candidate, the highest first, so
// that two operators choose alike. What the daemon has in released still is of
// an earlier handshake, which is to end first. n.mu is held.
func (n *node) freeOf(id string, single bool) (out []netip.Prefix) {
	assigned := n.things()
	for text, at := range n.obj.Spec.IPAM.Available {
		p, err := nodenetwork.Parse(text)
		if err != nil || at.Resource != id || p.IsSingleIP() != single || assigned[p] != id || n.candidates[p] || n.keeps(p) {
			continue
		}
		if !slices.Contains(n.obj.Status.IPAM.Released, text) && !uses(n.obj, p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y netip.Prefix) int { return y.Compare(x) })
	return out
}

// WithdrawENI implements fleet.Node: true once the daemon has confirmed all
// that the ENI holds.
func (n *node) WithdrawENI(id string) bool {
	n.mu.Lock()
	ready := n.withdrawENI(id)
	listed := n.listingDue()
	n.mu.Unlock()
	if listed {
		n.c.later(n.name, 0)
	}
	return ready && failpoint.Hit("operator.withdraw.after") == nil
}

// withdrawENI is WithdrawENI. n.mu is held.
func (n *node) withdrawENI(id string) bool {
	for _, use := range n.obj.Status.IPAM.Used {
		if use.Resource == id {
			return false // also one that is not available any more
		}
	}
	n.asked[id] = n.c.now()
	ready := !n.doubted
	for text, at := range n.obj.Spec.IPAM.Available {
		p, err := nodenetwork.Parse(text)
		if err != nil || at.Resource != id {
			continue
		}
		if uses(n.obj, p) {
			return false
		}
		if !n.leaves(p) && !slices.Contains(n.obj.Status.IPAM.Released, text) {
			n.candidates[p] = true
		}
		ready = ready && n.confirmed(p)
	}
	return ready
}

// listingDue tells whether the object lacks candidates. n.mu is held.
func (n *node) listingDue() bool {
	for p := range n.candidates {
		if !slices.Contains(n.obj.Spec.IPAM.Releasing, nodenetwork.Format(p)) {
			return true
		}
	}
	return false
}

// RestoreWithdrawn implements fleet.Node.
func (n *node) RestoreWithdrawn(withdrawn []netip.Prefix) {
	n.mu.Lock()
	for _, p := range withdrawn {
		delete(n.handed, p)
	}
	n.mu.Unlock()
	n.c.later(n.name, 0)
}

// relent gives candidates back to the daemon that pods need, that there is no
// excess for any more, or that the fleet has not asked for in a long time. It
// is called after every pass of the fleet's. n.mu is held.
func (n *node) relent(passBegan time.Time, s eni.Status) bool {
	if len(n.candidates) == 0 || n.inv == nil {
		return false
	}
	u := n.usage()
	needed := u.Waiting > 0 || s.Needed > 0
	short := n.excess(u) < n.candidateWeight()
	now, before := n.c.now(), len(n.candidates)
	for p := range n.candidates {
		asked := n.asked[n.obj.Spec.IPAM.Available[nodenetwork.Format(p)].Resource]
		wanted := !asked.Before(passBegan)
		if !wanted && (needed || short || now.Sub(asked) > patience) {
			delete(n.candidates, p)
		}
	}
	return len(n.candidates) != before
}

// excess is how many addresses the policy could do without. n.mu is held.
func (n *node) excess(u eni.Usage) int {
	total, busy := 0, ipam.Usage{Waiting: u.Waiting}
	for p := range n.things() {
		if !n.leaves(p) {
			total += weight(p)
		}
	}
	for _, e := range u.ENIs {
		busy.Used += e.Used
	}
	l := n.inv.Limits
	return total - n.settings.Policy.Demand(max(0, l.IPv4PerENI-1), l.Prefixes, busy).Keep
}

func (n *node) candidateWeight() int {
	sum := 0
	for p := range n.candidates {
		sum += weight(p)
	}
	return sum
}
