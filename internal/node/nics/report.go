package nics

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/retry"
)

var _ = failpoint.Register("port.report.before", "port.report.after", "port.remove.before")

// statement is a report that is due.
type statement struct {
	about object
	state v1alpha1.PodNICNode
}

// reports tells the operator of NICs by their PodNICs' status, one after the other, until
// ctx ends. What is said follows from what is plugged and what the objects say, so that
// nothing is kept of what is still to be said, also over a restart.
func (n *NICs) reports(ctx context.Context) {
	var outage retry.Backoff // of the API server; refusals are each PodNIC's own
	for ctx.Err() == nil {
		var due <-chan time.Time
		if next := n.tellAll(ctx, &outage); !next.IsZero() {
			due = n.clock.After(next.Sub(n.clock.Now()))
		}
		select {
		case <-ctx.Done():
		case <-n.report:
		case <-due:
		}
	}
}

// tellAll makes the reports that are due, and tells when others are; zero: none are.
func (n *NICs) tellAll(ctx context.Context, outage *retry.Backoff) (next time.Time) {
	now := n.clock.Now()
	if outage.Until.After(now) {
		return outage.Until
	}
	list, next := n.due(now)
	for _, s := range list {
		err := n.tell(ctx, s)
		switch {
		case err == nil:
			*outage = retry.Backoff{}
		case ctx.Err() != nil:
			return time.Time{}
		case apierrors.ReasonForError(err) == metav1.StatusReasonUnknown: // no answer of an API server
			outage.Fail(n.clock.Now(), retry.First, retry.Most)
			return outage.Until
		}
		n.mu.Lock()
		next = retry.Earliest(time.Time{}, next, n.book.said[s.about.uid].retry.Until)
		n.mu.Unlock()
	}
	return next
}

// due lists the reports that may go out, by name, and tells when there are others; zero:
// none wait.
func (n *NICs) due(now time.Time) (list []statement, next time.Time) {
	n.mu.Lock()
	objects := n.book.sorted()
	n.mu.Unlock()
	for _, o := range objects {
		// The records' lock is not taken below this one.
		recorded := o.node != nil && n.cfg.Recorded(o.node.PortID)
		n.mu.Lock()
		state, said := n.book.state(o, recorded, now), n.book.said[o.uid]
		n.mu.Unlock()
		switch {
		case state == nil:
		case said.mayBeSaid(o.version, now):
			list = append(list, statement{o, *state})
		default:
			next = retry.Earliest(time.Time{}, next, said.retry.Until)
		}
	}
	return list, next
}

// tell makes one report, and notes when it may be made again.
func (n *NICs) tell(ctx context.Context, s statement) error {
	err := failpoint.Around("port.report", func() error { return n.patch(ctx, s) })
	now := n.clock.Now()
	n.cfg.Observer.Reported(string(s.state.State), err)
	n.mu.Lock()
	if o, ok := n.book.objects[s.about.name]; ok && o.uid == s.about.uid {
		said := n.book.said[s.about.uid]
		said.note(s.about.version, err, now)
		n.book.said[s.about.uid] = said
	}
	n.mu.Unlock()
	switch {
	case err == nil:
		n.log.Debug("told of a NIC", "podnic", s.about.name.String(), "port", s.state.PortID, "state", s.state.State)
	case kubeapi.Ended(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
		n.log.Debug("a NIC changed while it was told of", "podnic", s.about.name.String(), "error", err)
	default:
		n.log.Warn("telling of a NIC, will try again", "podnic", s.about.name.String(), "port", s.state.PortID, "state", s.state.State, "error", err)
	}
	return err
}

// patch writes status.node of the PodNIC as it was looked at, and of no other.
func (n *NICs) patch(ctx context.Context, s statement) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": s.about.uid, "resourceVersion": s.about.version},
		"status":   map[string]any{"node": fields(s.state)},
	})
	if err != nil {
		return err
	}
	err = n.api.In(s.about.name.Namespace).Patch(ctx, types.MergePatchType, podNICs, s.about.name.Name, "status", body, nil)
	if err != nil {
		return fmt.Errorf("write status.node of PodNIC %s: %w", s.about.name, err)
	}
	return nil
}

// fields are all of a state: a merge leaves what is not there as it was.
func fields(s v1alpha1.PodNICNode) map[string]any {
	optional := func(v string) any {
		if v == "" {
			return nil
		}
		return v
	}
	return map[string]any{
		"state": s.State, "portID": s.PortID, "since": s.Since,
		"containerID": optional(s.ContainerID), "hostInterface": optional(s.HostInterface), "reason": optional(s.Reason), "message": optional(s.Message),
	}
}
