// Package nicpart makes NICs that are ports of a VPC a part of the daemon: it sets up, compares, changes
// and removes all NICs of an attachment. Package nics does so for one NIC, and speaks to the operator.
package nicpart

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/source"
)

var _ = failpoint.Register("daemon.nics.acquired", "daemon.nics.plugged", "daemon.nics.active", "daemon.nics.unplugged")

// NICs are the ports of the node's pods, one NIC at a time. *nics.NICs implements it. What is not
// documented here is as in part.Part.
type NICs interface {
	Annotations() []string
	CheckOptions(req attachment.Request) error
	// Acquire returns the NICs that the pod is to have, once all of them are bound to
	// this node: none for a pod that asks for none, and then at once. The error of a wait in vain
	// names the port, its host and its status.
	Acquire(ctx context.Context, req attachment.Request) ([]attachment.NIC, error)
	Why(key attachment.Key) *source.Exhausted
	// Expect is part.Part.Prepare, for all NICs of a record. It may take as long as an ADD.
	Expect(ctx context.Context, rec attachment.Record) error
	// Plug puts a NIC of a recorded attachment into its pod, and returns it with what
	// the kernel reports. It is idempotent, and finishes what is half done. Errors of Plug, Unplug and Check are those
	// of package plug, or *source.Exhausted.
	Plug(ctx context.Context, rec attachment.Record, nic attachment.NIC) (attachment.NIC, error)
	// Await returns once all NICs of a record carry packets.
	Await(ctx context.Context, rec attachment.Record) error
	// Unplug removes all that Plug made, also what is half there, and in a namespace that is
	// gone. It is idempotent.
	Unplug(ctx context.Context, rec attachment.Record, nic attachment.NIC) error
	// Check returns how the kernel differs from a NIC, and changes nothing.
	Check(ctx context.Context, rec attachment.Record, nic attachment.NIC) error
	// Drifted has an element when other software may have changed what is plugged; nil: never. TakeDrift
	// returns the ports concerned since it was called last; all: it may be any.
	Drifted() <-chan struct{}
	TakeDrift() (ports []string, all bool)
	LinkChanged(name string, address net.HardwareAddr)
	DesiredChanged() <-chan struct{}
	// Desired returns all NICs that a ready attachment should have, and whether something
	// has to be changed for that. Each is in the state of what has to be done: plugging for one that
	// is added or replaces another, changing for one that gets other addresses. One that the pod gave
	// up is not among them, but the attachment's own interface is never left out.
	Desired(rec attachment.Record) (nics []attachment.NIC, differ bool)
	// Plugged reports that a ready attachment has those of its NICs that are not being
	// plugged, and no others: at its ADD, at start and after a change.
	Plugged(rec attachment.Record)
	// Unplugged reports that no NIC of an attachment is left on the node. It is called while the record is
	// there, so that no other attachment can have the ports yet.
	Unplugged(rec attachment.Record)
	Plugs(ctx context.Context) (hostLinks []string, err error)
	Sweep(ctx context.Context, keep func(hostLink, port string) bool) error
	Describe(snap *source.Snapshot)
	Run(ctx context.Context) error
}

// Options are what a Part is made of.
type Options struct {
	NICs
	Store *attachment.Store
	Wait  time.Duration // part.About.Wait
	Count func(done string, err error)
	Log   *slog.Logger
}

// Part is the NICs of attachments, attachment.Record.NICs. It has no state of its own.
type Part struct {
	Options // NICs implements the rest of part.Part
}

var _ part.Part = Part{}

// New returns it.
func New(o Options) Part { return Part{Options: o} }

var errUnconfigured = errors.New("the attachment has NICs that are ports of a VPC, and this berthd is not configured to plug any")

// Unconfigured returns the part of a daemon that is not configured for NICs.
func Unconfigured(log *slog.Logger) part.Part {
	return part.Unconfigured("NICs", func(rec attachment.Record) error {
		if len(rec.NICs) == 0 {
			return nil
		}
		return failure("plugging "+name(rec.NICs[0]), errUnconfigured)
	}, log)
}

// About implements part.Part.
func (p Part) About() part.About {
	return part.About{
		Name: "NICs", Annotations: p.NICs.Annotations(), Wait: p.Wait, OutlivesReboot: true, ChecksAtOnce: 1, Count: p.Count,
		NotAcquired: "no NICs for the pod: ", NotPrepared: "the pod's NICs are not on the node yet: ", NotServed: "the pod's NICs carry no packets yet: ",
	}
}

// Acquire implements part.Part.
func (p Part) Acquire(ctx context.Context, req attachment.Request, rec *attachment.Record) (has bool, err error) {
	if rec.NICs, err = p.NICs.Acquire(ctx, req); err != nil || len(rec.NICs) == 0 {
		return false, err
	}
	return true, failpoint.Hit("daemon.nics.acquired")
}

// Prepare implements part.Part.
func (p Part) Prepare(ctx context.Context, rec attachment.Record) error {
	if len(rec.NICs) == 0 {
		return nil
	}
	return p.NICs.Expect(ctx, rec)
}

// SetUp implements part.Part, for all NICs but those that a change has under way. It plugs them
// concurrently, as a switch that learns of several ports at once sets them up together. The error is
// that of the first NIC that failed.
func (p Part) SetUp(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	if len(rec.NICs) == 0 {
		return rec, nil
	}
	plugged, errs := slices.Clone(rec.NICs), make([]error, len(rec.NICs)) // others read those of the store
	var each sync.WaitGroup
	for i := range rec.NICs {
		if rec.Settled(rec.NICs[i]) {
			each.Go(func() { errs[i] = p.plug(ctx, rec, &plugged[i]) })
		}
	}
	each.Wait()
	rec.NICs = plugged
	for _, err := range errs {
		if err != nil {
			return rec, err
		}
	}
	return rec, nil
}

