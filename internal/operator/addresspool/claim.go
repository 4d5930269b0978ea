package addresspool

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
)

// sign is what this operator saw itself of a node. A time that another clock
// wrote tells only whether it changed: clocks differ.
type sign struct {
	gone    time.Time            // since when there is no Node; zero: there is one
	renewed map[string]time.Time // RenewTime by block, as last seen
	asked   map[types.UID]bool   // requests, as last seen
	alive   time.Time            // when the daemon last gave a sign: renewed a block, or made a request
}

// look takes in a node's blocks and requests at now, and whether it has a Node.
func (s *sign) look(now time.Time, nodeGone bool, blocks []v1alpha1.AddressBlock, requests []v1alpha1.BlockRequest) {
	switch {
	case !nodeGone:
		s.gone = time.Time{}
	case s.gone.IsZero():
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
		if known && !was.Equal(at) || !known && s.renewed != nil { // a new one was asked for
			s.alive = now
		}
	}
	asked := make(map[types.UID]bool, len(requests))
	for i := range requests {
		uid := requests[i].UID
		asked[uid] = true
		if s.asked != nil && !s.asked[uid] {
			s.alive = now
		}
	}
	s.renewed, s.asked = renewed, asked
}

// lapsed tells how long it is until a node without a Node has given its blocks
// up: when neither was seen of it for the grace, a Node nor a renewal. Not known:
// there is a Node.
func (s *sign) lapsed(now time.Time, grace time.Duration) (left time.Duration, known bool) {
	if s.gone.IsZero() {
		return 0, false
	}
	since := s.gone
	if s.alive.After(since) {
		since = s.alive
	}
	return since.Add(grace).Sub(now), true
}

// fenced tells how long it is until a node that is there and down has lost its
// blocks by the policy that asks for after; not known: it has not by itself.
// Only an administrator's word that it is switched off counts (Kubernetes
// documentation, "Non-graceful node shutdown handling").
func fenced(n *corev1.Node, now time.Time, after time.Duration) (left time.Duration, known bool) {
	if after <= 0 || len(outOfService(n)) == 0 {
		return 0, false
	}
	for _, c := range readiness(n) {
		if c.Status != corev1.ConditionTrue {
			return c.LastTransitionTime.Add(after).Sub(now), true
		}
	}
	return 0, false
}

// quoted writes names as JSON.
func quoted(names []string) string {
	if names == nil {
		names = []string{}
	}
	text, _ := json.Marshal(names) // of strings
	return string(text)
}
