package podegress

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

// reportsAtOnce is how many reports are under way at one moment: gateways serve a pod once it
// was told of, and a burst of pods has a second until they send their first packets again
// (RFC 6298, section 2).
const reportsAtOnce = 16

// TakeUp implements daemon.Egress.
func (c *Clients) TakeUp(ready []attachment.Record) {
	c.change(func(b *book) {
		for _, rec := range ready {
			if told(rec) {
				b.setUp(rec)
			}
		}
	})
}

// SetUp implements daemon.Egress.
func (c *Clients) SetUp(rec attachment.Record) {
	if told(rec) {
		c.change(func(b *book) { b.setUp(rec) })
	}
}

// Failed implements daemon.Egress. Of an ADD the pod is told by its own Event.
func (c *Clients) Failed(rec attachment.Record, err error) {
	if told(rec) && rec.State == attachment.Ready {
		c.change(func(b *book) { b.fail(rec, err) })
	}
}

// Gone implements daemon.Egress.
func (c *Clients) Gone(rec attachment.Record) {
	if told(rec) {
		c.change(func(b *book) { b.end(rec) })
	}
}

// told tells whether an attachment is one by which a pod may be a client.
func told(rec attachment.Record) bool {
	return rec.Key.IfName == firstInterface && rec.Pod.Name != ""
}

// reports tells the operator of pods by their EgressClients' status, until ctx ends. What is
// said follows from what is set up and what the objects say, so that nothing is kept of what
// is still to be said, also over a restart. Of one EgressClient one report is under way at a
// time, so that what was said last is what stands.
func (c *Clients) reports(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	var outage retry.Backoff // of the API server; refusals are each EgressClient's own
	ended := make(chan error, reportsAtOnce)
	for underWay := 0; ctx.Err() == nil; {
		var due <-chan time.Time
		list, next := c.due(outage.Until, reportsAtOnce-underWay)
		if !next.IsZero() {
			due = c.clock.After(next.Sub(c.clock.Now()))
		}
		for _, s := range list {
			underWay++
			wg.Go(func() { ended <- c.tell(ctx, s) })
		}
		select {
		case <-ctx.Done():
		case <-c.report:
		case <-due:
		case err := <-ended:
			underWay--
			switch {
			case err == nil:
				outage = retry.Backoff{}
			case apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && !outage.Until.After(c.clock.Now()): // no answer of an API server
				outage.Fail(c.clock.Now(), retry.First, retry.Most)
			}
		}
	}
}

// due are the reports that are to go out now, none before the end of an outage.
func (c *Clients) due(outage time.Time, most int) (list []statement, next time.Time) {
	now := c.clock.Now()
	if outage.After(now) {
		return nil, outage
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.book.due(now, most)
}

// tell makes one report.
func (c *Clients) tell(ctx context.Context, s statement) error {
	err := c.write(ctx, s)
	c.cfg.Observer.Reported(string(s.state.State), err)
	now := c.clock.Now()
	c.mu.Lock()
	first := c.book.noted(s, err, now)
	c.mu.Unlock()
	switch {
	case err == nil:
		c.log.Debug("told of a client", "egressclient", s.name.String(), "state", s.state.State)
	case kubeapi.Ended(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
		c.log.Debug("a client was another while it was told of", "egressclient", s.name.String(), "error", err)
	case first:
		c.log.Warn("telling of a client of an Egress, will try again", "egressclient", s.name.String(), "state", s.state.State, "error", err)
	default:
		c.log.Debug("telling of a client of an Egress, will try again", "egressclient", s.name.String(), "state", s.state.State, "error", err)
	}
	return err
}

// write applies status.node of an EgressClient as it was looked at, and of no other of its name:
// of a status the API server takes a UID for no precondition, but a resourceVersion.
func (c *Clients) write(ctx context.Context, s statement) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "EgressClient",
		"metadata": map[string]any{"namespace": s.name.Namespace, "name": s.name.Name, "uid": s.uid, "resourceVersion": s.version},
		"status":   map[string]any{"node": s.state},
	})
	if err != nil {
		return err
	}
	if err := c.api.In(s.name.Namespace).Patch(ctx, types.ApplyPatchType, egressClients, s.name.Name, "status", body, nil); err != nil {
		return fmt.Errorf("write status.node of EgressClient %s: %w", s.name, err)
	}
	return nil
}
