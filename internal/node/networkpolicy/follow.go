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

// Dialer connects to the leading operator.
type Dialer func(ctx context.Context) (Leader, error)

// Leader is a connection to the leading operator.
type Leader struct {
	wire.PoliciesClient
	End func() // ends the connection
	// Replaced reports whether another operator has become the leader; nil if that cannot happen. Without it, an operator that
	// hangs, or whose node is gone, would be detected late.
	Replaced func(ctx context.Context) bool
}

// calls queues messages from the node to the operator.
type calls struct {
	ready chan struct{} // has an element if there are messages to send

	mu      sync.Mutex         // guards the fields below
	session uint64             // number of connections so far
	version uint64             // version of this session that is in force
	said    uint64             // last version that was sent
	last    uint64             // ID of the last Assign
	assigns map[uint64]*assign // of the node's pods, not yet accepted by the operator
	waiting []time.Time        // start times of ADDs that wait for the operator, oldest first
}

// assign is an Assign that is sent until the operator accepts it.
type assign struct {
	*wire.Assign
	unsaid  bool
	done    chan struct{} // closed when the operator answers, or when the answer is no longer needed
	refused string        // reason of the last rejection, or ""
	retry   retry.Backoff // after a rejection
}

// refusedMost is the longest delay before a rejected Assign is sent again.
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

// enforced records that a version of a session is in force.
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

// assign queues a pod's addresses for the operator. The channel is closed when the operator answers.
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

// gone drops the addresses of a pod that is gone.
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

// answer processes the operator's answer. It returns the Assign if it was rejected for a new reason. A rejected Assign is sent
// again later, because the operator may not know the pod yet, or not know yet that the node has the address.
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

// restart begins a session, in which everything is sent again.
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

// next returns the messages that are due, and the time of the next one; zero if it will be signalled by ready.
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

// waits records that an ADD waits for the operator until end is called.
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

// someWait reports whether an ADD has been waiting since a time.
func (c *calls) someWait(since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting) > 0 && !c.waiting[0].After(since)
}

// Announce sends a pod's addresses to the nodes whose pods allow the pod, through the operator. The channel is closed once these
// nodes enforce the addresses, or the operator stops waiting for them. It is nil if there is nothing to wait for: the pod has no
// addresses, or the operator is not connected and gets them later. The pod's own node does not depend on it.
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

// known returns the pods with addresses that the operator knows, because the status of a Pod may not have the addresses yet. Of
// several sandboxes of a pod, it returns the latest one, or none if it is not known which is the latest.
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

// following records that the operator is connected, or why not, for the status.
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

// soon is the interval of connection attempts and of checks for a new leader while an ADD waits.
const soon = time.Second

// certainty is how long the Kubernetes API must reject the node before missing roles are reported as the reason: an API server that
// has just started rejects everybody until it has read the roles.
const certainty = 10 * time.Second

// errReplaced ends the stream of an operator that no longer leads.
var errReplaced = errors.New("another berth-operator leads now")

// run follows the operator until ctx ends.
func (f follower) run(ctx context.Context) {
	var failures retry.Backoff
	var refused time.Time // since when the Kubernetes API rejects the node; zero if it does not
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
				return false, fmt.Errorf("berth-operator sent an invalid update: %w", err)
			}
			if u != nil {
				f.take(session, u)
				if err := failpoint.Hit("networkpolicy.taken"); err != nil {
					return served, err
				}
			}
		case *wire.FromOperator_Assigned:
			if a := f.calls.answer(what.Assigned, f.Clock.Now()); a != nil {
				f.Log.Warn("berth-operator rejected a pod's addresses, so other nodes do not know them; will try again", "namespace", a.Namespace, "pod", a.Name, "err", what.Assigned.Refused)
			}
		}
	}
}

// say sends queued messages until ctx ends.
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
