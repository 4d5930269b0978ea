package nodeenis

import (
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
)

var _ = failpoint.Register("operator.withdraw.after", "operator.publish.before", "operator.publish.after")

// ObserveFailed implements fleet.Node: the daemon continues with what was published.
func (*node) ObserveFailed(error) {}

// Withdraw implements fleet.Node: it hands out what the daemon has confirmed,
// and makes candidates of what is still missing.
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

// WithdrawENI implements fleet.Node: true once the daemon has confirmed all
// that the ENI holds.
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

// restore takes back what was handed to the fleet. It stays a candidate if the fleet never got
// it.
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

// cancelUnneeded returns candidates to the daemon that pods need, that are no excess any more, or
// that the fleet has not asked for in a long time. It is called after every pass of the fleet.
func (s *state) cancelUnneeded(u eni.Usage, now time.Time) bool {
	if s.fleet.inv == nil {
		return false
	}
	excess, loss := s.counter().excess(u, s.config.settings.Policy)
	needed := u.Waiting > 0 || s.fleet.status.Needed > 0 || loss > max(0, excess)
	return s.handshake.cancel(s.obj, needed, s.fleet.passBegan, now)
}
