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

	"golang.org/x/time/rate"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/retry"
)

const (
	// attempts limits the requests of one write. Two or three suffice; each further pair means a
	// conflict with another writer.
	attempts = 24
	// requestTimeout limits one request to the API server.
	requestTimeout = 10 * time.Second

	// busyRetry is the maximum backoff if only conflicts occurred.
	busyRetry = time.Second
)

var (
	errForeign = errors.New("somebody else wrote it: EC2 is listed before it is written again")
	errUnmoved = errors.New("the API server accepted a write that changed nothing")
	errBusy    = fmt.Errorf("it changed %d times while it was being written", attempts/2)
	errOther   = errors.New("it was replaced by another object, or has another instance")
)

// backoff is the backoff after failed requests, with the last error.
type backoff struct {
	retry.Backoff
	err error
}

// writes tracks the times of a node's requests.
type writes struct {
	retry    backoff
	statusAt time.Time // when the status was last written
	newsAt   time.Time // when it is to be written next; zero if it is up to date
	news     news
	turns    [2]time.Time // when the limits admit it; zero if not asked yet
	foreign  int          // conditions that the last write of the status did not remove: they have another owner
}

// news is a kind of writes that only inform users.
type news int

const (
	ofConditions news = iota // the status or reason of a condition changed
	routine                  // counts and messages
)

// Such writes a second, and at once. If something concerns all nodes of a large cluster, such as an outage of EC2 or another
// template, the API server gets no more of them. Writes that daemons wait for are as rare as changes at EC2.
const (
	conditionRate, routineRate = 150, 50
	newsBurst                  = 500
)

// newsLimits limits these writes of all nodes, by kind: changes of conditions do not wait for counts and messages.
type newsLimits [2]*rate.Limiter

func newNewsLimits() newsLimits {
	return newsLimits{rate.NewLimiter(conditionRate, newsBurst), rate.NewLimiter(routineRate, newsBurst)}
}

// admit reports whether a node's status may be written now. Otherwise the node has its turn at newsAt.
func (l newsLimits) admit(w *writes, now time.Time) bool {
	turn := &w.turns[w.news]
	if turn.IsZero() {
		*turn = now.Add(l[w.news].ReserveN(now, 1).DelayFrom(now))
	}
	if turn.After(now) {
		w.newsAt = *turn
		return false
	}
	w.expire(now)
	return true
}

// expire forgets turns that have come. One ahead is kept for the next change: its place in the queue is taken.
func (w *writes) expire(now time.Time) {
	for i, t := range w.turns {
		if !t.After(now) {
			w.turns[i] = time.Time{}
		}
	}
}

// fail doubles the delay, with a jitter of up to a half.
func (b *backoff) fail(now time.Time, err error) {
	most := retry.Most
	if errors.Is(err, errBusy) {
		most = busyRetry
	}
	b.Fail(now, retry.First, most)
	b.err = err
}

// write brings the object to its desired state. During a backoff it makes no request and does not block
// those of other nodes: the controller comes back later. since is when the current reconciliation began.
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

// converge makes one request after the other until nothing is left to do, each conditional on the version
// of the object that it is based on.
func (n *node) converge(ctx context.Context, s scope) error {
	for range attempts {
		now := n.c.now()
		n.mu.Lock()
		if s == urgent && n.state.ownership.observeFirst {
			n.mu.Unlock()
			return errForeign
		}
		base := n.state.obj
		want, q := n.state.desired(s, now)
		if q == writeSpec {
			n.state.ownership.sent = &want.ipam
		}
		if q == writeNews && !n.c.news.admit(&n.state.writes, now) {
			q = nothing
		}
		n.mu.Unlock()
		if q == nothing {
			if s == everything {
				n.recordProblem(ctx) // the reply to the write that has the problem may have been lost
			}
			return nil
		}
		got, err := n.c.apply(ctx, base, q, want)
		left := err == nil && q != writeSpec && n.leftOver(len(got.Status.Conditions)-len(want.conditions))
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
		case got.ResourceVersion == base.ResourceVersion && !left:
			return errUnmoved
		default:
			n.wrote(ctx, got, q)
		}
	}
	return errBusy
}

// leftOver records the number of conditions that a write of the status left, and reports whether it changed.
func (n *node) leftOver(conditions int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.state.writes.foreign
	n.state.writes.foreign = conditions
	return before != conditions
}

// wrote handles the reply to a write.
func (n *node) wrote(ctx context.Context, got *v1alpha1.NodeNetwork, q request) {
	n.update(ctx, got)
	if q == writeSpec {
		n.trackDemand()
		return
	}
	n.mu.Lock()
	n.state.writes.statusAt = n.c.now()
	n.mu.Unlock()
	n.recordProblem(ctx)
}

// refresh reads the object from the API server after a conflict. If somebody else wrote the operator's
// fields, the write is aborted.
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

// notify notifies the fleet and, by Events, users of what a new version of the object means.
func (n *node) notify(ctx context.Context, c change) {
	if c.foreign {
		n.c.o.Logger.Warn("spec.ipam of a NodeNetwork was written by somebody else; listing EC2 again", "node", n.name)
		n.c.fleet.Invalidate(n.name)
		n.c.record(ctx, n.name, corev1.EventTypeWarning, eventOverwritten, overwritten)
	}
	if c.usage {
		n.trackDemand()
		n.c.fleet.Kick(n.name)
	}
}

// appliedIPAM is an IPAMSpec whose empty fields are part of the request: an omitted field would keep the
// value of its last writer.
type appliedIPAM struct {
	Available map[string]v1alpha1.AvailableAddress `json:"available"`
	Releasing []string                             `json:"releasing"`
	// Unassigning must be sent even if empty.
	Unassigning []string `json:"unassigning"`
}

// appliedENI is an ENIStatus with the same property.
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

// apply writes the operator's part of an object's spec or status by server-side apply. If the object has
// changed since base, it returns a conflict. It returns the resulting object, trimmed.
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

// ownership tracks whether somebody else writes spec.ipam of a node's object, and the consequences.
type ownership struct {
	// sent is the spec.ipam of the last request, whatever its result. lost is that of the last
	// request without a reply, which may have been stored as well.
	sent, lost *v1alpha1.IPAMSpec
	// observeFirst means that spec.ipam may be somebody else's. It is not written until the fleet
	// publishes a newer observation.
	observeFirst bool
	suppressed   map[netip.Prefix]time.Time // when each address may be published again
}

// foreign reports whether the spec.ipam of o differs from before, and from all that this process has sent
// since, whose replies may be late or lost.
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

// overwritten handles a foreign write that changed before to o. Addresses that another operator took out
// of available are suppressed for settle: they were most likely unassigned, and an EC2 listing that has
// them is stale. Addresses that a person took out are published again once EC2 has been listed.
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

// expire drops expired suppressions, and reports whether there were any: EC2 must be listed again before
// these addresses are published.
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
