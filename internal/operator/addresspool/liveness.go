package addresspool

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/watched"
)

// liveness is what this operator saw itself of a node whose Node is missing. A time
// that another clock wrote tells only whether it changed: clocks differ.
type liveness struct {
	gone    time.Time            // since when there is no Node
	alive   time.Time            // when the daemon was last seen to live: it renewed a block, or made a request
	renewed map[string]time.Time // RenewTime by block, as last seen; nil: nothing was
	asked   map[types.UID]bool   // requests, as last seen
}

// observe takes in a node's blocks and requests at now.
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

// left is how long it is until the node has given its blocks up: for the grace
// period there was no Node, and its daemon neither renewed a block nor made a
// request. Not above 0: it has.
func (s *liveness) left(now time.Time, grace time.Duration) time.Duration {
	since := s.gone
	if s.alive.After(since) {
		since = s.alive
	}
	return since.Add(grace).Sub(now)
}

// fenced tells how long it is until a node that is there and down has lost its
// blocks by the policy that asks for after; not known: it has not by itself.
// Only an administrator's word that it is switched off counts (Kubernetes
// documentation, "Non-graceful node shutdown handling").
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
