package datapath

import (
	"context"
	"fmt"
	"sync"
)

// claims keeps the three who act on pod links by name apart: AddPod, which may
// take up a link that is there already, ReapLinks, which removes what was
// detached, and Repair, which removes what nobody wants.
type claims struct {
	mu    sync.Mutex
	live  map[string]bool          // guarded by mu: added by this Node and not detached since
	dying map[string]chan struct{} // guarded by mu: being removed; closed when done
}

func newClaims() *claims {
	return &claims{live: map[string]bool{}, dying: map[string]chan struct{}{}}
}

// take marks a link as live. It waits for a removal of it that has begun.
func (c *claims) take(ctx context.Context, link string) error {
	for {
		c.mu.Lock()
		gone := c.dying[link]
		if gone == nil {
			c.live[link] = true
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		select {
		case <-gone:
		case <-ctx.Done():
			return fmt.Errorf("wait for the removal of %s: %w", link, ctx.Err())
		}
	}
}

// drop ends a link's being live.
func (c *claims) drop(link string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.live, link)
}

func (c *claims) isLive(link string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live[link]
}

// bury marks those links as dying that are neither live nor dying already, and
// returns them with the call to make when they are removed.
func (c *claims) bury(links []string) (mine []string, done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := make(chan struct{})
	for _, link := range links {
		if !c.live[link] && c.dying[link] == nil {
			c.dying[link] = gone
			mine = append(mine, link)
		}
	}
	return mine, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, link := range mine {
			delete(c.dying, link)
		}
		close(gone)
	}
}
