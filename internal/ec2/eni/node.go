package eni

import (
	"context"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// Node is the side that owns the addresses: the node's own allocator in node mode, the NodeNetwork
// object in operator mode. The reconciler calls it from one goroutine and holds no lock meanwhile.
type Node interface {
	// Usage returns what pods do with the published addresses. It is
	// called before every plan and must be quick.
	Usage() Usage
	// Publish gives the node its inventory after every change, also before
	// addresses are released. If the node keeps it durably, it is durable on return;
	// an error is logged, and fails the step that depends on the record.
	Publish(ctx context.Context, inv Inventory) error
	// ObserveFailed reports that the cloud could not be observed: what was published
	// before, or stored, is all that is known. It must be quick.
	ObserveFailed(err error)
	// Withdraw takes up to so many free addresses and prefixes of an ENI out of
	// use and returns those, addresses as prefixes of full length. Fewer, or none
	// yet, is no error: the reconciler asks again.
	Withdraw(eni string, want cloud.Amount) []netip.Prefix
	// RestoreWithdrawn undoes Withdraw, since the cloud did not take the addresses.
	RestoreWithdrawn(withdrawn []netip.Prefix)
	// WithdrawENI takes a whole ENI out of use and reports whether it could: it cannot
	// while one of its addresses is used or cooling. An inventory without it
	// follows; a later one with it undoes this.
	WithdrawENI(eni string) bool
}

// Usage is what pods do with the published addresses.
type Usage struct {
	ENIs    map[string]ENIUsage
	Waiting int // pods that wait for an address
	// MissingLinks are ENIs whose links the node lacks although they should be there, or
	// which pods use and the inventory lacks: the cloud is asked about each that comes or goes.
	MissingLinks []string
}

// ENIUsage is the usage of one ENI. A pod with an address of each family counts once; used and cooling
// addresses are counted in the family that has more of them.
type ENIUsage struct {
	Used, Cooling int
	Assignable    int          // number of further pods that it has addresses for
	Free          cloud.Amount // could be withdrawn now
}

// Observer receives everything the reconciler does, for metrics. Its methods are called from the
// reconciler's goroutine and must be quick.
type Observer interface {
	// Acted is called after each action or observation. The action names its
	// subnet, also for Assign. The class is Unknown when err is nil.
	Acted(a plan.Action, class cloud.Class, err error, took time.Duration)
	// Collected is called after each look for orphans.
	Collected(found Collected)
	// Reconciled is called after each pass.
	Reconciled(took time.Duration)
}

type noObserver struct{}

func (noObserver) Acted(plan.Action, cloud.Class, error, time.Duration) {}
func (noObserver) Collected(Collected)                                  {}
func (noObserver) Reconciled(time.Duration)                             {}

// Intent is the creation of an ENI that is about to be requested. The client token makes a repeat of
// the request return the ENI that the first one created. The intent is saved before the call, so a
// crash or a lost reply is resolved by repeating it.
type Intent struct {
	Request cloud.CreateENI `json:"request"`
	Index   int             `json:"deviceIndex"`
	At      time.Time       `json:"at"`
}

// Intents keeps the one creation that a node has in flight. Without durable storage (in the operator),
// an ENI that a crash left detached is still found by its tags, and the token covers lost replies only.
type Intents interface {
	// Load returns the intent that was saved last, or false.
	Load() (Intent, bool, error)
	// Save replaces it, durably.
	Save(Intent) error
	// Clear removes it: the creation's result is known.
	Clear() error
}

// MemoryIntents is an Intents in memory.
type MemoryIntents struct{ intent *Intent }

// Load implements Intents.
func (m *MemoryIntents) Load() (Intent, bool, error) {
	if m.intent == nil {
		return Intent{}, false, nil
	}
	return *m.intent, true, nil
}

// Save implements Intents.
func (m *MemoryIntents) Save(i Intent) error { m.intent = &i; return nil }

// Clear implements Intents.
func (m *MemoryIntents) Clear() error { m.intent = nil; return nil }
