// Package part is the contract between the daemon and its parts: features of attachments
// beside the addresses of their lease, such as NICs that are ports of a VPC, or egress.
//
// The daemon owns order, locks, records, schedule and backoff. A part owns one field of
// attachment.Record and everything behind that field. The daemon sets parts up in the order of
// its list, after the lease, and removes them in reverse.
package part

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// Part is one feature of attachments. All methods may be called concurrently, but those that
// are given a record only while the lock of its container is held. A part never changes a
// record that it was given, nor what it returned. None has a default for every method but
// About.
type Part interface {
	Admission
	Kernel
	Upkeep

	// About describes the part.
	About() About
	// Ready reports that an attachment is ready as recorded: at its ADD, and after each change
	// and repair. It does not wait for whoever has to hear of it.
	Ready(rec attachment.Record)
	// Gone reports that an attachment is no more, after its record was removed: its addresses may
	// soon be another pod's. It is also called for attachments that never were ready or have nothing of
	// the part, and during recovery.
	Gone(rec attachment.Record)
	// TakeUp reports the attachments that are ready at start. It is called once, at the end of
	// recovery and before Run.
	TakeUp(ready []attachment.Record)
	// Describe adds the part's conditions, waiting ADDs and metrics to a snapshot.
	Describe(snap *source.Snapshot)
	// Run does the part's own work, such as following API objects, until ctx ends, and
	// returns only then.
	Run(ctx context.Context) error
}

// Admission decides what an ADD gets.
type Admission interface {
	// CheckOptions rejects, before anything is done about an ADD, what no pod can have. The error
	// names the annotation and what was expected.
	CheckOptions(req attachment.Request) error
	// Acquire sets the part's field of rec to what the pod is to have, and reports whether
	// that is anything. It returns at once for a pod that asks for nothing. When ctx ends
	// first, or the pod may not have what it asks for, the error is an *source.Exhausted. Acquire
	// takes nothing: there is nothing to release after it.
	Acquire(ctx context.Context, req attachment.Request, rec *attachment.Record) (has bool, err error)
	// Why returns what the Acquire, Prepare or Await of key waits for, or nil when none of them waits.
	Why(key attachment.Key) *source.Exhausted
}

// Kernel sets up, compares and removes what a record says. Errors are *cnierror.Failure unless
// documented otherwise.
type Kernel interface {
	// Prepare returns once the kernel can be set up as recorded, as where another program has to
	// create a link first. When that takes too long the error is an *source.Exhausted.
	Prepare(ctx context.Context, rec attachment.Record) error
	// SetUp sets up the kernel as recorded, as far as it is not, and returns the record with what
	// the kernel reports. It is idempotent and finishes what is half done.
	SetUp(ctx context.Context, rec attachment.Record) (attachment.Record, error)
	// Await returns once what is set up carries traffic. When ctx ends first it returns an
	// *source.Exhausted, or nil where the pod may start without.
	Await(ctx context.Context, rec attachment.Record) error
	// Check returns how the kernel differs from a record, or nil, and changes nothing. It wraps an
	// error by Unreachable when it cannot know now.
	Check(ctx context.Context, rec attachment.Record) error
	// Remove removes what SetUp made, also what is half there and in a namespace that is
	// gone. It is idempotent.
	Remove(ctx context.Context, rec attachment.Record) error
	// Links returns the host links of attachments of which the part has anything on the node. For
	// damaged records, of which nothing else may be known.
	Links(ctx context.Context) ([]string, error)
	// Sweep removes what the part has on the node and keep rejects, by the host link of its
	// attachment and the ID of its port, if it has one. Both are empty for what is half made
	// and may belong to any attachment. Sweep lists before it calls keep, so that ADDs may go
	// on meanwhile: they record before they set up.
	Sweep(ctx context.Context, keep func(hostLink, port string) bool) error
}

