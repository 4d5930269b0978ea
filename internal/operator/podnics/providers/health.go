package providers

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/lanes"
)

// patience is how many calls in a row must fail for a provider that answered to be taken
// for one that does not.
const patience = 3

// health is what came of the calls of a provider, whoever made them.
type health struct {
	worse func() // called when it is worth a look at the VPC; without locks

	mu        sync.Mutex        // guards all below
	failures  int               // in a row that had no answer of use
	forbidden map[string]string // by call, what the last one was refused with
}

func newHealth(worse func()) *health { return &health{worse: worse, forbidden: map[string]string{}} }

// told takes in what came of a call.
func (h *health) told(op string, err error) {
	if h.note(op, err) {
		h.worse()
	}
}

func (h *health) note(op string, err error) (worse bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.forbidden[op]
	switch vpcport.ClassOf(err) {
	case vpcport.Transient:
		if errors.Is(err, context.Canceled) { // the caller's doing
			return false
		}
		h.failures++
		return h.failures == patience
	case vpcport.Unauthorized, vpcport.NetworkGone:
		return op != lanes.OpNetwork // which a look asks, and sees itself
	case vpcport.Forbidden:
		h.failures = 0
		h.forbidden[op] = err.Error()
		return was == ""
	case vpcport.Throttled: // nothing was tried
		return false
	default:
		h.failures = 0
		delete(h.forbidden, op)
		return was != ""
	}
}

// away tells whether nobody gets answers.
func (h *health) away() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failures >= patience
}

// denied is the refusal of what the credentials may not do; empty: they may do all that
// was asked for.
func (h *health) denied() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, op := range slices.Sorted(maps.Keys(h.forbidden)) {
		if op != lanes.OpNetwork {
			return h.forbidden[op]
		}
	}
	return ""
}
