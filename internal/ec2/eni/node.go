package eni

import (
	"context"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// Node owns the addresses: the node's own allocator in node mode, the NodeNetwork object in operator mode. The
// reconciler calls it from one goroutine, without holding a lock.
type Node interface {
	// Usage returns the usage of the published addresses. It is called before every plan and must return quickly.
	Usage() Usage
	// Publish passes the inventory to the node after every change, and before addresses are released. If the node
	// stores it durably, it is durable on return; an error is logged, and fails the step that depends on the
	// record.
	Publish(ctx context.Context, inv Inventory) error
	// ObserveFailed reports that the cloud could not be observed: the published or stored inventory is all that is
	// known. It must return quickly.
	ObserveFailed(err error)
	// Withdraw takes up to the wanted number of free addresses and prefixes of an ENI out of use and returns them,
	// addresses as single-address prefixes. Fewer, or none yet, is not an error: the reconciler asks again.
	Withdraw(eni string, want cloud.Amount) []netip.Prefix
	// RestoreWithdrawn undoes Withdraw, because the cloud did not release the addresses.
	RestoreWithdrawn(withdrawn []netip.Prefix)
	// WithdrawENI takes a whole ENI out of use and reports success: it fails while one of its addresses is used or
	// cooling down. An inventory without the ENI follows; a later inventory with the ENI undoes the withdrawal.
	WithdrawENI(eni string) bool
}

// Usage is the usage of the published addresses.
type Usage struct {
	ENIs    map[string]ENIUsage
	Waiting int // pods waiting for an address
	// MissingLinks lists ENIs whose links the node lacks although they should exist, or which pods use although
	// the inventory lacks them. Each ENI that appears or disappears here is described.
	MissingLinks []string
}

// ENIUsage is the usage of one ENI. A dual-stack pod counts once; used and cooling addresses are counted in the
// family that has more of them.
type ENIUsage struct {
	Used, Cooling int
	Assignable    int          // number of further pods that the ENI has addresses for
	Free          cloud.Amount // addresses that could be withdrawn now
}

// Observer receives the reconciler's activity, for metrics. Its methods are called from the reconciler's goroutine
// and must return quickly.
type Observer interface {
	// Acted is called after each action or observation. The action includes its subnet, also for Assign. The
	// class is Unknown if err is nil.
	Acted(a plan.Action, class cloud.Class, err error, took time.Duration)
	// Collected is called after each search for orphans.
	Collected(found Collected)
	// Reconciled is called after each pass.
	Reconciled(took time.Duration)
}

type noObserver struct{}

func (noObserver) Acted(plan.Action, cloud.Class, error, time.Duration) {}
func (noObserver) Collected(Collected)                                  {}
func (noObserver) Reconciled(time.Duration)                             {}

// Intent is the creation of an ENI that is about to be requested. The client token makes a repeated request return
// the ENI of the first one. The intent is saved before the call, so that a crash or a lost reply is resolved by
// repeating the request.
type Intent struct {
	Request cloud.CreateENI `json:"request"`
	Index   int             `json:"deviceIndex"`
	At      time.Time       `json:"at"`
}

// Intents stores the creation that a node has in flight. Without durable storage (in the operator), an ENI left
// detached by a crash is still found by its tags, and the token covers only lost replies.
type Intents interface {
	// Load returns the last saved intent, or false.
	Load() (Intent, bool, error)
	// Save replaces the intent, durably.
	Save(Intent) error
	// Clear removes the intent: the creation's result is known.
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
