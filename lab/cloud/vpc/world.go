package vpc

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/spec"
)

// world provides the lock, the clock with its timers, the random numbers and the events of a Cloud to all of
// its parts.
type world struct {
	clock     clock.Clock
	done      chan struct{} // closed by close
	closeOnce sync.Once

	mu     sync.Mutex // guards all below and the state of every part; never held across I/O or a subscriber
	rng    *rand.Rand
	delays spec.Delays
	timers []timer // by time
	events events
}

// events queues the events of changes for the subscribers.
type events struct {
	seq         uint64 // sequence number of the last one
	queue       []Event
	delivering  bool // a goroutine is calling the subscribers
	subscribers []*func(Event)
}

func newWorld() *world { return &world{clock: clock.Real{}, done: make(chan struct{})} }

// close stops the timers.
func (w *world) close() { w.closeOnce.Do(func() { close(w.done) }) }

// newID returns an ID such as eni-0a1b2c3d4e5f60718. The caller must hold the lock.
func (w *world) newID(prefix string) string {
	return fmt.Sprintf("%s-0%08x%08x", prefix, w.rng.Uint32(), w.rng.Uint32())
}

// orNewID returns the given ID, or a new one if it is empty. The caller must hold the lock.
func (w *world) orNewID(id, prefix string) string {
	if id != "" {
		return id
	}
	return w.newID(prefix)
}

// timer is a function that runs at a point in time, with the lock held.
type timer struct {
	at time.Time
	do func()
}

// after runs do with the lock held after d, or immediately if d is zero. The caller must hold the lock.
func (w *world) after(d time.Duration, do func()) {
	if d <= 0 {
		do()
		return
	}
	w.eventually(d, do)
	due := w.clock.After(d)
	go func() {
		select {
		case <-due:
			w.read(func() {})
		case <-w.done:
		}
	}()
}

// eventually runs do during the first call of any kind after d has passed. The caller must hold the lock.
func (w *world) eventually(d time.Duration, do func()) {
	at := w.clock.Now().Add(d)
	i, _ := slices.BinarySearchFunc(w.timers, at, func(t timer, at time.Time) int {
		if t.at.After(at) {
			return 1
		}
		return -1 // after timers of the same time
	})
	w.timers = slices.Insert(w.timers, i, timer{at, do})
}

// settle runs the timers that are due. Every reader and writer settles first. The caller must hold the lock.
func (w *world) settle() {
	now := w.clock.Now()
	for len(w.timers) > 0 && !w.timers[0].at.After(now) {
		due := w.timers[0]
		w.timers = w.timers[1:]
		due.do()
	}
}

// change runs f with the lock held and then delivers the events it caused.
func (w *world) change(f func() error) error {
	w.mu.Lock()
	w.settle()
	err := f()
	w.mu.Unlock()
	w.deliver()
	return err
}

// read runs f with the lock held.
func (w *world) read(f func()) {
	_ = w.change(func() error { f(); return nil })
}

// Subscribe calls f with every future event, in order, one at a time and outside the cloud's lock, so that
// f may call the cloud. A method that causes events returns after their delivery, unless another
// goroutine is delivering already. The returned function ends the subscription.
func (c *Cloud) Subscribe(f func(Event)) (cancel func()) {
	v := &c.world.events
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	v.subscribers = append(slices.Clip(v.subscribers), &f)
	return func() {
		c.world.mu.Lock()
		defer c.world.mu.Unlock()
		v.subscribers = slices.DeleteFunc(slices.Clone(v.subscribers), func(s *func(Event)) bool { return s == &f })
	}
}

// emit queues an event. The caller must hold the lock.
func (w *world) emit(kind EventKind, i *Instance, e *ENI) {
	w.events.seq++
	ev := Event{Seq: w.events.seq, Time: w.clock.Now(), Kind: kind}
	if i != nil {
		ev.Instance = i.Clone()
	}
	if e != nil {
		ev.ENI = e.Clone()
	}
	w.events.queue = append(w.events.queue, ev)
}

// deliver calls the subscribers with the queued events. The caller must not hold the lock. Only one
// goroutine delivers at a time, which preserves the order.
func (w *world) deliver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := &w.events
	if v.delivering {
		return
	}
	v.delivering = true
	for len(v.queue) > 0 {
		ev, subscribers := v.queue[0], v.subscribers
		v.queue = v.queue[1:]
		w.mu.Unlock()
		for _, f := range subscribers {
			(*f)(ev)
		}
		w.mu.Lock()
	}
	v.delivering = false
}

// EventKind is the kind of an event.
type EventKind string

// Kinds of events.
const (
	// InstanceLaunched: the instance runs, for the first time or after a stop. ENIAttached follows for each
	// attached ENI.
	InstanceLaunched EventKind = "InstanceLaunched"
	// InstanceStopped: the machine is off and all its links are gone, although its ENIs stay attached.
	InstanceStopped EventKind = "InstanceStopped"
	// InstanceTerminated: the machine is gone. It follows ENIDetached for each ENI, and ENIDisassociated for
	// each branch.
	InstanceTerminated EventKind = "InstanceTerminated"
	// ENIAttached: the link appears in the instance now, the link delay after AttachNetworkInterface
	// returned.
	ENIAttached EventKind = "ENIAttached"
	// ENIDetached: the link is gone. ENI.Attachment is the former attachment.
	ENIDetached EventKind = "ENIDetached"
	// ENIAssociated: the trunk's link starts to carry the branch's packets. It follows ENIAttached of the
	// trunk for each of its branches.
	ENIAssociated EventKind = "ENIAssociated"
	// ENIDisassociated: the trunk's link stops carrying the branch's packets. ENI.Trunk is the former
	// association.
	ENIDisassociated EventKind = "ENIDisassociated"
	// AddressesChanged: addresses or prefixes of an ENI changed, attached or not.
	AddressesChanged EventKind = "AddressesChanged"
	// GroupsChanged: the security groups of an ENI, or its source/destination check, changed.
	GroupsChanged EventKind = "GroupsChanged"
	// RulesChanged: the rules of a security group changed, or a group was created.
	RulesChanged EventKind = "RulesChanged"
)

// Event is one change. Instance and ENI are copies, or zero if the event has none. Seq numbers the events;
// Snapshot.Seq is that of the last event in a snapshot.
type Event struct {
	Seq      uint64
	Time     time.Time
	Kind     EventKind
	Instance Instance
	ENI      ENI
}

// clientTokens holds the results of requests with client tokens. The world's lock guards it.
type clientTokens struct {
	world *world
	used  map[string]idempotent
}

// idempotent is the request and the result of a client token.
type idempotent struct {
	request any
	enis    []ENI
	ids     []string
	at      time.Time
}

// replay returns the result of a client token, and whether there is one. An empty token has none. The caller must hold
// the lock.
func (ct *clientTokens) replay(token string, request any) (idempotent, bool, error) {
	prior, ok := ct.used[token]
	if !ok || token == "" {
		return idempotent{}, false, nil
	}
	if !reflect.DeepEqual(prior.request, request) {
		return idempotent{}, false, Errorf("IdempotentParameterMismatch",
			"Arguments on this idempotent request are inconsistent with arguments used in previous request(s).")
	}
	return prior, true, nil
}

// remember keeps the result of a client token for a day. The caller must hold the lock.
func (ct *clientTokens) remember(token string, v idempotent) {
	if token == "" {
		return
	}
	v.at = ct.world.clock.Now()
	ct.used[token] = v
	ct.world.eventually(24*time.Hour, func() { delete(ct.used, token) })
}
