package ovsdb

import (
	"context"

	"github.com/ovn-kubernetes/libovsdb/model"
)

// Change names a port of Berth's whose Interface changed or went.
type Change struct {
	Attachment, PortID string // both empty: anything may have changed
}

// watcher collects changes for one call of Watch.
type watcher struct {
	pending map[Change]bool // guarded by the client's mu
	wake    chan struct{}   // has one element when something is pending
}

// Watch calls f with what changed of the rows of Berth's ports, until ctx ends: external IDs
// of an Interface that a port needs, or the row as a whole. Changes of the client's own are among them,
// so f compares what is there with what is wanted (Check). At first, and after the connection
// was lost, anything may have changed. f is called by one goroutine, the caller's.
func (c *Client) Watch(ctx context.Context, f func([]Change)) {
	w := &watcher{pending: map[Change]bool{{}: true}, wake: make(chan struct{}, 1)}
	w.wake <- struct{}{}
	c.mu.Lock()
	c.watchers[w] = true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watchers, w)
	}()
	for {
		// Rows are told of while there is a connection.
		if _, err := c.connection(ctx); err != nil {
			return
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return
		}
		c.mu.Lock()
		var list []Change
		for change := range w.pending {
			list = append(list, change)
		}
		clear(w.pending)
		connected := c.conn != nil
		if !connected { // told once there is one again
			for _, change := range list {
				w.pending[change] = true
			}
			w.signal()
		}
		c.mu.Unlock()
		if connected && len(list) > 0 {
			f(list)
		}
	}
}

// signal has Watch look. The caller has the client's mu.
func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// tell notes a change for all watchers. The caller has mu.
func (c *Client) tell(change Change) {
	for w := range c.watchers {
		w.pending[change] = true
		w.signal()
	}
}

// rowChanged notes that an Interface was before, and is now; either may be nil.
func (c *Client) rowChanged(before, now model.Model) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, _ := before.(*ifaceRow)
	is, _ := now.(*ifaceRow)
	for _, row := range []*ifaceRow{was, is} {
		if row != nil {
			c.wake(row.Name)
		}
	}
	if was == nil || was.ExternalIDs[AttachmentID] == "" {
		return // new rows are the client's own
	}
	if is != nil {
		same := true
		for _, key := range []string{AttachmentID, IfaceID, AttachedMAC, IfaceStatus, VMUUID} {
			same = same && was.ExternalIDs[key] == is.ExternalIDs[key]
		}
		if same {
			return
		}
	}
	c.tell(Change{Attachment: was.ExternalIDs[AttachmentID], PortID: was.ExternalIDs[IfaceID]})
}
