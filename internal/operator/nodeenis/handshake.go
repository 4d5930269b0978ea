package nodeenis

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// Addresses are released by a handshake (docs/contribute/enis.md, "Releasing addresses"). An address that
// the fleet wants to release becomes a candidate: it is listed in spec.ipam.releasing until the daemon
// confirms in status.ipam.released that no pod has it or will get it. Then it is handed to the fleet,
// and once that is recorded in the object (mark.go), EC2 is asked to unassign it. Candidates that the
// fleet no longer asks for, or that pods need, leave the list, and the daemon may use them again.

// candidateTimeout is how long candidates are kept without the fleet asking for them: it may be
// waiting for EC2.
const candidateTimeout = 2 * time.Minute

// handshake tracks the addresses being released on a node. Its methods take the newest version of the object.
type handshake struct {
	candidates map[netip.Prefix]bool // awaiting the daemon's confirmation or handover to the fleet
	handed     map[netip.Prefix]bool // handed to the fleet and not restored
	detaching  map[string]bool       // ENIs that the fleet is about to detach
	asked      map[string]time.Time  // when the fleet last asked for addresses of an ENI
}

func newHandshake() handshake {
	return handshake{candidates: map[netip.Prefix]bool{}, handed: map[netip.Prefix]bool{}, detaching: map[string]bool{}, asked: map[string]time.Time{}}
}

// resume continues the handshake of the object's previous writer; releasing are the addresses that it may
// have asked EC2 to unassign.
func (h *handshake) resume(o *v1alpha1.NodeNetwork, releasing []eni.Release, now time.Time) {
	for _, r := range releasing {
		h.handed[r.Prefix] = true
	}
	h.adoptReleasing(o)
	for p := range h.candidates { // keep them until the fleet has had time to ask again
		h.asked[nodenetwork.ENIOf(o, p)] = now
	}
}

// adoptReleasing makes candidates of the object's releasing list, whoever wrote it.
func (h *handshake) adoptReleasing(o *v1alpha1.NodeNetwork) {
	clear(h.candidates)
	for p := range nodenetwork.Available(o) {
		if nodenetwork.Lists(o.Spec.IPAM.Releasing, p) && !h.handedOrMarked(o, p) {
			h.candidates[p] = true
		}
	}
}

// setInventory reads the addresses being unassigned from an inventory, and drops those that are no longer
// assigned.
func (h *handshake) setInventory(inv *eni.Inventory) {
	clear(h.detaching)
	for _, l := range inv.Leaving {
		if l.Attached {
			h.detaching[l.ENI] = true
		}
	}
	assigned := podAddresses(inv)
	clear(h.handed)
	for _, r := range inv.Releasing {
		if _, ok := assigned[r.Prefix]; ok {
			h.handed[r.Prefix] = true
			delete(h.candidates, r.Prefix)
		}
	}
	for p := range h.candidates {
		if _, ok := assigned[p]; !ok {
			delete(h.candidates, p)
		}
	}
}

// handedOrMarked reports whether an address or prefix is being unassigned, or about to be.
func (h *handshake) handedOrMarked(o *v1alpha1.NodeNetwork, p netip.Prefix) bool {
	return h.handed[p] || nodenetwork.Lists(o.Spec.IPAM.Unassigning, p)
}

// kind is a kind of address that an EC2 call handles: single addresses or prefixes of one family.
type kind struct {
	family ipfamily.Family
	single bool
}

func kindOf(p netip.Prefix) kind { return kind{ipfamily.Of(p.Addr()), p.IsSingleIP()} }

// byKind iterates over the kinds of an amount, in the order in which they are released.
func byKind(a cloud.Amount) iter.Seq2[kind, int] {
	return func(yield func(kind, int) bool) {
		for _, f := range ipfamily.Dual.Families() {
			addresses, prefixes := a.Of(f)
			if !yield(kind{f, true}, addresses) || !yield(kind{f, false}, prefixes) {
				return
			}
		}
	}
}

// withdraw hands out addresses of one ENI and kind that the daemon has confirmed, at most want. If there
// are none, free ones become candidates, up to want.
func (h *handshake) withdraw(o *v1alpha1.NodeNetwork, f *fleetState, id string, k kind, want int, now time.Time) (out []netip.Prefix) {
	if want <= 0 || f.inv == nil {
		return nil
	}
	h.asked[id] = now
	listed := 0
	for _, p := range h.candidatesOf(o, id) {
		switch {
		case nodenetwork.Lists(o.Spec.IPAM.Unassigning, p):
			delete(h.candidates, p)
		case kindOf(p) != k:
		case confirmed(o, p) && len(out) < want:
			out = append(out, p)
		case uses(o, p):
			delete(h.candidates, p) // assigned to a pod in the meantime
		default:
			listed++
		}
	}
	if len(out) > 0 {
		for _, p := range out {
			delete(h.candidates, p)
			h.handed[p] = true
		}
		return out
	}
	for _, p := range h.freeOf(o, f, id, k) {
		if listed >= want {
			break
		}
		h.candidates[p] = true
		listed++
	}
	return nil
}

// candidatesOf returns an ENI's candidates, highest first.
func (h *handshake) candidatesOf(o *v1alpha1.NodeNetwork, id string) (out []netip.Prefix) {
	for p := range h.candidates {
		if nodenetwork.ENIOf(o, p) == id {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y netip.Prefix) int { return y.Compare(x) })
	return out
}

