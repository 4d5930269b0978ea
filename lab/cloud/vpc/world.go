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

// world has the lock, the clock with its timers, the random numbers and the events of a Cloud, for all of
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
	seq         uint64 // of the last one
	queue       []Event
	delivering  bool // a goroutine calls the subscribers
	subscribers []*func(Event)
}

func newWorld() *world { return &world{clock: clock.Real{}, done: make(chan struct{})} }

// close ends the timers.
func (w *world) close() { w.closeOnce.Do(func() { close(w.done) }) }

// newID makes an ID such as eni-0a1b2c3d4e5f60718. The lock is held.
func (w *world) newID(prefix string) string {
	return fmt.Sprintf("%s-0%08x%08x", prefix, w.rng.Uint32(), w.rng.Uint32())
}

// orNewID is an ID that is given, else a new one. The lock is held.
func (w *world) orNewID(id, prefix string) string {
	if id != "" {
		return id
	}
	return w.newID(prefix)
}

// timer is a function that runs at a moment, with the lock held.
type timer struct {
	at time.Time
	do func()
}

// after runs do with the lock held after d; at once if d is zero. The lock is held.
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

// eventually runs do with the first call of any kind after d has passed. The lock is held.
func (w *world) eventually(d time.Duration, do func()) {
	at := w.clock.Now().Add(d)
	i, _ := slices.BinarySearchFunc(w.timers, at, func(t timer, at time.Time) int {
		if t.at.After(at) {
			return 1
		}
		return -1 // behind those of the same moment
	})
	w.timers = slices.Insert(w.timers, i, timer{at, do})
}

// settle runs the timers that are due. Every reader and writer settles first. The lock is held.
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

// Subscribe calls f with every later event, in order, one at a time and outside the cloud's lock,
// so that f may call the cloud. A method that causes events returns after their delivery, unless
// another goroutine was delivering already. The returned function ends the subscription.
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

// emit queues an event. The lock is held.
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

// deliver calls the subscribers with the queued events. The lock is not held. Only one goroutine
// delivers at a time, which keeps the order.
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

// The kinds of events.
const (
	// InstanceLaunched: the instance runs, for the first time or after a stop.
	// ENIAttached follows for each ENI that is attached.
	InstanceLaunched EventKind = "InstanceLaunched"
	// InstanceStopped: the machine is off and all its links are gone, though
	// its ENIs stay attached.
	InstanceStopped EventKind = "InstanceStopped"
	// InstanceTerminated: the machine is gone. ENIDetached preceded for each ENI, and
	// ENIDisassociated for each branch.
	InstanceTerminated EventKind = "InstanceTerminated"
	// ENIAttached: the link appears in the instance at this moment, which is
	// the link delay after AttachNetworkInterface returned.
	ENIAttached EventKind = "ENIAttached"
	// ENIDetached: the link is gone. ENI.Attachment still says from where.
	ENIDetached EventKind = "ENIDetached"
	// ENIAssociated: the trunk's link carries the branch's packets from this
	// moment. It follows ENIAttached of the trunk for each of its branches.
	ENIAssociated EventKind = "ENIAssociated"
	// ENIDisassociated: it does not any more. ENI.Trunk still says where it was.
	ENIDisassociated EventKind = "ENIDisassociated"
	// AddressesChanged: addresses or prefixes of an ENI, attached or not.
	AddressesChanged EventKind = "AddressesChanged"
	// GroupsChanged: the security groups of an ENI, or its source/destination
	// check.
	GroupsChanged EventKind = "GroupsChanged"
	// RulesChanged: the rules of a security group, or a new group.
	RulesChanged EventKind = "RulesChanged"
)

// Event is one change. Instance and ENI are copies; zero if the event has none. Seq counts the events;
// Snapshot.Seq is that of the last event in a snapshot.
type Event struct {
	Seq      uint64
	Time     time.Time
	Kind     EventKind
	Instance Instance
	ENI      ENI
}

// clientTokens keep the results of requests with client tokens. The world's lock guards them.
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

// replay finds the result of a client token. There is none for an empty token. The lock is held.
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

// remember keeps the result of a client token for a day. The lock is held.
func (ct *clientTokens) remember(token string, v idempotent) {
	if token == "" {
		return
	}
	v.at = ct.world.clock.Now()
	ct.used[token] = v
	ct.world.eventually(24*time.Hour, func() { delete(ct.used, token) })
}
