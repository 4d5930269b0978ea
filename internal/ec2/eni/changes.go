package eni

import (
	"context"
	"fmt"
	"sync"
)

// Change is settings that a reconciler is to apply while it runs.
type Change struct {
	Settings Settings
	// Fits returns why an instance with this inventory cannot have the settings; nil: it can.
	Fits func(*Inventory) error
	// Taken is called once the instance's limits are known: with nil the settings
	// are applied, otherwise err says why the previous ones still are. If changes
	// follow each other sooner, it is called for the last one only.
	Taken func(err error)
}

// changes applies settings that other goroutines hand over, and takes them back when the instance turns
// out not to fit them.
type changes struct {
	// configure applies settings, and publishes what they change, or leaves them as they were.
	configure func(context.Context, Settings) error
	current   func() Settings                    // returns those that are applied
	inventory func() (inv Inventory, known bool) // known: with the instance's limits

	mu   sync.Mutex // guards next
	next *Change    // the newest that no pass has taken

	trial *trial // belongs to the goroutine that reconciles; nil: none
}

// trial is a change of which it is not known yet whether the instance fits it. Nothing is planned
// meanwhile.
type trial struct {
	Change
	before Settings
}

// put hands over a change, from any goroutine.
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

// apply applies the newest change, and decides on it as soon as the instance's limits are known.
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

// fits returns why the instance is known not to fit the settings on trial.
func (c *changes) fits() error {
	inv, known := c.inventory()
	if !known || c.trial.Fits == nil {
		return nil
	}
	return c.trial.Fits(&inv)
}

// end leaves the settings as they are or, after an error, restores the previous ones.
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

// Reconfigure has the next pass apply other settings. It may be called by any goroutine, also before
// the first pass.
func (r *Reconciler) Reconfigure(c Change) {
	r.changes.put(c)
	r.Kick()
}
