package daemon

import (
	"context"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/source"
)

// Egress is how pods reach networks outside besides their own interface: as clients of
// Egresses or, of their gateways, as those who forward. All methods may be called
// concurrently; Apply, Check and Clear of one record never are, but only while the lock of
// its container is held. Records that are given are not to be changed, nor what is returned
// later on.
type Egress interface {
	// Annotations are the keys of pods' annotations that are looked at, as
	// source.Source.Annotations. One that ends in "/" stands for all that begin with it.
	Annotations() []string
	// CheckWish refuses, before anything is done about an ADD, what no pod can have. The
	// error names the annotation and what was expected.
	CheckWish(req source.Request) error
	// Acquire returns what the pod is to have, once the operator said so: nil for one that
	// is to have nothing, at once where that is known on the node. When ctx ends first, or
	// where the pod's annotation names an Egress that it may not use, the error is an
	// *source.Exhausted that names the Egress and says why. It takes nothing: there is
	// nothing to give back after it. The state of what it returns is attachment.EgressSetUp.
	Acquire(ctx context.Context, req source.Request) (*attachment.Egress, error)
	// Why tells what the Acquire of key waits for; nil when none waits.
	Why(key attachment.Key) *source.Exhausted
	// Apply makes the pod's namespace as rec.Egress says, nil like one that has nothing, and
	// removes what else of Berth's egress is there. Addresses are rec.OwnAddrs() and
	// rec.OtherAddrs(), the interface is Key.IfName with its own MTU. It is idempotent and
	// finishes what is half done. Errors of package client (internal/egress/client) are told
	// apart, such as ErrNoFoU; so of Check, Clear and Supported.
	Apply(ctx context.Context, rec attachment.Record) error
	// Check tells how the kernel differs from rec.Egress, and changes nothing.
	Check(ctx context.Context, rec attachment.Record) error
	// Clear takes away all that Apply made. It is idempotent, and no error in a namespace
	// that is gone.
	Clear(ctx context.Context, rec attachment.Record) error
	// Supported tells whether the node's kernel can set up clients at all. Asked at start and
	// at the interval of repairs.
	Supported(ctx context.Context) error
	// News fires when a ready attachment may have to have another egress than before; nil:
	// never. It holds one token at most, so that all that is new is looked at after it.
	News() <-chan struct{}
	// Wanted returns what a ready attachment is to have by now, and whether that differs
	// from rec.Egress in anything but the state; false while it is not known, as before the
	// API server answered. Gateways that rec.Egress has keep their IDs. It is asked for every record whenever
	// News fires: it answers from memory.
	Wanted(rec attachment.Record) (egress *attachment.Egress, differ bool)
	// SetUp says that a ready attachment is set up as rec.Egress says, nil included: at its
	// ADD, after each change, after a repair that failed before, and, before Run, once for
	// each ready record. The operator is told later: this does not wait for it.
	SetUp(rec attachment.Record)
	// Failed says that rec.Egress could not be set up as yet, at an ADD or for a pod that
	// runs; rec.Egress.Egresses are those wanted. It is tried again, and told again only if
	// the error differs. A person is to hear of it: by the EgressClient's condition and an
	// Event of the Pod.
	Failed(rec attachment.Record, err error)
	// Gone says that the attachment is no more, after its record went: its addresses may soon
	// be another's. Told also of one that has no egress. What went while no daemon ran, or
	// was not told before the last one ended, is known by that SetUp was not called for it
	// before Run.
	Gone(rec attachment.Record)
	// Run follows what the operator says, and tells it what there is to tell, until ctx
	// ends, and returns only then.
	Run(ctx context.Context) error
}
