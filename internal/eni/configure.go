package eni

import (
	"fmt"
	"reflect"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
)

// Configure takes other settings for what follows; what is known of the node
// stays. What failed as it does until a person puts it right is tried again at
// once. It is called from the goroutine that reconciles. The error names the
// field, and leaves the settings as they were.
func (r *Reconciler) Configure(s Settings) error {
	if reflect.DeepEqual(s, r.cfg.Settings) {
		return nil
	}
	if err := s.Policy.Validate(); err != nil {
		return fmt.Errorf("ENI reconciler: Policy: %w", err)
	}
	if s.InstanceType != r.cfg.InstanceType {
		r.typed, r.limitsOf = false, "" // the instance may have another than it had
	}
	r.cfg.Settings = s
	r.subnetsAt = time.Time{}
	for g, b := range r.gates {
		if b.class == cloud.Bug || b.class == cloud.Gone || b.class == cloud.Permission {
			delete(r.gates, g)
		}
	}
	// What was surely refused need not be asked for as it was.
	if p := r.pending[gateGrow]; p != nil && !p.lost {
		delete(r.pending, gateGrow)
		delete(r.gates, gateGrow)
		p.hold.end(0)
		if p.Kind == plan.Create {
			r.forgetIntent()
		}
	}
	return nil
}

// Close ends what the reconciler has set apart in what it shares with others.
// It is called once no pass is under way, and none follows.
func (r *Reconciler) Close() {
	r.kill()
	for _, p := range r.pending {
		p.hold.end(0)
	}
}

// Ended tells whether End or Close was called.
func (r *Reconciler) Ended() bool { return r.life.Err() != nil }

// ObserveSince has only observations as of then or later count. It is called
// before the first pass, when someone else worked for the node until then.
func (r *Reconciler) ObserveSince(at time.Time) { r.astrayAt = at }

// End has a pass that is under way do nothing after its present call, and
// publish nothing. Calls beside passes are given up. It may be called by any
// goroutine.
func (r *Reconciler) End() { r.kill() }

// Doubt says that what was published may not be what the cloud has: nothing is
// published or planned before it was observed, late enough for every reply so
// far to show. It may be called by any goroutine, and from Publish.
func (r *Reconciler) Doubt() { r.doubted.Store(true) }

// Suspect says that the instance may have been stopped, or may run again. It is
// asked for before anything else is planned. It may be called by any goroutine.
func (r *Reconciler) Suspect() { r.suspected.Store(true) }

// heedSuspicion takes up what Suspect said: what the last answer was matters no
// more.
func (r *Reconciler) heedSuspicion(now time.Time) {
	if !r.suspected.Swap(false) {
		return
	}
	r.uncertain, r.suspectedAt = true, now
	if b := r.gates[gateInstance]; b != nil {
		b.until = now
	}
}

// heedDoubt takes up what Doubt said.
func (r *Reconciler) heedDoubt(now time.Time) {
	if !r.doubted.Swap(false) {
		return
	}
	r.silent = true
	r.goAstray(now)
	if visible := r.replied.Add(r.cfg.Lag); visible.After(now) {
		r.quietUntil = visible
	}
	if p := r.pending[gateShrink]; p != nil && !p.lost { // someone must say so again
		delete(r.pending, gateShrink)
	}
}

// goAstray has the cloud observed before anything is planned.
func (r *Reconciler) goAstray(now time.Time) { r.astray, r.astrayAt = true, now }

// believe makes listings the truth again over every reply so far.
func (v *view) believe() {
	for _, k := range v.enis {
		clear(k.added)
		k.replied = time.Time{}
	}
}
