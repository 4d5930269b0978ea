package networkpolicy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/wire"
	"github.com/berthnet/berth/internal/retry"
)

// Dialer connects to the operator that leads.
type Dialer func(ctx context.Context) (Leader, error)

// Leader is a connection to an operator that leads.
type Leader struct {
	wire.PoliciesClient
	End func() // ends the connection
	// Replaced tells whether another operator leads by now; nil: that cannot happen. An operator that is stuck, or whose node is gone, is
	// noticed late otherwise.
	Replaced func(ctx context.Context) bool
}

// calls are what the node has to send to the operator.
type calls struct {
	ready chan struct{} // has an element when there is something to say

	mu      sync.Mutex // guards below
	session uint64     // how often the operator was called
	version uint64     // of this session that is in force
	said    uint64
	last    uint64             // ID of an Assign
	assigns map[uint64]*assign // that the operator has not accepted, of pods of the node
	waiting []time.Time        // since when ADDs wait for what the operator knows, the longest first
}

// assign is an Assign that is sent until the operator accepts it.
type assign struct {
	*wire.Assign
	unsaid  bool
	done    chan struct{} // closed once the operator answered, or nobody needs the answer
	refused string        // the latest answer; empty: none
	retry   retry.Backoff // after it was refused
}

// refusedMost is the longest wait until an Assign that was refused is sent again.
const refusedMost = time.Minute

func newCalls() *calls {
	return &calls{ready: make(chan struct{}, 1), assigns: map[uint64]*assign{}}
}

func (c *calls) wake() {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// enforced notes that a version of a session is in force.
func (c *calls) enforced(session, version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if session == c.session && version != c.version {
		c.version = version
		c.wake()
	}
}

func assignOf(p Pod) *wire.Assign {
	a := &wire.Assign{Namespace: p.Namespace, Name: p.Name, Uid: p.UID}
	for _, addr := range p.Addrs {
		a.Addresses = append(a.Addresses, addr.AsSlice())
	}
	return a
}

func (a *assign) same(o *wire.Assign) bool {
	return a.Namespace == o.Namespace && a.Name == o.Name && a.Uid == o.Uid && slices.EqualFunc(a.Addresses, o.Addresses, bytes.Equal)
}

// assign has a pod's addresses sent to the operator. The channel is closed once it answered.
func (c *calls) assign(p Pod) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := assignOf(p)
	for id, before := range c.assigns {
		switch {
		case before.Namespace != p.Namespace || before.Name != p.Name:
		case before.same(a) && before.refused == "":
			return before.done // an ADD may wait for this answer
		default: // this one counts
			c.forget(id)
		}
	}
	c.last++
	a.Id = c.last
	done := make(chan struct{})
	c.assigns[a.Id] = &assign{Assign: a, unsaid: true, done: done}
	c.wake()
	return done
}

// gone forgets the addresses of a pod that is gone.
func (c *calls) gone(p Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := assignOf(p)
	for id, a := range c.assigns {
		if a.same(of) {
			c.forget(id)
		}
	}
}

// answer notes the operator's answer. It returns the Assign if it was refused for another reason than before. One that was refused is
// sent again later: the operator may not know the pod yet, or learn later that the node has the address.
func (c *calls) answer(m *wire.Assigned, now time.Time) (refused *wire.Assign) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.assigns[m.Id]
	switch {
	case a == nil:
		return nil
	case m.Refused == "":
		c.forget(m.Id)
		return nil
	}
	if a.refused == "" {
		close(a.done)
	}
	news := a.refused != m.Refused
	a.refused = m.Refused
	a.retry.Fail(now, retry.First, refusedMost)
	c.wake()
	if !news {
		return nil
	}
	return a.Assign
}

// forget ends the wait for an answer. c.mu is held.
func (c *calls) forget(id uint64) {
	if a := c.assigns[id]; a.refused == "" {
		close(a.done)
	}
	delete(c.assigns, id)
}

// restart begins a session: everything is said again, to an operator that knows nothing.
func (c *calls) restart() (session uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session++
	c.version, c.said = 0, 0
	for _, a := range c.assigns {
		a.unsaid, a.retry = true, retry.Backoff{}
	}
	c.wake()
	return c.session
}

// next returns what has to be said now, and when there is more; zero: not before ready says so.
func (c *calls) next(now time.Time) (list []*wire.FromNode, again time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(c.assigns)) { // an address belongs to the pod that got it last
		a := c.assigns[id]
		if a.unsaid || !a.retry.Until.IsZero() && !a.retry.Until.After(now) {
			list = append(list, &wire.FromNode{What: &wire.FromNode_Assign{Assign: a.Assign}})
			a.unsaid, a.retry.Until = false, time.Time{}
		}
		if until := a.retry.Until; again.IsZero() || !until.IsZero() && until.Before(again) {
			again = until
		}
	}
	if c.version != c.said {
		c.said = c.version
		list = append(list, &wire.FromNode{What: &wire.FromNode_Enforced{Enforced: c.version}})
	}
	return list, again
}

// waits notes that an ADD waits from now on for what the operator knows, until end is called.
func (c *calls) waits(now time.Time) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, now)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.waiting, now)
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
}

// someWait tells whether an ADD has waited since a time.
func (c *calls) someWait(since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting) > 0 && !c.waiting[0].After(since)
}

// Announce has those nodes enforce a pod's addresses whose pods allow it. The channel is closed once they do, or the operator
// does not wait for them any longer. It is nil if there is nothing to wait for: the operator is not connected, and hears
// of the addresses later, or the pod has none. The pod's node does not need it.
func (e *Enforcer) Announce(p Pod) <-chan struct{} {
	if len(p.Addrs) == 0 {
		return nil
	}
	done := e.calls.assign(p)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.record.connected {
		return nil
	}
	return done
}