// plug sets up one NIC of a record.
func (p Part) plug(ctx context.Context, rec attachment.Record, nic *attachment.NIC) error {
	now, err := p.NICs.Plug(ctx, rec, *nic)
	if err != nil {
		return failure("plugging "+name(*nic), err)
	}
	*nic = now
	return failpoint.Hit("daemon.nics.plugged")
}

// Await implements part.Part.
func (p Part) Await(ctx context.Context, rec attachment.Record) error {
	if len(rec.NICs) == 0 {
		return nil
	}
	if err := p.NICs.Await(ctx, rec); err != nil {
		return err
	}
	return failpoint.Hit("daemon.nics.active")
}

// Remove implements part.Part: the last NIC first, and all of them although one fails.
func (p Part) Remove(ctx context.Context, rec attachment.Record) error {
	if len(rec.NICs) == 0 {
		return nil
	}
	var first error
	for _, nic := range slices.Backward(rec.NICs) {
		if err := p.NICs.Unplug(ctx, rec, nic); err != nil && first == nil {
			first = failure("unplugging "+name(nic), err)
		}
	}
	if first != nil {
		return first
	}
	if err := failpoint.Hit("daemon.nics.unplugged"); err != nil {
		return err
	}
	p.NICs.Unplugged(rec)
	return nil
}

// Check implements part.Part.
func (p Part) Check(ctx context.Context, rec attachment.Record) error {
	var errs []error
	for _, nic := range rec.NICs {
		if !rec.Settled(nic) {
			continue
		}
		if err := p.NICs.Check(ctx, rec, nic); err != nil {
			errs = append(errs, failure(name(nic), err))
		}
	}
	err := errors.Join(errs...)
	if errors.Is(err, plug.ErrUnreachable) {
		return part.Unreachable(err)
	}
	return err
}

// Inspect implements part.Part.
func (Part) Inspect(context.Context) []source.Condition { return nil }

// Gone implements part.Part. Remove already reported it, while the record was there.
func (Part) Gone(attachment.Record) {}

// Links implements part.Part.
func (p Part) Links(ctx context.Context) ([]string, error) { return p.NICs.Plugs(ctx) }

// Sweep implements part.Part.
func (p Part) Sweep(ctx context.Context, keep func(hostLink, port string) bool) error {
	if err := p.NICs.Sweep(ctx, keep); err != nil {
		return failure("unplugging NICs that no record has", err)
	}
	return nil
}

// Checks implements part.Part. One check of an Open vSwitch that does not answer holds a container's lock for
// long, and its return is a change.
func (p Part) Checks(rec attachment.Record) (checks bool, service string) {
	if slices.ContainsFunc(rec.NICs, func(n attachment.NIC) bool {
		kind := plug.Kind(n.Plug.Type)
		return kind == plug.OVS || kind == plug.OVSHybrid
	}) {
		service = "Open vSwitch"
	}
	return len(rec.NICs) > 0, service
}

// Drift implements part.Part.
func (p Part) Drift() <-chan struct{} { return p.NICs.Drifted() }

// Drifted implements part.Part.
func (p Part) Drifted() (keys []attachment.Key, all bool) {
	ports, all := p.NICs.TakeDrift()
	for _, port := range ports {
		if rec, ok := p.Store.ByPort(port); ok && !slices.Contains(keys, rec.Key) {
			keys = append(keys, rec.Key)
		}
	}
	return keys, all
}

// Ready implements part.Part.
func (p Part) Ready(rec attachment.Record) {
	if len(rec.NICs) > 0 {
		p.NICs.Plugged(rec)
	}
}

// TakeUp implements part.Part.
func (p Part) TakeUp(ready []attachment.Record) {
	for _, rec := range ready {
		p.Ready(rec)
	}
}

func name(nic attachment.NIC) string { return "NIC " + nic.IfName + ", port " + nic.Port }

// failure is the error of something that was done about NICs.
func failure(what string, err error) error {
	say := func(code uint, reason string) error { return cnierror.Because(err, code, reason, what) }
	if ex, ok := errors.AsType[*source.Exhausted](err); ok {
		return say(types.ErrTryAgainLater, ex.Reason)
	}
	switch {
	case errors.Is(err, plug.ErrInvalid), errors.Is(err, plug.ErrDefaultRoute):
		return say(types.ErrInvalidNetworkConfig, "nic-invalid")
	case errors.Is(err, plug.ErrNoBridge), errors.Is(err, plug.ErrUnreachable):
		return say(types.ErrTryAgainLater, "nic-switch")
	case errors.Is(err, plug.ErrNotReady):
		return say(types.ErrTryAgainLater, "nic-not-ready")
	case errors.Is(err, plug.ErrNoTun):
		return say(types.ErrTryAgainLater, "no-tun")
	case errors.Is(err, plug.ErrNoVLAN):
		return say(types.ErrTryAgainLater, "no-vlan")
	case errors.Is(err, plug.ErrPortInUse):
		return say(types.ErrTryAgainLater, "port-in-use")
	case errors.Is(err, datapath.ErrNoNetns), errors.Is(err, datapath.ErrNotNetns):
		return say(types.ErrInvalidNetNS, "netns-missing")
	}
	return say(cnierror.CodeKernel, "nic")
}
