package nodeenis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
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
	// attempts bounds the requests of one write. Two or three suffice; each further
	// pair is one conflict with somebody who writes all the time.
	attempts = 24
	// requestTimeout bounds one request to the API server.
	requestTimeout = 10 * time.Second

	// busyRetry is the longest wait after conflicts alone.
	busyRetry = time.Second
)

var (
	errForeign = errors.New("somebody else wrote it: EC2 is listed before it is written again")
	errUnmoved = errors.New("the API server accepted a write that changed nothing")
	errBusy    = fmt.Errorf("it changed %d times while it was being written", attempts/2)
	errOther   = errors.New("it was replaced by another object, or is of another instance")
)

// backoff is the wait after requests that failed, with the last error.
type backoff struct {
	retry.Backoff
	err error
}

// writes are the times of a node's requests.
type writes struct {
	retry    backoff
	statusAt time.Time // when status was last written
	newsAt   time.Time // when it is written next; zero: nothing is new
}

// fail doubles the wait, and varies it by up to a half.
func (b *backoff) fail(now time.Time, err error) {
	most := retry.Most
	if errors.Is(err, errBusy) {
		most = busyRetry
	}
	b.Fail(now, retry.First, most)
	b.err = err
}

// write brings the object to its desired state. It makes no request during a backoff: the
// controller comes back then, and requests of other nodes do not wait. since is when the
// reconciliation that it ends began.
func (n *node) write(ctx context.Context, s scope, since time.Time) error {
	n.writing.Lock()
	defer n.writing.Unlock()
	defer n.schedule(since)
	n.mu.Lock()
	last := n.state.writes.retry
	n.mu.Unlock()
	if last.Until.After(n.c.now()) {
		return last.err
	}
	err := n.converge(ctx, s)
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil:
		n.state.writes.retry = backoff{}
	case errors.Is(err, errForeign), ctx.Err() != nil:
	default:
		n.state.writes.retry.fail(n.c.now(), err)
	}
	return err
}

// converge makes one request after the other until nothing is left to do, each
// conditional on the state of the object that it was decided on.
func (n *node) converge(ctx context.Context, s scope) error {
	for range attempts {
		now := n.c.now()
		n.mu.Lock()
		if s == urgent && n.state.ownership.observeFirst {
			n.mu.Unlock()
			return errForeign
		}
		base, want := n.state.obj, n.state.desired(now)
		q := n.state.next(want, s, now)
		if q == writeSpec {
			n.state.ownership.sent = &want.ipam
		}
		n.mu.Unlock()
		if q == nothing {
			if s == everything {
				n.recordProblem(ctx) // the answer to the write that has it may have been lost
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
				n.state.ownership.lost = n.state.ownership.sent
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
	n.update(ctx, got)
	if q != writeStatus {
		n.trackDemand()
		return
	}
	n.mu.Lock()
	n.state.writes.statusAt = n.c.now()
	n.mu.Unlock()
	n.recordProblem(ctx)
}

// refresh reads the object from the API server, after a conflict. If somebody else
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
	if n.update(ctx, o).foreign {
		return errForeign
	}
	return nil
}

// notify tells the fleet, and people, what a new state of the object means.
func (n *node) notify(ctx context.Context, c change) {
	if c.foreign {
		n.c.o.Logger.Warn("somebody else wrote a node's spec.ipam; listing EC2 again", "node", n.name)
		n.c.fleet.Invalidate(n.name)
		n.c.record(ctx, n.name, corev1.EventTypeWarning, eventOverwritten, overwritten)
	}
	if c.usage {
		n.trackDemand()
		n.c.fleet.Kick(n.name)
	}
}

// appliedIPAM is an IPAMSpec that a request has also where it is empty: a field that is left out
// stays as whoever wrote it last left it.
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

// ownership is whether somebody else writes spec.ipam of a node's object, and
// what follows from it.
type ownership struct {
	// sent is the spec.ipam of the last request, whatever its result, and lost
	// that of the last request without an answer, which may have been stored as well.
	sent, lost *v1alpha1.IPAMSpec
	// observeFirst: spec.ipam may be somebody else's; it is not written before the
	// fleet publishes what it observed since.
	observeFirst bool
	suppressed   map[netip.Prefix]time.Time // not published before then
}

// foreign reports whether o has another spec.ipam than before, and than any that this process has
// sent since: their answers may come later, or never.
func (w *ownership) foreign(before, o *v1alpha1.NodeNetwork) bool {
	if sameIPAM(before.Spec.IPAM, o.Spec.IPAM) {
		return false
	}
	for _, own := range [...]*v1alpha1.IPAMSpec{w.sent, w.lost} {
		if own != nil && sameIPAM(*own, o.Spec.IPAM) {
			return false
		}
	}
	return true
}

// overwritten takes that somebody else changed before to o. What another operator
// took out of available is suppressed for settle: most likely it was unassigned,
// and a listing of the cloud that has it is stale. What a person took out is
// published again once the cloud was observed.
func (w *ownership) overwritten(before, o *v1alpha1.NodeNetwork, now time.Time, settle time.Duration) {
	w.observeFirst = true
	if !byOperator(o) {
		return
	}
	for text := range before.Spec.IPAM.Available {
		if _, still := o.Spec.IPAM.Available[text]; still {
			continue
		}
		if p, err := nodenetwork.Parse(text); err == nil {
			w.suppressed[p] = now.Add(settle)
		}
	}
}

// expire drops suppressions that have ended, and reports whether there were any: the cloud must
// be observed again before these addresses are published.
func (w *ownership) expire(now time.Time) bool {
	before := len(w.suppressed)
	maps.DeleteFunc(w.suppressed, func(_ netip.Prefix, until time.Time) bool { return !until.After(now) })
	if len(w.suppressed) == before {
		return false
	}
	w.observeFirst = true
	return true
}

func sameIPAM(x, y v1alpha1.IPAMSpec) bool {
	return maps.Equal(x.Available, y.Available) && slices.Equal(x.Releasing, y.Releasing) && slices.Equal(x.Unassigning, y.Unassigning)
}
