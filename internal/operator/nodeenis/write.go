package nodeenis

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/retry"
)

const (
	// attempts bounds the requests of one write: two or three do it, and each
	// further pair is one conflict with somebody who writes all the time.
	attempts = 24
	// requestTimeout bounds one request to the API server.
	requestTimeout = 10 * time.Second

	// busyRetry is the longest wait where the API server answers, and somebody else's
	// writes were always faster.
	busyRetry = time.Second
)

var (
	errForeign = errors.New("somebody else wrote it: looking at the cloud first")
	errUnmoved = errors.New("the API server took a write that changed nothing")
	errBusy    = fmt.Errorf("it changed %d times meanwhile", attempts/2)
	errOther   = errors.New("it was replaced by another object, or is of another instance")
)

// backoff is the wait after requests that failed.
type backoff struct {
	retry.Backoff
	err error
}

// writes is when the next requests may be made.
type writes struct {
	retry    backoff
	statusAt time.Time // when status was last written
	newsAt   time.Time // when it is to be written next; zero: nothing is new
}

// fail closes for twice as long as the last time, spread over half to one and a half.
func (b *backoff) fail(now time.Time, err error) {
	most := retry.Most
	if errors.Is(err, errBusy) {
		most = busyRetry
	}
	b.Fail(now, retry.First, most)
	b.err = err
}

// write brings the object to what it should say. It makes no request while the
// last failure is fresh: the controller comes back for that. Requests of other
// nodes are not kept waiting. since is when the reconciliation that it ends began.
func (n *node) write(ctx context.Context, s scope, since time.Time) error {
	n.writing.Lock()
	defer n.writing.Unlock()
	defer n.schedule(since)
	n.mu.Lock()
	last := n.writes.retry
	n.mu.Unlock()
	if last.Until.After(n.c.now()) {
		return last.err
	}
	err := n.converge(ctx, s)
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil:
		n.writes.retry = backoff{}
	case errors.Is(err, errForeign), ctx.Err() != nil:
	default:
		n.writes.retry.fail(n.c.now(), err)
	}
	return err
}

// converge makes one request after the other until nothing is left to do, each
// conditional on the state of the object that it was decided on.
func (n *node) converge(ctx context.Context, s scope) error {
	for range attempts {
		n.mu.Lock()
		if s == urgent && n.ownership.observeFirst {
			n.mu.Unlock()
			return errForeign
		}
		base, want := n.obj, n.desired()
		q := n.next(want, s)
		if q == writeSpec {
			n.ownership.sent = &want.ipam
		}
		n.mu.Unlock()
		if q == nothing {
			if s == everything {
				n.recordProblem(ctx) // unless the answer to the write that said it was lost
			}
			return nil
		}
		got, err := n.c.apply(ctx, base, q, want)
		switch {
		case apierrors.IsConflict(err):
			if err := n.refresh(ctx); err != nil {
				return err
			}
		case err != nil:
			n.mu.Lock()
			if q == writeSpec {
				n.ownership.lost = n.ownership.sent
			}
			n.mu.Unlock()
			return err
		case got.ResourceVersion == base.ResourceVersion:
			return errUnmoved
		default:
			n.wrote(ctx, got, q)
		}
	}
	return errBusy
}

// wrote takes the answer to a write.
func (n *node) wrote(ctx context.Context, got *v1alpha1.NodeNetwork, q request) {
	n.notify(ctx, n.update(got))
	if q != writeStatus {
		n.trackDemand()
		return
	}
	n.mu.Lock()
	n.writes.statusAt = n.c.now()
	n.mu.Unlock()
	n.recordProblem(ctx)
}

// refresh reads the object past the cache, after a conflict. If somebody else
// wrote what the operator publishes, the write ends.
func (n *node) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	o := &v1alpha1.NodeNetwork{}
	if err := n.c.live.Get(ctx, client.ObjectKey{Name: n.name}, o); err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	trim(o)
	if o.UID != n.uid || o.Spec.InstanceID != n.instanceID {
		return errOther
	}
	change := n.update(o)
	n.notify(ctx, change)
	if change.foreign {
		return errForeign
	}
	return nil
}

// notify tells the fleet, and people, what a new state of the object means.
func (n *node) notify(ctx context.Context, c change) {
	if c.foreign {
		n.c.o.Logger.Warn("somebody else wrote what the operator publishes of a node; looking at the cloud", "node", n.name)
		n.c.fleet.Invalidate(n.name)
		n.c.record(ctx, n.name, corev1.EventTypeWarning, eventOverwritten, overwritten)
	}
	if c.usage {
		n.trackDemand()
		n.c.fleet.Kick(n.name)
	}
}

// appliedIPAM is an IPAMSpec that is in the request also where it is empty:
// what a request does not have stays as whoever wrote it last left it.
type appliedIPAM struct {
	Available map[string]v1alpha1.AvailableAddress `json:"available"`
	Releasing []string                             `json:"releasing"`
	// Unassigning, as above.
	Unassigning []string `json:"unassigning"`
}

// appliedENI is an ENIStatus likewise.
type appliedENI struct {
	ENIs      map[string]v1alpha1.ENI `json:"enis"`
	Count     int32                   `json:"count"`
	Available int32                   `json:"available"`
	Needed    int32                   `json:"needed"`
	Limits    *v1alpha1.ENILimits     `json:"limits,omitempty"`
	Template  string                  `json:"template,omitempty"`
	Settings  *v1alpha1.ENISpec       `json:"settings,omitempty"`
	Outdated  int32                   `json:"outdated,omitempty"`
	Trunk     *v1alpha1.TrunkENI      `json:"trunk,omitempty"`
}

// apply writes the operator's part of an object's spec or status by server-side
// apply, unless anybody wrote to the object since base: then the error is a
// conflict. It returns the object after it, trimmed.
func (c *Controller) apply(ctx context.Context, base *v1alpha1.NodeNetwork, q request, want desiredState) (*v1alpha1.NodeNetwork, error) {
	var spec, status any
	if q == writeSpec {
		spec = struct {
			IPAM appliedIPAM `json:"ipam"`
		}{appliedIPAM(want.ipam)}
	} else {
		status = struct {
			ENI        appliedENI         `json:"eni"`
			Conditions []metav1.Condition `json:"conditions"`
		}{appliedENI(want.eni), want.conditions}
	}
	body, err := nodenetwork.ApplyBody(base, spec, status)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	got := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: base.Name}}
	patch := client.RawPatch(types.ApplyPatchType, body)
	if q == writeSpec {
		err = c.client.Patch(ctx, got, patch, client.ForceOwnership, client.FieldOwner(v1alpha1.OwnerOperator))
	} else {
		err = c.client.Status().Patch(ctx, got, patch, client.ForceOwnership, client.FieldOwner(v1alpha1.OwnerOperator))
	}
	if err != nil {
		return nil, err
	}
	trim(got)
	return got, nil
}
