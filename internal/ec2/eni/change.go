package eni

import (
	"context"
	"fmt"
	"sync"
)

// Change is settings that a reconciler is to go by while it runs.
type Change struct {
	Settings Settings
	// Fits tells why an instance of which this is known cannot have them; nil: it can.
	Fits func(*Inventory) error
	// Taken is called once the instance's limits are known: the settings count, or err
	// says why those before them do. Of changes that follow each other sooner only the
	// last is told.
	Taken func(err error)
}

// mailbox has the newest change that no pass has taken up.
type mailbox struct {
	mu   sync.Mutex // guards next
	next *Change
}

func (m *mailbox) put(c Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = &c
}

func (m *mailbox) take() *Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.next
	m.next = nil
	return c
}

// trial is a change of which it is not known yet whether the instance can have it.
// Nothing is planned meanwhile.
type trial struct {
	Change
	before Settings
}

// Reconfigure has the next pass take up other settings. It may be called by any
// goroutine, also before the first pass.
func (r *Reconciler) Reconfigure(c Change) {
	r.changes.put(c)
	r.Kick()
}

// takeChange takes up settings that were put in, and sees that the instance can have
// them as soon as its limits are known.
func (r *Reconciler) takeChange(ctx context.Context) {
	if c := r.changes.take(); c != nil {
		t := &trial{*c, r.cfg.Settings}
		if r.trial != nil {
			t.before = r.trial.before
		}
		r.trial = t
		if err := r.fits(c); err != nil {
			r.endTrial(ctx, err)
			return
		}
		if err := r.reconfigure(ctx, c.Settings); err != nil {
			r.endTrial(ctx, err)
			return
		}
	}
	if r.trial != nil && r.instance.limitsKnown() {
		r.endTrial(ctx, r.fits(&r.trial.Change))
	}
}

func (r *Reconciler) fits(c *Change) error {
	if !r.instance.limitsKnown() || c.Fits == nil {
		return nil
	}
	inv := r.inventory()
	return c.Fits(&inv)
}

// endTrial leaves the settings as they are or, after an error, as they were.
func (r *Reconciler) endTrial(ctx context.Context, err error) {
	t := r.trial
	r.trial = nil
	if err != nil {
		if back := r.reconfigure(ctx, t.before); back != nil {
			err = fmt.Errorf("%w; %w", err, back)
		}
	}
	t.Taken(err)
}

// reconfigure is Configure that publishes what the settings change of the inventory,
// if that was published before.
func (r *Reconciler) reconfigure(ctx context.Context, s Settings) error {
	before := r.cfg.Settings
	if err := r.Configure(s); err != nil {
		return err
	}
	serves := before.Policy.FirstInterfaceIndex != s.Policy.FirstInterfaceIndex || before.primaryServes() != s.primaryServes()
	if serves && !r.confidence.confirmed.IsZero() {
		_ = r.publish(ctx) // else the next observation does
	}
	return nil
}
