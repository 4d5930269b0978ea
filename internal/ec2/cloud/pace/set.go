package pace

import (
	"context"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
)

const (
	fairTurn = 10               // every fairTurn-th turn goes to the oldest call
	patience = 30 * time.Second // minimum age of such a call
)

// Set holds the limiters of all calls of one process to one account and region. There must be only one, because
// it has to see all calls that share the same buckets. It is safe for concurrent use.
type Set struct {
	options Options
	clock   clock.Clock

	mu       sync.Mutex // guards all below; never held across a wait
	actions  map[string]*action
	order    []*action // the same, in the order of first use
	account  *pacer    // for all calls together, in the state shared
	shared   bool      // the state: shared or apart
	evidence float64   // that refusals are shared, in points; see shared.go
	last     interval  // the time since the last refusal
	rate     float64   // of a shared bucket, measured between refusals; 0 if never measured
	ticket   uint64    // last ticket issued
	seq      uint64    // last permit issued, in the order of sending
	begun    int       // waiters of priority Begun
	turns    int       // permits given in the state shared
	spareAt  time.Time // time from which spare calls may be sent; see queue.go
	alarm    *alarm    // nil if no turn depends on time
}

// action is the limiter of one API action.
type action struct {
	name    string
	begins  bool
	ceiling Limit
	pacer   *pacer
	queue   queue
	turns   int    // permits given
	served  uint64 // seq of the last permit
}

// permit is the right to send one call. It is returned with the outcome.
type permit struct {
	action  *action
	own     grant
	account grant // zero in the state apart
	seq     uint64
	sent    time.Time
}

// NewSet returns a Set in its initial state.
func NewSet(o Options) *Set {
	o = o.withDefaults()
	return &Set{options: o, clock: o.Clock, account: newPacer(o.Clock.Now(), Limit{}, o.Peers), actions: make(map[string]*action)}
}

// acquire waits for the turn of a call. With ticket 0 it queues behind all calls of the same priority; with
// the ticket of an earlier attempt it keeps its place. If ctx ends first, or the call is recalled, the call
// leaves the queue. Waited is the time in the queue.
func (s *Set) acquire(ctx context.Context, c Call, ticket uint64) (p permit, t uint64, waited time.Duration, err error) {
	if ctx.Err() != nil {
		return permit{}, ticket, 0, context.Cause(ctx)
	}
	clock.Turn(s.clock, c.Action, 0)
	needed, recalled := cloud.Spare(ctx), cloud.Recalled(ctx)
	w := s.join(c, cloud.PriorityOf(ctx), needed != nil, ticket)
	if w.ready == nil {
		return w.permit, w.ticket, 0, nil
	}
	var late <-chan time.Time
	at, tell, ok := cloud.Held(ctx)
	if ok {
		late = s.clock.After(at.Sub(w.since))
	}
	for {
		select {
		case <-w.ready:
			clock.Turn(s.clock, c.Action, w.ticket)
			return w.permit, w.ticket, s.clock.Now().Sub(w.since), nil
		case <-ctx.Done():
			s.leave(w)
			return permit{}, w.ticket, s.clock.Now().Sub(w.since), context.Cause(ctx)
		case <-recalled:
			s.leave(w)
			return permit{}, w.ticket, s.clock.Now().Sub(w.since), cloud.ErrRecalled
		case <-needed:
			needed = nil
			s.need(w)
		case <-late:
			late = nil
			tell(c.Action)
		}
	}
}

func (s *Set) join(c Call, p cloud.Priority, spare bool, ticket uint64) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ticket == 0 {
		s.ticket++
		ticket = s.ticket
	}
	now := s.clock.Now()
	w := &waiter{action: s.action(c, now), priority: p, spare: spare && s.options.Peers, ticket: ticket, since: now}
	w.action.queue.push(w)
	if p >= cloud.Begun {
		s.begun++
	}
	s.dispatch()
	if w.permit.action == nil {
		w.ready = make(chan struct{})
	}
	return w
}

func (s *Set) action(c Call, now time.Time) *action {
	a := s.actions[c.Action]
	if a == nil {
		ceiling := s.options.Ceilings[c.Action]
		a = &action{name: c.Action, begins: c.Begins, ceiling: ceiling, pacer: newPacer(now, ceiling, s.options.Peers)}
		a.queue.init()
		s.actions[c.Action] = a
		s.order = append(s.order, a)
	}
	return a
}

