package networkpolicy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/wire"
	"github.com/berthnet/berth/internal/retry"
)

// Dialer connects to an operator that leads. close ends the connection.
type Dialer func(ctx context.Context) (c wire.PoliciesClient, end func(), err error)

// calls are what the node has to tell the operator.
type calls struct {
	ready chan struct{} // has an element when there is something to say

	mu       sync.Mutex // guards below
	session  uint64     // how often the operator was called
	version  uint64     // of this session that is in force
	said     uint64
	last     uint64                   // ID of an Assign
	assigns  map[uint64]*wire.Assign  // without an answer
	unsaid   map[uint64]bool          // of these
	answered map[uint64]chan struct{} // for who waits
}

func newCalls() *calls {
	return &calls{ready: make(chan struct{}, 1), assigns: map[uint64]*wire.Assign{}, unsaid: map[uint64]bool{}, answered: map[uint64]chan struct{}{}}
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
	if session == c.session {
		c.version = version
		c.wake()
	}
}

// assign has the operator told of a pod's addresses. The channel is closed once it answered.
func (c *calls) assign(p Pod) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &wire.Assign{Namespace: p.Namespace, Name: p.Name, Uid: p.UID}
	for _, addr := range p.Addrs {
		a.Addresses = append(a.Addresses, addr.AsSlice())
	}
	for id, before := range c.assigns {
		switch {
		case before.Namespace != p.Namespace || before.Name != p.Name:
		case before.Uid == a.Uid && slices.EqualFunc(before.Addresses, a.Addresses, bytes.Equal):
			return c.answered[id] // an ADD may wait for this answer
		default: // this one counts
			c.forget(id)
		}
	}
	c.last++
	a.Id = c.last
	done := make(chan struct{})
	c.assigns[a.Id], c.unsaid[a.Id], c.answered[a.Id] = a, true, done
	c.wake()
	return done
}

// answer notes the operator's answer.
func (c *calls) answer(id uint64) (about *wire.Assign) {
	c.mu.Lock()
	defer c.mu.Unlock()
	about = c.assigns[id]
	c.forget(id)
	return about
}

// forget ends the wait for an answer. c.mu is held.
func (c *calls) forget(id uint64) {
	if done := c.answered[id]; done != nil {
		close(done)
	}
	delete(c.assigns, id)
	delete(c.unsaid, id)
	delete(c.answered, id)
}

// restart begins a session: everything is said again, to an operator that knows nothing.
func (c *calls) restart() (session uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session++
	c.version, c.said = 0, 0
	for id := range c.assigns {
		c.unsaid[id] = true
	}
	c.wake()
	return c.session
}

// next returns what has to be said now.
func (c *calls) next() (list []*wire.FromNode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(c.unsaid)) { // an address belongs to the pod that got it last
		list = append(list, &wire.FromNode{What: &wire.FromNode_Assign{Assign: c.assigns[id]}})
	}
	clear(c.unsaid)
	if c.version != c.said {
		c.said = c.version
		list = append(list, &wire.FromNode{What: &wire.FromNode_Enforced{Enforced: c.version}})
	}
	return list
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

// known are the pods with addresses that the operator has told about: the status of some may not have the addresses yet. Of
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

// run follows the operator until ctx ends.
func (f follower) run(ctx context.Context) {
	var failures retry.Backoff
	for ctx.Err() == nil {
		began := f.Clock.Now()
		err := f.followOne(ctx)
		if ctx.Err() != nil {
			return
		}
		if f.Clock.Now().Sub(began) > retry.Most {
			failures = retry.Backoff{}
		}
		if f.following(err) {
			f.Log.Warn("not connected to berth-operator for network policies, will try again; those in force stay", "err", err)
		}
		failures.Fail(f.Clock.Now(), retry.First, retry.Most)
		select {
		case <-f.Clock.After(failures.Until.Sub(f.Clock.Now())):
		case <-ctx.Done():
		}
	}
}

// followOne follows one operator until it ends.
func (f follower) followOne(ctx context.Context) error {
	client, end, err := f.Dial(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := client.Follow(ctx)
	if err != nil {
		return err
	}
	session := f.calls.restart()
	for _, p := range f.known() {
		f.calls.assign(p)
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel(nil)
	sending.Go(func() { cancel(f.say(ctx, stream)) })
	var d wire.Decoder
	for {
		m, err := stream.Recv()
		if err == nil && f.following(nil) {
			f.Log.Info("connected to berth-operator for network policies")
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
				err = cause
			}
			return err
		}
		switch what := m.What.(type) {
		case *wire.FromOperator_Update:
			u, err := d.Add(what.Update)
			if err != nil {
				return fmt.Errorf("what the operator tells makes no sense: %w", err)
			}
			if u != nil {
				f.take(session, u)
				if err := failpoint.Hit("networkpolicy.taken"); err != nil {
					return err
				}
			}
		case *wire.FromOperator_Assigned:
			if about := f.calls.answer(what.Assigned.Id); about != nil && what.Assigned.Refused != "" {
				f.Log.Warn("the operator does not tell other nodes a pod's addresses", "namespace", about.Namespace, "pod", about.Name, "err", what.Assigned.Refused)
			}
		}
	}
}

// say says what there is to say until ctx ends.
func (f follower) say(ctx context.Context, stream wire.Policies_FollowClient) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.calls.ready:
		}
		for _, m := range f.calls.next() {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}
