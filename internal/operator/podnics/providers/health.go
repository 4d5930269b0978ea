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

// patience is how many calls in a row must fail until a provider counts as not answering.
const patience = 3

// health is the result of all calls to a provider.
type health struct {
	worse func() // called, without locks, when the VPC should be looked up

	mu        sync.Mutex        // guards all below
	failures  int               // calls in a row without a useful answer
	forbidden map[string]string // by operation, the error that forbade the last call
}

func newHealth(worse func()) *health { return &health{worse: worse, forbidden: map[string]string{}} }

// observe takes in the result of a call.
func (h *health) observe(op string, err error) {
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
		if errors.Is(err, context.Canceled) { // by the caller
			return false
		}
		h.failures++
		return h.failures == patience
	case vpcport.Unauthorized, vpcport.NetworkGone:
		return op != lanes.OpNetwork // a look makes that call, and sees the error itself
	case vpcport.Forbidden:
		h.failures = 0
		h.forbidden[op] = err.Error()
		return was == ""
	case vpcport.Throttled: // the provider did nothing
		return false
	default:
		h.failures = 0
		delete(h.forbidden, op)
		return was != ""
	}
}

// away tells whether the provider does not answer.
func (h *health) away() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failures >= patience
}

// denied is the error of an operation that the credentials may not do; empty: none was forbidden.
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
