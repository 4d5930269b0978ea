package networkpolicy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/policy"
)

// refusalsUntilHeld is how many changes the kernel has to refuse in a row until policies are held: it may lack memory for a moment.
const refusalsUntilHeld = 3

// holding finds policies that the kernel refuses. Their pods are closed, and the policies of other pods are in force. First all that could be
// the reason are held; then they are released in parts, to see which of them the kernel takes. The goroutine of Run changes
// it, with Enforcer.mu held.
type holding struct {
	refusals int                          // in a row
	fresh    map[policy.Ref]bool          // that came since the last change that the kernel took
	held     map[policy.Ref]refusedPolicy // in the node's table
	suspects [][]policy.Ref               // held, and not tried yet
	known    bool                         // suspects were refused one by one before
	due      bool                         // a part may be tried
	trial    []policy.Ref                 // was released
}

// refusedPolicy is a policy as it was refused.
type refusedPolicy struct {
	digest string
	err    error
}

// came notes policies that the operator has told about.
func (h *holding) came(policies map[policy.Ref]*policy.Policy) {
	if h.fresh == nil {
		h.fresh = map[policy.Ref]bool{}
	}
	for ref := range policies {
		h.fresh[ref] = true
	}
}

// unsure tells whether policies are held that the kernel may accept.
func (h *holding) unsure() bool { return len(h.suspects) > 0 && !h.known }

// of returns the policy among some that is held; nil: none is.
func (h *holding) of(list []*policy.Policy) *policy.Policy {
	for _, p := range list {
		if _, held := h.held[p.Ref]; held {
			return p
		}
	}
	return nil
}

// begin releases policies that have changed, to try them, and a part of the others if one is due.
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

// ended takes in how a change went, and tells whether another one should follow at once, with other policies held.
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
	if len(fresh) == 0 { // the kernel refuses to change anything, and has what it had
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

// failed adds why the policies of attachments are not in force to what failed, and returns an error for each held policy.
func (h *holding) failed(lists map[string]inForce, pods map[string]Pod, failed map[string]error) error {
	closed := map[policy.Ref][]string{}
	for attachment, f := range lists {
		p := h.of(f.list)
		if p == nil || !pods[attachment].byNode() {
			continue
		}
		name := f.pod.Namespace + "/" + f.pod.Name
		closed[p.Ref] = append(closed[p.Ref], name)
		failed[attachment] = fmt.Errorf("pod %s is closed: the kernel refuses %s: %w", name, p.Ref, h.held[p.Ref].err)
	}
	var errs []error
	for ref, r := range h.held {
		if h.unsure() {
			return fmt.Errorf("the kernel refuses some network policies, and the pods of all that it may be are closed until it is known which: %w", r.err)
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
		errs = append(errs, fmt.Errorf("the kernel refuses %s, so its pods are closed (%s): %w", ref, text, r.err))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
