package addresspool

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/watched"
)

// liveness is what this operator has seen of a node whose Node is missing. Of a time that another
// clock wrote only a change counts, since clocks differ.
type liveness struct {
	gone    time.Time            // since when the Node is missing
	alive   time.Time            // when the daemon was last seen to renew a block or make a request
	renewed map[string]time.Time // RenewTime by block, as last seen; nil: nothing was seen yet
	asked   map[types.UID]bool   // requests, as last seen
}

// observe takes a node's blocks and requests at now.
func (s *liveness) observe(now time.Time, blocks []v1alpha1.AddressBlock, requests []v1alpha1.BlockRequest) {
	first := s.renewed == nil
	if first {
		s.gone = now
	}
	renewed := make(map[string]time.Time, len(blocks))
	for i := range blocks {
		b := &blocks[i]
		var at time.Time
		if b.Status.RenewTime != nil {
			at = b.Status.RenewTime.Time
		}
		renewed[b.Name] = at
		was, known := s.renewed[b.Name]
		if !first && (!known && !at.IsZero() || known && !was.Equal(at)) {
			s.alive = now
		}
	}
	asked := make(map[types.UID]bool, len(requests))
	for i := range requests {
		uid := requests[i].UID
		asked[uid] = true
		if !first && !s.asked[uid] {
			s.alive = now
		}
	}
	s.renewed, s.asked = renewed, asked
}

// left is how long it is until the node has given up its blocks: it has once, for the grace
// period, the Node was missing and the daemon neither renewed a block nor made a request. Not
// above 0: it has.
func (s *liveness) left(now time.Time, grace time.Duration) time.Duration {
	since := s.gone
	if s.alive.After(since) {
		since = s.alive
	}
	return since.Add(grace).Sub(now)
}

// fenced is how long it is until a node that exists and is down loses its blocks, if the policy
// says so after some time; not known: it does not lose them. The node must have the taint by which
// an administrator confirms that it is shut down (Kubernetes documentation, "Non-graceful node
// shutdown handling").
func fenced(n *corev1.Node, now time.Time, after time.Duration) (left time.Duration, known bool) {
	if after <= 0 || !watched.OutOfService(n) {
		return 0, false
	}
	c := watched.Readiness(n)
	if c == nil || c.Status == corev1.ConditionTrue {
		return 0, false
	}
	return c.LastTransitionTime.Add(after).Sub(now), true
}
