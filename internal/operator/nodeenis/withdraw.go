package nodeenis

import (
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/ipam"
)

var _ = failpoint.Register("operator.withdraw.after", "operator.publish.before", "operator.publish.after")

// ObserveFailed implements fleet.Node: the daemon goes on with what was published.
func (*node) ObserveFailed(error) {}

// Withdraw implements fleet.Node: it hands out what the daemon has confirmed,
// and makes candidates of what is still missing.
func (n *node) Withdraw(id string, want cloud.Amount) []netip.Prefix {
	now := n.c.now()
	n.mu.Lock()
	h := &n.handshake
	var out []netip.Prefix
	for k, count := range byKind(want) {
		out = append(out, h.withdraw(n.obj, &n.fleet, id, k, count, now)...)
	}
	unlisted := h.unlisted(n.obj)
	n.mu.Unlock()
	if unlisted {
		n.c.queue.Add(n.name)
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
		delete(n.handshake.handed, p)
		n.handshake.candidates[p] = true
	}
}

// WithdrawENI implements fleet.Node: true once the daemon has confirmed all
// that the ENI holds.
func (n *node) WithdrawENI(id string) bool {
	n.mu.Lock()
	ready := n.handshake.withdrawENI(n.obj, id, n.c.now()) && !n.ownership.observeFirst
	unlisted := n.handshake.unlisted(n.obj)
	n.mu.Unlock()
	if unlisted {
		n.c.queue.Add(n.name)
	}
	return ready && failpoint.Hit("operator.withdraw.after") == nil
}

// RestoreWithdrawn implements fleet.Node.
func (n *node) RestoreWithdrawn(withdrawn []netip.Prefix) {
	n.mu.Lock()
	for _, p := range withdrawn {
		delete(n.handshake.handed, p)
	}
	n.mu.Unlock()
	n.c.queue.Add(n.name)
}

// cancelUnneeded gives candidates back to the daemon that pods need, that are
// no excess any more, or that the fleet has not asked for in a long time. It is
// called after every pass of the fleet. n.mu is held.
func (n *node) cancelUnneeded(passBegan time.Time, s eni.Status) bool {
	if len(n.handshake.candidates) == 0 || n.fleet.inv == nil {
		return false
	}
	u := n.usage()
	excess, loss := n.excess(u)
	needed := u.Waiting > 0 || s.Needed > 0 || loss > max(0, excess)
	return n.handshake.cancel(n.obj, needed, passBegan, n.c.now())
}

// excess is for how many pods fewer the policy would have addresses, and for how many
// fewer there would be some without the candidates, of what is not on its way back.
// n.mu is held.
func (n *node) excess(u eni.Usage) (excess, loss int) {
	policy := n.config.settings.Policy
	all, kept, busy := amounts{}, amounts{}, ipam.Usage{Waiting: u.Waiting}
	for p, id := range n.fleet.unmarked(n.obj) {
		if n.handshake.handedOrMarked(n.obj, p) {
			continue
		}
		all.add(id, p)
		if !n.handshake.candidates[p] {
			kept.add(id, p)
		}
	}
	for _, e := range u.ENIs {
		busy.Used += e.Used
	}
	total := all.pods(policy.Families)
	return total - plan.Demand(n.fleet.inv.Limits, policy, busy).Keep, total - kept.pods(policy.Families)
}

// reserved tells what is not free although no pod uses it: on its way back, or an
// ENI's own address, which EC2 does not unassign. n.mu is held.
func (n *node) reserved(p netip.Prefix) bool {
	return n.handshake.handedOrMarked(n.obj, p) || n.fleet.primaries[p]
}
