package networkpolicy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/policy"
)

// refusalsUntilHeld is the number of consecutive rejections before policies are held. A single one may be a temporary lack of memory.
const refusalsUntilHeld = 3

// holding finds policies that the kernel rejects. Their pods are closed, and the policies of other pods are in force. It first
// holds back all candidates, then releases them in halves to see which the kernel accepts. The goroutine of Run changes it, with
// Enforcer.mu held.
type holding struct {
	refusals int                          // in a row
	fresh    map[policy.Ref]bool          // received since the last accepted change
	held     map[policy.Ref]refusedPolicy // in the node's table
	suspects [][]policy.Ref               // held, and not tried yet
	known    bool                         // suspects were rejected one by one before
	due      bool                         // a part may be tried
	trial    []policy.Ref                 // released for this attempt
}

// refusedPolicy is the version of a policy that was rejected.
type refusedPolicy struct {
	digest string
	err    error
}

// came records policies that the operator has sent.
func (h *holding) came(policies map[policy.Ref]*policy.Policy) {
	if h.fresh == nil {
		h.fresh = map[policy.Ref]bool{}
	}
	for ref := range policies {
		h.fresh[ref] = true
	}
}

// unsure reports whether some held policies may be acceptable.
func (h *holding) unsure() bool { return len(h.suspects) > 0 && !h.known }

// of returns the first held policy of a list, or nil.
func (h *holding) of(list []*policy.Policy) *policy.Policy {
	for _, p := range list {
		if _, held := h.held[p.Ref]; held {
			return p
		}
	}
	return nil
}

// begin releases policies that have changed and, if a trial is due, a part of the others.
func (h *holding) begin(used map[policy.Ref]*policy.Policy) {
	for ref, r := range h.held {
		p := used[ref]
		if p != nil && p.Digest() == r.digest {
			continue
		}
		if delete(h.held, ref); p != nil {
			h.trial = append(h.trial, ref)
		}
	}
	for i, part := range h.suspects {
		h.suspects[i] = slices.DeleteFunc(part, func(ref policy.Ref) bool { _, held := h.held[ref]; return !held })
	}
	h.suspects = slices.DeleteFunc(h.suspects, func(part []policy.Ref) bool { return len(part) == 0 })
	if !h.due || len(h.held) == 0 {
		return
	}
	h.due = false
	if len(h.suspects) == 0 { // each may be accepted by now
		h.known = true
		for ref := range h.held {
			h.suspects = append(h.suspects, []policy.Ref{ref})
		}
	}
	for _, ref := range h.suspects[0] {
		delete(h.held, ref)
	}
	h.trial, h.suspects = append(h.trial, h.suspects[0]...), h.suspects[1:]
}

// ended processes the result of a change, and reports whether another one, with other policies held, should follow at once.
func (h *holding) ended(err error, used map[policy.Ref]*policy.Policy) (again bool) {
	trial := h.trial
	h.trial = nil
	switch {
	case err == nil:
		h.refusals, h.fresh = 0, nil
		return false
	case len(trial) > 0:
		h.hold(err, trial, used)
		if half := len(trial) / 2; half > 0 {
			h.suspects = append(h.suspects, trial[:half], trial[half:])
		}
		return true
	}
	if h.refusals++; h.refusals < refusalsUntilHeld {
		return false
	}
	var fresh, all []policy.Ref
	for ref := range used {
		if _, held := h.held[ref]; held {
			continue
		}
		all = append(all, ref)
		if h.fresh[ref] {
			fresh = append(fresh, ref)
		}
	}
	if len(fresh) == 0 {
		fresh = all
	}
	if len(fresh) == 0 { // the kernel rejects every change, and keeps its state
		h.held, h.suspects = nil, nil
		return false
	}
	h.hold(err, fresh, used)
	h.suspects, h.known = append(h.suspects, fresh), false
	return true
}

func (h *holding) hold(err error, refs []policy.Ref, used map[policy.Ref]*policy.Policy) {
	if h.held == nil {
		h.held = map[policy.Ref]refusedPolicy{}
	}
	for _, ref := range refs {
		if p := used[ref]; p != nil {
			h.held[ref] = refusedPolicy{p.Digest(), err}
		}
	}
}

// failed adds an error for each attachment with a held policy to failed, and returns an error for each held policy.
func (h *holding) failed(lists map[string]inForce, pods map[string]Pod, failed map[string]error) error {
	closed := map[policy.Ref][]string{}
	for attachment, f := range lists {
		p := h.of(f.list)
		if p == nil || !pods[attachment].byNode() {
			continue
		}
		name := f.pod.Namespace + "/" + f.pod.Name
		closed[p.Ref] = append(closed[p.Ref], name)
		failed[attachment] = fmt.Errorf("pod %s is closed: the kernel rejects %s: %w", name, p.Ref, h.held[p.Ref].err)
	}
	var errs []error
	for ref, r := range h.held {
		if h.unsure() {
			return fmt.Errorf("the kernel rejects some network policies; until berthd has found which, the pods of all candidates are closed: %w", r.err)
		}
		names := closed[ref]
		slices.Sort(names)
		text := strings.Join(names[:min(len(names), 5)], ", ")
		if len(names) > 5 {
			text += fmt.Sprintf(" and %d more", len(names)-5)
		}
		if len(names) == 0 {
			text = "none on this node yet"
		}
		errs = append(errs, fmt.Errorf("the kernel rejects %s, so its pods are closed (%s): %w", ref, text, r.err))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
