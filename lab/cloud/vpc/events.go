package vpc

import "time"

// EventKind says what happened.
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
	// RulesChanged: those of a security group, or there is a new one.
	RulesChanged EventKind = "RulesChanged"
)

// Event is one change of the books. Instance and ENI are copies, zero where
// the event has none. Seq counts the events; Books.Seq says which a snapshot
// already contains.
type Event struct {
	Seq      uint64
	Time     time.Time
	Kind     EventKind
	Instance Instance
	ENI      ENI
}

// Subscribe has f called with every later event, in order, one at a time and
// outside the cloud's lock, so that f may call the cloud. A method that causes
// events returns after they were delivered, unless another goroutine was
// delivering already. The returned function ends the subscription.
func (c *Cloud) Subscribe(f func(Event)) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.nextSubscriber
	c.nextSubscriber++
	c.subscribers = append(c.subscribers, subscriber{id, f})
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		kept := make([]subscriber, 0, len(c.subscribers))
		for _, s := range c.subscribers {
			if s.id != id {
				kept = append(kept, s)
			}
		}
		c.subscribers = kept
	}
}

type subscriber struct {
	id int
	f  func(Event)
}

// emit queues an event. The lock is held.
func (c *Cloud) emit(kind EventKind, i *Instance, e *ENI) {
	c.seq++
	ev := Event{Seq: c.seq, Time: c.clock.Now(), Kind: kind}
	if i != nil {
		ev.Instance = i.Clone()
	}
	if e != nil {
		ev.ENI = e.Clone()
	}
	c.queue = append(c.queue, ev)
}

// deliver hands queued events to the subscribers. The lock is not held. Only
// one goroutine delivers at a time, which keeps the order.
func (c *Cloud) deliver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.delivering {
		return
	}
	c.delivering = true
	for len(c.queue) > 0 {
		ev, subs := c.queue[0], c.subscribers
		c.queue = c.queue[1:]
		c.mu.Unlock()
		for _, s := range subs {
			s.f(ev)
		}
		c.mu.Lock()
	}
	c.delivering = false
}
