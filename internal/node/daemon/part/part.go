// Package part is the contract between the daemon and its parts: features of attachments beyond
// the addresses of their lease, such as NICs that are ports of a VPC, or egress.
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

// Part is one feature of attachments. All methods may be called concurrently, except those that take a
// record: they are only called while the lock of its container is held or, for Remove and Gone of parts that linger, while
// others wait for the end of the removal. A part never changes a record that it was given, nor one that it returned. None has
// a default for every method except About.
type Part interface {
	Admission
	Kernel
	Upkeep

	// About describes the part.
	About() About
	// Ready reports that an attachment is ready as recorded: at its ADD, and after each change
	// and repair. It does not wait for the recipients of the report.
	Ready(rec attachment.Record)
	// Gone reports the end of an attachment, after its record was removed: its addresses may soon belong to
	// another pod. It is also called for attachments that were never ready or do not use the
	// part, and during recovery.
	Gone(rec attachment.Record)
	// TakeUp reports the attachments that are ready at startup. It is called once, at the end of
	// recovery and before Run.
	TakeUp(ready []attachment.Record)
	// Describe adds the part's conditions, waiting ADDs and metrics to a snapshot.
	Describe(snap *source.Snapshot)
	// Run does the part's own work, such as watching API objects, and blocks until ctx
	// ends.
	Run(ctx context.Context) error
}

// Admission decides what an ADD gets.
type Admission interface {
	// CheckOptions rejects invalid requests before any work for an ADD is done. The error
	// names the annotation and the expected value.
	CheckOptions(req attachment.Request) error
	// Acquire sets the part's field of rec to the desired state of the pod, and reports whether
	// the pod uses the part. It returns immediately for a pod that requests nothing. If ctx ends
	// first, or the request is not allowed, the error is an *source.Exhausted. Acquire
	// reserves nothing, so nothing needs to be released afterwards.
	Acquire(ctx context.Context, req attachment.Request, rec *attachment.Record) (has bool, err error)
	// Why returns what the Acquire, Prepare or Await of key waits for, or nil if none of them is waiting.
	Why(key attachment.Key) *source.Exhausted
}

// Kernel sets up, compares and removes the recorded kernel state. Errors are *cnierror.Failure unless
// documented otherwise.
type Kernel interface {
	// Prepare returns once the kernel can be set up as recorded, for example when another program has
	// created a link. If that takes too long the error is an *source.Exhausted.
	Prepare(ctx context.Context, rec attachment.Record) error
	// SetUp creates the missing parts of the recorded kernel state, and returns the record with the kernel's
	// values. It is idempotent and completes a partial setup.
	SetUp(ctx context.Context, rec attachment.Record) (attachment.Record, error)
	// Await returns once the part carries traffic. If ctx ends first it returns an *source.Exhausted, or
	// nil if the pod may start anyway.
	Await(ctx context.Context, rec attachment.Record) error
	// Check returns an error that describes how the kernel differs from a record, or nil, and changes nothing.
	// It wraps the error with Unreachable if the state cannot be determined now.
	Check(ctx context.Context, rec attachment.Record) error
	// Remove removes everything that SetUp created, including a partial setup, even if the namespace no
	// longer exists. It is idempotent.
	Remove(ctx context.Context, rec attachment.Record) error
	// Lingers reports whether the record has state of the part, and whether Remove may follow the reply to DEL:
	// nothing outside the pod depends on it, and the record withholds what other pods may not have yet.
	Lingers(rec attachment.Record) (has, lingers bool)
	// Links returns the host links of attachments of which the part has state on the node. It is used for
	// damaged records, about which nothing else may be known.
	Links(ctx context.Context) ([]string, error)
	// Sweep removes the part's state on the node for which keep returns false, by the host link of its
	// attachment and the ID of its port, if it has one. Both are empty for a partial setup
	// that may belong to any attachment. Sweep lists the state before it calls keep, so that ADDs may
	// continue meanwhile: they write the record before the setup.
	Sweep(ctx context.Context, keep func(hostLink, port string) bool) error
}

// Upkeep keeps ready attachments in the desired state.
type Upkeep interface {
	// Checks reports whether Check can find a difference for a ready record, and the service that
	// Check depends on, or "". If it is unreachable for one attachment, the others that depend on it
	// are not checked in the same round.
	Checks(rec attachment.Record) (checks bool, service string)
	// Inspect returns conditions about the node. It is called at startup and at the repair interval.
	Inspect(ctx context.Context) []source.Condition
	// Drift receives an element when other software may have changed the part's state; nil: never. Drifted
	// returns the attachments concerned since its last call, or all if it may be any.
	Drift() <-chan struct{}
	Drifted() (keys []attachment.Key, all bool)
	// LinkChanged reports that a link of the node, by name and MAC address, appeared, vanished, went
	// down or lost its settings, routes or neighbours. With an empty name, any link may be concerned.
	LinkChanged(name string, address net.HardwareAddr)
	// DesiredChanged receives an element when the result of Desired may have changed for any attachment; nil: never.
	// It holds at most one element, so that every change is followed by an evaluation.
	DesiredChanged() <-chan struct{}
	// Desired returns the desired state of a ready attachment, as a value that identifies a failed
	// change, and whether it requires a change. It answers from memory, because it is called for every
	// record after each DesiredChanged.
	Desired(rec attachment.Record) (what any, differs bool)
	// Change brings a ready attachment to its desired state. It records the desired state before it touches
	// the kernel, so that a start after a crash continues from there. ctx is cancelled when the
	// desired state changes or nothing is desired any longer.
	Change(ctx context.Context, host Host, key attachment.Key) error
}

