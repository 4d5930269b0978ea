// Package nicpart is the daemon part for NICs that are ports of a VPC: it sets up, compares, changes
// and removes all NICs of an attachment. Package nics does so for one NIC and communicates with the operator.
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

// NICs are the ports of the node's pods, one NIC at a time. *nics.NICs implements it. Methods without a
// comment are documented in part.Part.
type NICs interface {
	Annotations() []string
	CheckOptions(req attachment.Request) error
	// Acquire returns the pod's NICs once all of them are bound to this node. For a pod that requests none it
	// returns none, without waiting. The error of a timeout names the
	// port, its host and its status.
	Acquire(ctx context.Context, req attachment.Request) ([]attachment.NIC, error)
	Why(key attachment.Key) *source.Exhausted
	// Expect is part.Part.Prepare, for all NICs of a record. It may take as long as an ADD.
	Expect(ctx context.Context, rec attachment.Record) error
	// Plug connects a NIC of a recorded attachment to its pod, and returns it with the kernel's values.
	// It is idempotent and completes a partial setup. The errors of Plug, Unplug and Check are those
	// of package plug, or *source.Exhausted.
	Plug(ctx context.Context, rec attachment.Record, nic attachment.NIC) (attachment.NIC, error)
	// Await returns once all NICs of a record are active.
	Await(ctx context.Context, rec attachment.Record) error
	// Unplug removes everything that Plug created, including a partial setup, even if the namespace no longer
	// exists. It is idempotent.
	Unplug(ctx context.Context, rec attachment.Record, nic attachment.NIC) error
	// Check returns an error that describes how the kernel differs from a NIC. It changes nothing.
	Check(ctx context.Context, rec attachment.Record, nic attachment.NIC) error
	// Drifted receives an element when other software may have changed plugged NICs; nil: never. TakeDrift
	// returns the ports concerned since its last call, or all if it may be any port.
	Drifted() <-chan struct{}
	TakeDrift() (ports []string, all bool)
	LinkChanged(name string, address net.HardwareAddr)
	DesiredChanged() <-chan struct{}
	// Desired returns all NICs that a ready attachment should have, and whether that requires a change. The
	// state of each is the step that it needs: plugging for a NIC that is added or replaces another, changing for
	// one that gets other addresses. NICs that the pod no longer requests are omitted, except the
	// attachment's own interface.
	Desired(rec attachment.Record) (nics []attachment.NIC, differ bool)
	// Plugged reports the plugged NICs of a ready attachment, without those that are still being
	// plugged: at its ADD, at startup and after a change.
	Plugged(rec attachment.Record)
	// Unplugged reports that no NIC of an attachment is left on the node. It is called while the record still
	// exists, so that no other attachment can have the ports yet.
	Unplugged(rec attachment.Record)
	Plugs(ctx context.Context) (hostLinks []string, err error)
	Sweep(ctx context.Context, keep func(hostLink, port string) bool) error
	Describe(snap *source.Snapshot)
	Run(ctx context.Context) error
}

// Options are the settings and dependencies of a Part.
type Options struct {
	NICs
	Store *attachment.Store
	Wait  time.Duration // part.About.Wait
	Count func(done string, err error)
	Log   *slog.Logger
}

// Part is the NICs of attachments, attachment.Record.NICs. It is stateless.
type Part struct {
	Options // NICs implements the remaining methods of part.Part
}

var _ part.Part = Part{}

// New returns a Part.
func New(o Options) Part { return Part{Options: o} }

var errUnconfigured = errors.New("the attachment has NICs that are ports of a VPC, but this berthd is not configured to plug them")

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

// SetUp implements part.Part for all NICs without a change in progress. It plugs them
// concurrently, because a switch that learns of several ports at the same time sets them up together. The error
// is that of the first NIC that failed.
func (p Part) SetUp(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	if len(rec.NICs) == 0 {
		return rec, nil
	}
	plugged, errs := slices.Clone(rec.NICs), make([]error, len(rec.NICs)) // a copy, because the store's slice is shared
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

// Remove implements part.Part. It starts with the last NIC, and continues if one fails.
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

// Lingers implements part.Part. Routed VLANs are links of the node, whose removal waits for the kernel. The record keeps the
// ports from other attachments until then. A switch must learn of the end of a port before the reply. Links in the pod's
// namespace must be removed before it too: the runtime then unmounts the namespace, which may outlive that with its links.
func (Part) Lingers(rec attachment.Record) (has, lingers bool) {
	elsewhere := slices.ContainsFunc(rec.NICs, func(n attachment.NIC) bool { return plug.Kind(n.Plug.Type) != plug.RoutedVLAN })
	return len(rec.NICs) > 0, !elsewhere
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

// Gone implements part.Part. Remove has already reported it, while the record existed.
func (Part) Gone(attachment.Record) {}

// Links implements part.Part.
func (p Part) Links(ctx context.Context) ([]string, error) { return p.NICs.Plugs(ctx) }

// Sweep implements part.Part.
func (p Part) Sweep(ctx context.Context, keep func(hostLink, port string) bool) error {
	if err := p.NICs.Sweep(ctx, keep); err != nil {
		return failure("unplugging NICs without a record", err)
	}
	return nil
}

// Checks implements part.Part. Against an unresponsive Open vSwitch, one check holds a container's lock for
// long, so one suffices; the return of Open vSwitch is reported as drift.
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

// failure returns the Failure for an error of NICs.
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