// Upkeep keeps attachments that are ready as they should be.
type Upkeep interface {
	// Checks reports whether Check can find a difference for a ready record, and the service that
	// Check depends on, or "". When it is unreachable for one attachment, the others that need
	// it are not checked in the same round.
	Checks(rec attachment.Record) (checks bool, service string)
	// Inspect returns conditions about the node. It is called at start and at the interval of repairs.
	Inspect(ctx context.Context) []source.Condition
	// Drift has an element when other software may have changed what is set up; nil: never. Drifted
	// returns the attachments concerned since it was called last; all: it may be any.
	Drift() <-chan struct{}
	Drifted() (keys []attachment.Key, all bool)
	// LinkChanged reports that a link of the node, by name and MAC address, appeared, vanished, went
	// down or lost its settings, routes or neighbours. An empty name means that any may be concerned.
	LinkChanged(name string, address net.HardwareAddr)
	// DesiredChanged has an element when Desired may differ from before for any attachment; nil: never. It holds
	// one element at most, so that everything new is looked at after it.
	DesiredChanged() <-chan struct{}
	// Desired returns what a ready attachment should have, as a value that tells one failed change
	// from another, and whether something has to be changed for that. It answers from memory:
	// after each DesiredChanged it is called for every record.
	Desired(rec attachment.Record) (what any, differs bool)
	// Change brings a ready attachment to what it should have. The record says what is
	// desired before the kernel is touched, so that a start after a crash goes on from there. When
	// ctx is cancelled, something else is desired by now, or nothing.
	Change(ctx context.Context, host Host, key attachment.Key) error
}

// About is what the daemon needs to know of a part.
type About struct {
	Name        string   // for logs and errors, as in "NICs"
	Annotations []string // keys of pods' annotations that it reads; one that ends in "/" is a prefix

	// Wait is how long an ADD that has anything of the part may wait for it and for its address
	// together, if that is longer than the wait for an address.
	Wait time.Duration
	// AwaitLimit bounds Await; 0: Wait does.
	AwaitLimit time.Duration
	// How the error of an ADD begins that waited in vain.
	NotAcquired, NotPrepared, NotServed string

	// OutlivesReboot: what the part sets up may be left after a reboot of the node, and has to be removed then.
	OutlivesReboot bool
	// FollowsInterfaces: the part has to be checked when an interface of the pod was set up again.
	FollowsInterfaces bool
	// ChecksAtOnce is how many attachments are checked concurrently; 0: the part has nothing to keep.
	ChecksAtOnce int
	// Count counts what was done about a ready attachment: Again or Changed; may be nil.
	Count func(done string, err error)
}

// What was done about a ready attachment that was not as it should be.
const (
	Again   = "again"   // set up again as recorded
	Changed = "changed" // changed to what it should have
)

// Unreachable marks an error of Check: the service that it depends on does not answer.
func Unreachable(err error) error { return unreachable{err} }

// IsUnreachable reports whether an error is marked by Unreachable.
func IsUnreachable(err error) bool {
	_, ok := errors.AsType[unreachable](err)
	return ok
}

type unreachable struct{ error }

// Unwrap returns the marked error.
func (u unreachable) Unwrap() error { return u.error }

// ErrDraining is the cause of a context that ended because the daemon ends.
var ErrDraining = errors.New("berthd is ending")

// Host is what the daemon offers a part for changes of ready attachments.
type Host interface {
	// Hold waits for the lock of an attachment's container and returns its record. release is nil
	// when the attachment need not be changed any more: it is not ready, its namespace is gone or its
	// pod has a newer sandbox. Otherwise release must be called once.
	Hold(ctx context.Context, key attachment.Key) (rec attachment.Record, release func(), err error)
	// Put writes a record while the attachment is held.
	Put(rec attachment.Record) error
	// SetUpLease sets up the pod's own interface again while the attachment is held, as its number of interfaces
	// changed.
	SetUpLease(ctx context.Context, rec attachment.Record) error
	// Waiting returns the context in which a change may wait as long as an ADD would.
	Waiting(ctx context.Context) (context.Context, context.CancelFunc)
	// Setting returns the context for kernel work of a change, which goes on when ctx ends.
	Setting(ctx context.Context) (context.Context, context.CancelFunc)
}