// About describes a part for the daemon.
type About struct {
	Name        string   // for logs and errors, as in "NICs"
	Annotations []string // keys of pods' annotations that it reads; one that ends in "/" is a prefix

	// Wait is how long an ADD that uses the part may wait for the part and its address
	// together, if that is longer than the wait for an address.
	Wait time.Duration
	// AwaitLimit bounds Await; 0 means that Wait does.
	AwaitLimit time.Duration
	// Prefixes of the error of an ADD that timed out.
	NotAcquired, NotPrepared, NotServed string

	// OutlivesReboot: the part's state may survive a reboot of the node and must then be removed.
	OutlivesReboot bool
	// FollowsInterfaces: the part must be checked after an interface of the pod was set up again.
	FollowsInterfaces bool
	// ChecksAtOnce is the number of concurrent checks; 0 means that the part has no state to check.
	ChecksAtOnce int
	// Count counts corrections of a ready attachment, Again or Changed. It may be nil.
	Count func(done string, err error)
}

// Corrections of a ready attachment.
const (
	Again   = "again"   // set up again as recorded
	Changed = "changed" // changed to the desired state
)

// Unreachable marks an error of Check whose cause is that the service does not respond.
func Unreachable(err error) error { return unreachable{err} }

// IsUnreachable reports whether an error is marked by Unreachable.
func IsUnreachable(err error) bool {
	_, ok := errors.AsType[unreachable](err)
	return ok
}

type unreachable struct{ error }

// Unwrap returns the marked error.
func (u unreachable) Unwrap() error { return u.error }

// ErrDraining is the cause of a context that ended because the daemon is shutting down.
var ErrDraining = errors.New("berthd is shutting down")

// Host is the daemon's interface for parts that change ready attachments.
type Host interface {
	// Hold waits for the lock of an attachment's container and returns its record. release is nil
	// if the attachment need not be changed any longer: it is not ready, its namespace is gone or its
	// pod has a newer sandbox. Otherwise release must be called once.
	Hold(ctx context.Context, key attachment.Key) (rec attachment.Record, release func(), err error)
	// Put writes a record while the attachment is held.
	Put(rec attachment.Record) error
	// SetUpLease sets up the pod's own interface again while the attachment is held, because its number of
	// interfaces has changed.
	SetUpLease(ctx context.Context, rec attachment.Record) error
	// PrepareLater prepares the parts that come after the caller's, as for an ADD, for a record that the caller is about to set up, while
	// the attachment is held.
	PrepareLater(ctx context.Context, rec attachment.Record) error
	// SetUpLater sets up the parts that come after the caller's for a record that the caller changes, while the attachment is
	// held.
	SetUpLater(ctx context.Context, rec attachment.Record) error
	// Waiting returns the context for a wait of a change, which may last as long as that of an ADD.
	Waiting(ctx context.Context) (context.Context, context.CancelFunc)
	// Setting returns the context for kernel work of a change, which continues when ctx ends.
	Setting(ctx context.Context) (context.Context, context.CancelFunc)
}

// Alive reports whether the path of a recorded namespace still leads to that namespace. inspect
// is datapath.InspectNetns, or a test's. On an error the result is unknown.
func Alive(inspect func(path string) (datapath.NetnsID, error), ns attachment.Netns) (bool, error) {
	now, err := inspect(ns.Path)
	if errors.Is(err, datapath.ErrNoNetns) || errors.Is(err, datapath.ErrNotNetns) {
		return false, nil
	}
	return err == nil && now == datapath.NetnsID{Dev: ns.Dev, Inode: ns.Inode}, err
}

// Unconfigured returns a part for a daemon that is not configured for it. It rejects attachments that use
// the part: failure returns the error for a record, or nil if it does not use the part. They can be removed.
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

// Remove implements Part. The pod must be removed anyway.
func (u unconfigured) Remove(_ context.Context, rec attachment.Record) error {
	if u.failure(rec) != nil {
		u.log.Warn("removing a pod without its "+u.name+", because this berthd is not configured for them", rec.ForLog()...) //nolint:sloglint // a part has one name
	}
	return nil
}

// None does nothing. A part embeds it and overrides the methods that it needs.
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

// Lingers implements Part.
func (None) Lingers(attachment.Record) (has, lingers bool) { return false, false }

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