// freeOf returns the addresses of one ENI and kind that can become candidates, highest first, so that two
// operators choose the same. Addresses still in the daemon's released list belong to an earlier
// handshake, which must end first.
func (h *handshake) freeOf(o *v1alpha1.NodeNetwork, f *fleetState, id string, k kind) (out []netip.Prefix) {
	assigned := f.unmarked(o)
	for p, at := range nodenetwork.Available(o) {
		if at != id || kindOf(p) != k || assigned[p] != id || h.candidates[p] || h.handedOrMarked(o, p) || f.primaries[p] {
			continue
		}
		if !nodenetwork.Lists(o.Status.IPAM.Released, p) && !uses(o, p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y netip.Prefix) int { return y.Compare(x) })
	return out
}

// withdrawENI makes candidates of all addresses of an ENI, unless a pod uses one of them, and reports
// whether the daemon has confirmed all of them.
func (h *handshake) withdrawENI(o *v1alpha1.NodeNetwork, id string, now time.Time) bool {
	if usesENI(o, id) {
		return false
	}
	h.asked[id] = now
	ready := true
	for p, at := range nodenetwork.Available(o) {
		if at != id {
			continue
		}
		if uses(o, p) {
			return false
		}
		if !h.handedOrMarked(o, p) && !nodenetwork.Lists(o.Status.IPAM.Released, p) {
			h.candidates[p] = true
		}
		ready = ready && confirmed(o, p)
	}
	return ready
}

// unlisted reports whether a candidate is not in the object's releasing yet.
func (h *handshake) unlisted(o *v1alpha1.NodeNetwork) bool {
	for p := range h.candidates {
		if !nodenetwork.Lists(o.Spec.IPAM.Releasing, p) {
			return true
		}
	}
	return false
}

// cancel drops the candidates that the fleet did not ask for in its last pass, if addresses are needed,
// and those that it has not asked for in a long time. It reports whether there were any.
func (h *handshake) cancel(o *v1alpha1.NodeNetwork, needed bool, passBegan, now time.Time) bool {
	before := len(h.candidates)
	for p := range h.candidates {
		asked := h.asked[nodenetwork.ENIOf(o, p)]
		if asked.Before(passBegan) && (needed || now.Sub(asked) > candidateTimeout) {
			delete(h.candidates, p)
		}
	}
	return len(h.candidates) != before
}

// confirmed reports whether the daemon has confirmed that no pod has or will get an address or prefix.
func confirmed(o *v1alpha1.NodeNetwork, p netip.Prefix) bool {
	text := nodenetwork.Format(p)
	return slices.Contains(o.Spec.IPAM.Releasing, text) && slices.Contains(o.Status.IPAM.Released, text) && !uses(o, p)
}

var _ = failpoint.Register("operator.withdraw.after", "operator.publish.before", "operator.publish.after")

// ObserveFailed implements fleet.Node: the daemon continues with what was published.
func (*node) ObserveFailed(error) {}

// Withdraw implements fleet.Node: it hands out what the daemon has confirmed, and makes candidates of what
// is still missing.
func (n *node) Withdraw(id string, want cloud.Amount) []netip.Prefix {
	now := n.c.now()
	n.mu.Lock()
	s := &n.state
	var out []netip.Prefix
	for k, count := range byKind(want) {
		out = append(out, s.handshake.withdraw(s.obj, &s.fleet, id, k, count, now)...)
	}
	unlisted := s.handshake.unlisted(s.obj)
	n.mu.Unlock()
	if unlisted {
		n.c.queue.Add(n.name)
	}
	if len(out) > 0 && failpoint.Hit("operator.withdraw.after") != nil {
		n.restore(out, true)
		return nil
	}
	return out
}

// WithdrawENI implements fleet.Node: it returns true once the daemon has confirmed all addresses of the
// ENI.
func (n *node) WithdrawENI(id string) bool {
	now := n.c.now()
	n.mu.Lock()
	s := &n.state
	ready := s.handshake.withdrawENI(s.obj, id, now) && !s.ownership.observeFirst
	unlisted := s.handshake.unlisted(s.obj)
	n.mu.Unlock()
	if unlisted {
		n.c.queue.Add(n.name)
	}
	return ready && failpoint.Hit("operator.withdraw.after") == nil
}

// RestoreWithdrawn implements fleet.Node.
func (n *node) RestoreWithdrawn(withdrawn []netip.Prefix) {
	n.restore(withdrawn, false)
	n.c.queue.Add(n.name)
}

// restore takes back addresses that were handed to the fleet. With candidates, they stay candidates,
// because the fleet never received them.
func (n *node) restore(list []netip.Prefix, candidates bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range list {
		delete(n.state.handshake.handed, p)
		if candidates {
			n.state.handshake.candidates[p] = true
		}
	}
}

// cancelUnneeded returns candidates to the daemon that pods need, that are no longer in excess, or that
// the fleet has not asked for in a long time. It is called after every pass of the fleet.
func (s *state) cancelUnneeded(u eni.Usage, now time.Time) bool {
	if s.fleet.inv == nil {
		return false
	}
	excess, loss := s.counter().excess(u, s.config.settings.Policy)
	needed := u.Waiting > 0 || s.fleet.status.Needed > 0 || loss > max(0, excess)
	return s.handshake.cancel(s.obj, needed, s.fleet.passBegan, now)
}
