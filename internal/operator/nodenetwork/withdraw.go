package nodenetwork

import (
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
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
	out := slices.Concat(h.withdraw(n.obj, &n.fleet, id, want.Addresses, true, now), h.withdraw(n.obj, &n.fleet, id, want.Prefixes, false, now))
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
	needed := u.Waiting > 0 || s.Needed > 0 || n.excess(u) < n.handshake.addresses()
	return n.handshake.cancel(n.obj, needed, passBegan, n.c.now())
}

// excess is how many addresses the policy could do without. n.mu is held.
func (n *node) excess(u eni.Usage) int {
	total, busy := 0, ipam.Usage{Waiting: u.Waiting}
	for p := range n.fleet.unmarked(n.obj) {
		if !n.handshake.handedOrMarked(n.obj, p) {
			total += weight(p)
		}
	}
	for _, e := range u.ENIs {
		busy.Used += e.Used
	}
	l := n.fleet.inv.Limits
	return total - n.config.settings.Policy.Demand(max(0, l.IPv4PerENI-1), l.Prefixes, busy).Keep
}

// reserved tells what is not free although no pod uses it: on its way back, or an
// ENI's own address, which EC2 does not unassign. n.mu is held.
func (n *node) reserved(p netip.Prefix) bool {
	return n.handshake.handedOrMarked(n.obj, p) || n.fleet.primaries[p]
}