// Alive reports whether the path of a recorded namespace still leads to that namespace. inspect
// is datapath.InspectNetns, or a test's. The error is one that leaves it open.
func Alive(inspect func(path string) (datapath.NetnsID, error), ns attachment.Netns) (bool, error) {
	now, err := inspect(ns.Path)
	if errors.Is(err, datapath.ErrNoNetns) || errors.Is(err, datapath.ErrNotNetns) {
		return false, nil
	}
	return err == nil && now == datapath.NetnsID{Dev: ns.Dev, Inode: ns.Inode}, err
}

// Unconfigured returns a part for a daemon that is not configured for it. It rejects attachments that have
// something of the part: failure returns the error for a record, or nil if it has nothing. They can be removed.
func Unconfigured(name string, failure func(rec attachment.Record) error, log *slog.Logger) Part {
	return unconfigured{name: name, failure: failure, log: log}
}

type unconfigured struct {
	None
	name    string
	failure func(attachment.Record) error
	log     *slog.Logger
}

// About implements Part.
func (u unconfigured) About() About { return About{Name: u.name} }

// SetUp implements Part.
func (u unconfigured) SetUp(_ context.Context, rec attachment.Record) (attachment.Record, error) {
	return rec, u.failure(rec)
}

// Check implements Part.
func (u unconfigured) Check(_ context.Context, rec attachment.Record) error { return u.failure(rec) }

// Remove implements Part. The pod must go anyway.
func (u unconfigured) Remove(_ context.Context, rec attachment.Record) error {
	if u.failure(rec) != nil {
		u.log.Warn("removing a pod without its "+u.name+", as this berthd is not configured for them", rec.ForLog()...) //nolint:sloglint // a part has one name
	}
	return nil
}

// None does nothing. A part embeds it and implements what it has.
type None struct{}

// CheckOptions implements Part.
func (None) CheckOptions(attachment.Request) error { return nil }

// Acquire implements Part.
func (None) Acquire(context.Context, attachment.Request, *attachment.Record) (bool, error) {
	return false, nil
}

// Why implements Part.
func (None) Why(attachment.Key) *source.Exhausted { return nil }

// Prepare implements Part.
func (None) Prepare(context.Context, attachment.Record) error { return nil }

// SetUp implements Part.
func (None) SetUp(_ context.Context, rec attachment.Record) (attachment.Record, error) {
	return rec, nil
}

// Await implements Part.
func (None) Await(context.Context, attachment.Record) error { return nil }

// Check implements Part.
func (None) Check(context.Context, attachment.Record) error { return nil }

// Remove implements Part.
func (None) Remove(context.Context, attachment.Record) error { return nil }

// Links implements Part.
func (None) Links(context.Context) ([]string, error) { return nil, nil }

// Sweep implements Part.
func (None) Sweep(context.Context, func(hostLink, port string) bool) error { return nil }

// Checks implements Part.
func (None) Checks(attachment.Record) (bool, string) { return false, "" }

// Inspect implements Part.
func (None) Inspect(context.Context) []source.Condition { return nil }

// Drift implements Part.
func (None) Drift() <-chan struct{} { return nil }

// Drifted implements Part.
func (None) Drifted() ([]attachment.Key, bool) { return nil, false }

// LinkChanged implements Part.
func (None) LinkChanged(string, net.HardwareAddr) {}

// DesiredChanged implements Part.
func (None) DesiredChanged() <-chan struct{} { return nil }

// Desired implements Part.
func (None) Desired(attachment.Record) (any, bool) { return nil, false }

// Change implements Part.
func (None) Change(context.Context, Host, attachment.Key) error { return nil }

// Ready implements Part.
func (None) Ready(attachment.Record) {}

// Gone implements Part.
func (None) Gone(attachment.Record) {}

// TakeUp implements Part.
func (None) TakeUp([]attachment.Record) {}

// Describe implements Part.
func (None) Describe(*source.Snapshot) {}

// Run implements Part.
func (None) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
