package eni

import (
	"context"
	"fmt"
	"sync"
)

// Change carries settings for a running reconciler.
type Change struct {
	Settings Settings
	// Fits returns why the settings do not suit an instance with this inventory, or nil.
	Fits func(*Inventory) error
	// Taken is called once the instance's limits are known: with nil if the settings were applied, otherwise with
	// the reason why the previous ones remain. If several changes arrive before that, it is called only for the
	// last one.
	Taken func(err error)
}

// changes applies settings passed by other goroutines, and reverts them if they turn out not to suit the
// instance.
type changes struct {
	// configure applies settings and publishes the effects, or changes nothing on error.
	configure func(context.Context, Settings) error
	current   func() Settings                    // returns the applied settings
	inventory func() (inv Inventory, known bool) // known: includes the instance's limits

	mu   sync.Mutex // guards next
	next *Change    // the newest pending change

	trial *trial // belongs to the reconciler's goroutine; may be nil
}

// trial is an applied change of which it is not yet known whether it suits the instance. Nothing is planned until
// that is known.
type trial struct {
	Change
	before Settings
}

// put submits a change, from any goroutine.
func (c *changes) put(n Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = &n
}

func (c *changes) take() *Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.next
	c.next = nil
	return n
}

// apply applies the newest change, and accepts or reverts it as soon as the instance's limits are known.
func (c *changes) apply(ctx context.Context) {
	if n := c.take(); n != nil {
		t := &trial{*n, c.current()}
		if c.trial != nil {
			t.before = c.trial.before
		}
		c.trial = t
		err := c.fits()
		if err == nil {
			err = c.configure(ctx, n.Settings)
		}
		if err != nil {
			c.end(ctx, err)
			return
		}
	}
	if c.trial == nil {
		return
	}
	if _, known := c.inventory(); known {
		c.end(ctx, c.fits())
	}
}

// fits returns why the settings on trial are known not to suit the instance.
func (c *changes) fits() error {
	inv, known := c.inventory()
	if !known || c.trial.Fits == nil {
		return nil
	}
	return c.trial.Fits(&inv)
}

// end accepts the settings or, after an error, restores the previous ones.
func (c *changes) end(ctx context.Context, err error) {
	t := c.trial
	c.trial = nil
	if err != nil {
		if back := c.configure(ctx, t.before); back != nil {
			err = fmt.Errorf("%w; %w", err, back)
		}
	}
	t.Taken(err)
}

// Reconfigure makes the next pass apply other settings. It may be called from any goroutine, also before
// the first pass.
func (r *Reconciler) Reconfigure(c Change) {
	r.changes.put(c)
	r.Kick()
}
