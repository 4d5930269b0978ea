package ovsdb

import (
	"context"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/model"
)

// ifaceRow has the watched columns of table Interface (ovs-vswitchd.conf.db(5)).
type ifaceRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	OFPort      *int              `ovsdb:"ofport"`
	Error       *string           `ovsdb:"error"`
}

func schema() (model.ClientDBModel, error) {
	m, err := model.NewClientDBModel(database, map[string]model.Model{"Interface": &ifaceRow{}})
	if err != nil {
		return model.ClientDBModel{}, fmt.Errorf("model of the database %s: %w", database, err)
	}
	return m, nil
}

// Change names a port of Berth's whose Interface changed or was removed.
type Change struct {
	Attachment, PortID string // both empty: any port may have changed
}

// watcher collects changes for one call of Watch.
type watcher struct {
	pending map[Change]bool // guarded by the client's mu
	wake    chan struct{}   // has one element when a change is pending
}

// Watch calls f with changes to the rows of Berth's ports until ctx ends: changes of the external
// IDs that a port needs, and removed rows. They include the client's own changes, so f has to
// compare the observed with the desired state (Check). At the start and after a lost connection,
// any port may have changed. f is called from the calling goroutine.
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
		// Row changes arrive only while there is a connection.
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
		if !connected { // report them after the next connection
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

// signal wakes Watch up. The caller holds the client's mu.
func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// tell adds a change for all watchers. The caller holds mu.
func (c *Client) tell(change Change) {
	for w := range c.watchers {
		w.pending[change] = true
		w.signal()
	}
}

// rowChanged processes a changed Interface. before or now may be nil.
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
		return // the client itself adds the rows
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