// leave removes a call from the queue, or returns its permit if it already has one.
func (s *Set) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.permit.action == nil {
		s.remove(w)
	} else {
		w.permit.own.unused()
		w.permit.account.unused()
	}
	s.dispatch()
}

func (s *Set) remove(w *waiter) {
	w.action.queue.remove(w)
	if w.priority >= cloud.Begun {
		s.begun--
	}
}

// dispatch gives permits to the calls whose turn has come, and schedules itself for the next turn. s.mu is
// held.
func (s *Set) dispatch() {
	now := s.clock.Now()
	for {
		w, wait := s.next(now)
		if w == nil {
			s.wake(now, wait)
			return
		}
		s.grant(w, now)
	}
}

// next finds the waiter whose turn it is, or the time until the next turn.
func (s *Set) next(now time.Time) (*waiter, time.Duration) {
	var account time.Duration
	if s.shared {
		account = s.account.delay(now)
	}
	wait := whenAnswered
	var best *waiter
	for _, a := range s.order {
		w := s.head(a, now)
		if w == nil {
			continue
		}
		d := max(account, a.pacer.delay(now))
		if w.spare {
			d = max(d, s.spareAt.Sub(now))
		}
		if d > 0 {
			wait = min(wait, d)
		} else if best == nil || s.precedes(w, best) {
			best = w
		}
	}
	return best, wait
}

// head returns the first waiter of an action; nil if there is none, or if work in progress has to complete first.
func (s *Set) head(a *action, now time.Time) *waiter {
	if a.queue.len() == 0 {
		return nil
	}
	w := a.queue.first()
	if old := a.queue.oldest(); a.turns%fairTurn == fairTurn-1 && now.Sub(old.since) > patience && old.spare == w.spare && !s.heldBack(old) {
		w = old
	}
	if s.heldBack(w) {
		return nil
	}
	return w
}

// heldBack reports whether a call would start work while calls that complete earlier work are waiting.
func (s *Set) heldBack(w *waiter) bool {
	return w.action.begins && w.priority < cloud.Begun && s.begun > 0
}

// precedes reports whether the head of one action goes before that of another.
func (s *Set) precedes(a, b *waiter) bool {
	if s.shared && s.turns%fairTurn == fairTurn-1 {
		return a.action.served < b.action.served
	}
	return a.action.queue.byPriority.before(a, b)
}

func (s *Set) grant(w *waiter, now time.Time) {
	s.remove(w)
	s.seq++
	a := w.action
	a.turns++
	a.served = s.seq
	w.permit = permit{action: a, own: a.pacer.take(now), seq: s.seq, sent: now}
	if s.shared {
		s.turns++
		w.permit.account = s.account.take(now)
	}
	if w.ready != nil {
		close(w.ready)
	}
}

// alarm is a scheduled call of dispatch.
type alarm struct {
	at  time.Time
	off chan struct{} // closed to cancel it
}

// wake schedules dispatch after wait, unless it is scheduled earlier.
func (s *Set) wake(now time.Time, wait time.Duration) {
	at := now.Add(wait)
	if s.alarm != nil {
		if wait < whenAnswered && !s.alarm.at.After(at) {
			return
		}
		close(s.alarm.off)
		s.alarm = nil
	}
	if wait >= whenAnswered {
		return
	}
	a := &alarm{at: at, off: make(chan struct{})}
	s.alarm = a
	timer := s.clock.After(wait)
	go func() {
		select {
		case <-a.off:
		case <-timer:
			s.ring(a)
		}
	}()
}

func (s *Set) ring(a *alarm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alarm == a {
		s.alarm = nil
		s.dispatch()
	}
}

// outcome is the result of a call for the limiters.
type outcome int

const (
	lost    outcome = iota // no reply
	passed                 // a reply, even an error
	refused                // throttled
)

// report returns the permit of a call that was sent, with its outcome.
func (s *Set) report(p permit, o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	switch o {
	case lost:
		p.own.lost()
		p.account.lost()
	case passed:
		s.pass(p, now)
	case refused:
		s.refuse(p, now)
	}
	s.dispatch()
}
