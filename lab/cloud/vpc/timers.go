package vpc

import (
	"slices"
	"time"
)

// timer is something that happens by itself at a moment, with the lock held.
type timer struct {
	at time.Time
	do func()
}

// after has do run, with the lock held, once d has passed by the cloud's
// clock; at once when d is zero. The lock is held.
func (c *Cloud) after(d time.Duration, do func()) {
	if d <= 0 {
		do()
		return
	}
	c.eventually(d, do)
	due := c.clock.After(d)
	go func() {
		select {
		case <-due:
			c.read(func() {})
		case <-c.done:
		}
	}()
}

// eventually is after for what nobody waits for: it runs with the first call
// of any kind once d has passed. The lock is held.
func (c *Cloud) eventually(d time.Duration, do func()) {
	at := c.clock.Now().Add(d)
	i, _ := slices.BinarySearchFunc(c.timers, at, func(t timer, at time.Time) int {
		if t.at.After(at) {
			return 1
		}
		return -1 // behind those of the same moment
	})
	c.timers = slices.Insert(c.timers, i, timer{at, do})
}

// settle runs what has fallen due. Every reader and writer settles first, so
// that nobody sees a state that should be over. The lock is held.
func (c *Cloud) settle() {
	now := c.clock.Now()
	for len(c.timers) > 0 && !c.timers[0].at.After(now) {
		due := c.timers[0]
		c.timers = c.timers[1:]
		due.do()
	}
}

// change runs f with the lock held and then delivers the events it caused.
func (c *Cloud) change(f func() error) error {
	c.mu.Lock()
	c.settle()
	err := f()
	c.mu.Unlock()
	c.deliver()
	return err
}

// read runs f with the lock held.
func (c *Cloud) read(f func()) {
	_ = c.change(func() error { f(); return nil })
}
