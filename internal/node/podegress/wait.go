package podegress

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

// waiter is an ADD that waits.
type waiter struct {
	pod  types.NamespacedName
	req  source.Request
	look retry.Signal // something may have changed
}

// Acquire implements daemon.Egress.
func (c *Clients) Acquire(ctx context.Context, req source.Request) (*attachment.Egress, error) {
	c.mu.Lock()
	v := c.book.decide(req)
	c.mu.Unlock()
	if v.wait == nil {
		return v.outcome()
	}
	begun := c.clock.Now()
	w := &waiter{nameOf(req.Pod), req, retry.NewSignal()}
	defer c.waits(w)()
	for {
		c.mu.Lock()
		v = c.book.decide(req)
		c.mu.Unlock()
		if v.wait == nil {
			c.cfg.Observer.Waited(c.clock.Now().Sub(begun))
			return v.outcome()
		}
		select {
		case <-w.look:
		case <-ctx.Done():
			v.wait.Err = errors.Join(v.wait.Err, ctx.Err())
			return nil, v.wait
		}
	}
}

func (v verdict) outcome() (*attachment.Egress, error) {
	if v.err != nil {
		return nil, v.err
	}
	return v.egress, nil
}

// waits notes that an ADD waits, until the function that it returns is called.
func (c *Clients) waits(w *waiter) (over func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.book.waiters[w.req.Key] = w
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.book.waiters, w.req.Key)
	}
}

// Why implements daemon.Egress.
func (c *Clients) Why(key attachment.Key) *source.Exhausted {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, ok := c.book.waiters[key]; ok {
		return c.book.decide(w.req).wait
	}
	return nil
}
