package eni

import (
	"fmt"
	"reflect"
	"time"
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
		r.instance.typeKnown, r.instance.limitsOf = false, "" // the instance may have another than it had
	}
	r.cfg.Settings = s
	r.placement.asOf, r.placement.configured = time.Time{}, r.cfg.Clock.Now()
	r.retries.forgetConfigured()
	r.dropThrottled(gateGrow)
	r.dropThrottled(gateTrunk)
	return nil
}

// dropThrottled drops what was surely refused: it need not be asked for as it was.
func (r *Reconciler) dropThrottled(g gate) {
	p := r.retries.throttled[g]
	if p == nil || p.lost {
		return
	}
	delete(r.retries.throttled, g)
	r.retries.forget(g)
	p.reserved.end(0)
	if p.creates() {
		r.forgetIntent()
	}
}

// Close ends what the reconciler has set apart in what it shares with others.
// It is called once no pass is under way, and none follows.
func (r *Reconciler) Close() {
	r.kill()
	for _, p := range r.retries.throttled {
		p.reserved.end(0)
	}
}

// Ended tells whether End or Close was called.
func (r *Reconciler) Ended() bool { return r.life.Err() != nil }

// ObserveSince has only observations as of then or later count. It is called
// before the first pass, when someone else worked for the node until then.
func (r *Reconciler) ObserveSince(at time.Time) { r.confidence.staleSince = at }

// End has a pass that is under way do nothing after its present call, and
// publish nothing. Calls beside passes are given up. It may be called by any
// goroutine.
func (r *Reconciler) End() { r.kill() }

// Invalidate says that what was published may not be what the cloud has: nothing
// is published or planned before it was observed, late enough for every reply so
// far to show. It may be called by any goroutine, and from Publish.
func (r *Reconciler) Invalidate() { r.confidence.invalidated.Store(true) }

// CheckInstance says that the instance may have been stopped, or may run again. It is
// asked for before anything else is planned. It may be called by any goroutine.
func (r *Reconciler) CheckInstance() { r.instance.suspected.Store(true) }