// known are the pods with addresses that the operator knows: the status of some may not have the addresses yet. Of
// several sandboxes of a pod the latest one counts; if that is not known, none does.
func (e *Enforcer) known() (list []Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	latest, doubtful := map[policy.PodName]Pod{}, map[policy.PodName]bool{}
	for _, p := range e.pods {
		if _, known := e.state.Of(p.PodName, p.UID); !known || len(p.Addrs) == 0 {
			continue
		}
		other, several := latest[p.PodName]
		if !several || p.set > other.set {
			latest[p.PodName], doubtful[p.PodName] = p, false
		} else if p.set == other.set {
			doubtful[p.PodName] = true
		}
	}
	for name, p := range latest {
		if !doubtful[name] {
			list = append(list, p)
		}
	}
	return list
}

// following notes that the operator speaks, or why not, for people.
func (e *Enforcer) following(err error) (news bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.record.following(err, e.Clock.Now())
}

// follower calls the operator. Its functions are those of the Enforcer.
type follower struct {
	Options
	calls     *calls
	take      func(session uint64, u *policy.Update)
	following func(err error) (news bool)
	known     func() []Pod
}

// soon is how often the operator is called while an ADD waits for it, at least, and how often it is checked that it still leads.
const soon = time.Second

// certainty is how long the Kubernetes API must refuse the node until its roles are called the reason: an API server that has just started
// refuses everybody until it has read them.
const certainty = 10 * time.Second

// errReplaced ends a call of an operator that does not lead any more.
var errReplaced = errors.New("another berth-operator leads now")

// run follows the operator until ctx ends.
func (f follower) run(ctx context.Context) {
	var failures retry.Backoff
	var refused time.Time // since when the Kubernetes API refuses the node; zero: it does not
	for ctx.Err() == nil {
		served, err := f.followOne(ctx)
		if ctx.Err() != nil {
			return
		}
		switch now := f.Clock.Now(); {
		case !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err):
			refused = time.Time{}
		case refused.IsZero():
			refused = now
		case now.Sub(refused) > certainty:
			err = fmt.Errorf("the Kubernetes API refuses berthd: %w: apply the chart with networkPolicies.enabled", err)
		}
		if errors.Is(err, errReplaced) || served && status.Code(err) != codes.Aborted { // unless another daemon calls as this node
			failures = retry.Backoff{}
		}
		if f.following(err) {
			f.Log.Warn("not connected to berth-operator for network policies, will try again; those in force stay", "err", err)
		}
		failures.Fail(f.Clock.Now(), retry.First, retry.Most)
		f.sleep(ctx, failures.Until)
	}
}

// sleep returns at a time, or sooner if an ADD waits for the operator, or when ctx ends.
func (f follower) sleep(ctx context.Context, until time.Time) {
	for ctx.Err() == nil {
		left := until.Sub(f.Clock.Now())
		if left <= 0 {
			return
		}
		select {
		case <-f.Clock.After(min(left, retry.Jitter(soon))):
		case <-ctx.Done():
		}
		if f.calls.someWait(f.Clock.Now()) {
			return
		}
	}
}

// leads returns an error once an ADD has waited for a while and another operator leads, or when ctx ends.
func (f follower) leads(ctx context.Context, operator Leader) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.Clock.After(retry.Jitter(soon)):
		}
		if f.calls.someWait(f.Clock.Now().Add(-soon)) && operator.Replaced(ctx) {
			return errReplaced
		}
	}
}

// followOne follows one operator until it ends. served reports whether it sent anything.
func (f follower) followOne(ctx context.Context) (served bool, err error) {
	operator, err := f.Dial(ctx)
	if err != nil {
		return false, err
	}
	defer operator.End()
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	defer func() {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
	}()
	if operator.Replaced != nil {
		running.Go(func() { cancel(f.leads(ctx, operator)) })
	}
	stream, err := operator.Follow(ctx)
	if err != nil {
		return false, err
	}
	session := f.calls.restart()
	for _, p := range f.known() {
		f.calls.assign(p)
	}
	running.Go(func() { cancel(f.say(ctx, stream)) })
	var d wire.Decoder
	for {
		m, err := stream.Recv()
		if err == nil && f.following(nil) {
			f.Log.Info("connected to berth-operator for network policies")
		}
		if err != nil {
			return served, err
		}
		served = true
		switch what := m.What.(type) {
		case *wire.FromOperator_Update:
			u, err := d.Add(what.Update)
			if err != nil {
				return false, fmt.Errorf("what the operator sent makes no sense: %w", err)
			}
			if u != nil {
				f.take(session, u)
				if err := failpoint.Hit("networkpolicy.taken"); err != nil {
					return served, err
				}
			}
		case *wire.FromOperator_Assigned:
			if a := f.calls.answer(what.Assigned, f.Clock.Now()); a != nil {
				f.Log.Warn("berth-operator does not accept a pod's addresses, so other nodes do not know them, will try again", "namespace", a.Namespace, "pod", a.Name, "err", what.Assigned.Refused)
			}
		}
	}
}

// say says what there is to say until ctx ends.
func (f follower) say(ctx context.Context, stream wire.Policies_FollowClient) error {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.calls.ready:
		case <-again:
		}
		now := f.Clock.Now()
		list, more := f.calls.next(now)
		for _, m := range list {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		if again = nil; !more.IsZero() {
			again = f.Clock.After(more.Sub(now))
		}
	}
}
