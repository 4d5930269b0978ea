package daemon

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

var _ = failpoint.Register("daemon.nics.acquired", "daemon.nics.plugged", "daemon.nics.active", "daemon.nics.unplugged")

// NICs are interfaces of pods that are ports of a VPC. An attachment has them beside
// the lease of its source, or in its place. All methods may be called concurrently, but
// those that are given a record only while the lock of its container is held. Those
// about what is plugged may be called before Run.
type NICs interface {
	// Annotations are the keys of pods' annotations that are looked at, as
	// source.Source.Annotations.
	Annotations() []string
	// CheckWish refuses, before anything is done about an ADD, what no pod can have.
	// The error names the annotation and what was expected.
	CheckWish(req source.Request) error
	// Acquire returns the NICs that the pod is to have, once all of them are bound to
	// this node: none for a pod that asks for none, and then at once. When ctx ends first
	// the error is an *source.Exhausted that names the port, its host and its status. It
	// takes nothing: there is nothing to give back after it.
	Acquire(ctx context.Context, req source.Request) ([]attachment.NIC, error)
	// Why tells what the Acquire, Expect or Await of key waits for; nil when none waits.
	Why(key attachment.Key) *source.Exhausted
	// Expect returns once all is on the node that the NICs of a recorded attachment are
	// plugged from, where others bring it; at once where none do. When it does not come, or ctx
	// ends, the error is an *source.Exhausted; all else is left to Plug. It may take as long as
	// an ADD.
	Expect(ctx context.Context, rec attachment.Record) error
	// Plug puts a NIC of a recorded attachment into its pod, and returns it with what
	// the kernel tells of it. It is idempotent, and finishes what is half done. Errors of
	// package plug, and *source.Exhausted, are told apart; so of Unplug and Check.
	Plug(ctx context.Context, rec attachment.Record, nic attachment.NIC) (attachment.NIC, error)
	// Await returns once all NICs of the attachment carry packets, or ctx ends; the
	// error then is an *source.Exhausted.
	Await(ctx context.Context, rec attachment.Record) error
	// Unplug takes a NIC away with all that Plug made, also what is half there, and in
	// a namespace that is gone. It is idempotent.
	Unplug(ctx context.Context, rec attachment.Record, nic attachment.NIC) error
	// Check tells how the kernel differs from a NIC, and changes nothing.
	Check(ctx context.Context, rec attachment.Record, nic attachment.NIC) error
	// Changed fires when somebody else may have changed what is plugged; nil: never.
	Changed() <-chan struct{}
	// LinkChanged reports a change of a link of the node, by name and MAC address: the link appeared,
	// vanished, went down or lost its settings, routes or neighbours. An empty name means that the change may
	// concern any NIC, such as one of rules or tables. Changed fires if a NIC that is plugged depends on the link.
	LinkChanged(name string, address net.HardwareAddr)
	// Touched names the ports of which that is so since it was asked last; all: it may be
	// any.
	Touched() (ports []string, all bool)
	// News fires when a ready attachment may have to have other NICs than before; nil:
	// never.
	News() <-chan struct{}
	// Wanted returns all NICs that a ready attachment is to have by now, and whether
	// something is to be done for that. Each is in the state of what is to be done: plugging for one that
	// is added, or that stands in the place of another; changing for one that is to be
	// given other addresses. One that the pod gave up is not among them, but never is the
	// attachment's own interface left out.
	Wanted(rec attachment.Record) (nics []attachment.NIC, differ bool)
	// Plugged says that the attachment is ready with those of its NICs that are not being
	// plugged, and no others: at its ADD, at start for each record that is, and after
	// a change. The operator is told later: this does not wait for it.
	Plugged(rec attachment.Record)
	// Unplugged says that nothing is left of NICs on the node; told until it is heard. The
	// record goes right after it: what comes of one of its ports later comes after.
	Unplugged(rec attachment.Record)
	// Plugs names the attachments that have anything plugged on the node, by their host
	// links. For damaged records, of which nothing else may be known.
	Plugs(ctx context.Context) (hostLinks []string, err error)
	// Clear takes away all that is plugged for an attachment, by its host link.
	Clear(ctx context.Context, hostLink string) error
	// Sweep takes away what is plugged on the node and keep says no of, by the host link
	// of its attachment and the port's ID; both are empty for what is half made and may be
	// anybody's. It lists before it asks keep, so that ADDs may go on meanwhile: what they
	// plug is recorded before. Called at start, and again when it failed.
	Sweep(ctx context.Context, keep func(hostLink, port string) bool) error
	// Run follows what the operator says until ctx ends, and returns only then.
	Run(ctx context.Context) error
}

// errNoNICs is of a record with NICs on a daemon that was started without them.
var errNoNICs = errors.New("the attachment has NICs that are ports of a VPC, and this berthd is not configured to plug any")

// plug sets up the NICs of a record but for those that a change has in its hands, side by
// side, as a switch that learns of several ports at once sets them up together, and
// returns it with what the kernel tells of them. The error is a Failure, that of the first
// one that failed.
func (d *Daemon) plug(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	if len(rec.NICs) == 0 {
		return rec, nil
	}
	if d.NICs == nil {
		return rec, nicFailure("plugging "+nicName(rec.NICs[0]), errNoNICs)
	}
	plugged, errs := slices.Clone(rec.NICs), make([]error, len(rec.NICs)) // others read those of the store
	var each sync.WaitGroup
	for i := range rec.NICs {
		if !rec.Settled(rec.NICs[i]) {
			continue
		}
		each.Go(func() { errs[i] = d.plugOne(ctx, rec, &plugged[i]) })
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

// plugOne sets up one NIC of a record.
func (d *Daemon) plugOne(ctx context.Context, rec attachment.Record, nic *attachment.NIC) error {
	now, err := d.NICs.Plug(ctx, rec, *nic)
	if err != nil {
		return nicFailure("plugging "+nicName(*nic), err)
	}
	*nic = now
	return failpoint.Hit("daemon.nics.plugged")
}

// unplug takes down the NICs of a record, the last first. All are tried. The error is
// a Failure.
func (d *Daemon) unplug(ctx context.Context, rec attachment.Record) error {
	if len(rec.NICs) == 0 {
		return nil
	}
	if d.NICs == nil { // the pod must go all the same
		d.Log.Warn("NICs are left plugged: this berthd is not configured to unplug them", "attachment", rec.Key.String(), "nics", nicNames(rec))
		return nil
	}
	var first error
	for _, nic := range slices.Backward(rec.NICs) {
		if err := d.NICs.Unplug(ctx, rec, nic); err != nil && first == nil {
			first = nicFailure("unplugging "+nicName(nic), err)
		}
	}
	if first != nil {
		return first
	}
	return failpoint.Hit("daemon.nics.unplugged")
}

// plugged tells how what is plugged differs from the NICs of a record.
func (d *Daemon) plugged(ctx context.Context, rec attachment.Record) error {
	if len(rec.NICs) > 0 && d.NICs == nil {
		return errNoNICs
	}
	var errs []error
	for _, nic := range rec.NICs {
		if !rec.Settled(nic) {
			continue
		}
		if err := d.NICs.Check(ctx, rec, nic); err != nil {
			errs = append(errs, nicFailure(nicName(nic), err))
		}
	}
	return errors.Join(errs...)
}

// plugsOfDamaged names attachments that have anything plugged, by their host links: at
// least those of damaged records, for which nothing else may speak.
func (d *Daemon) plugsOfDamaged(ctx context.Context) []string {
	if d.NICs == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, kernelTimeout)
	defer cancel()
	links, err := d.NICs.Plugs(ctx)
	if err != nil {
		d.Log.Warn("listing what is plugged, damaged records are kept", "err", err)
		return d.quarantine.links()
	}
	return links
}

// tellPlugged says that an attachment is ready with its NICs.
func (d *Daemon) tellPlugged(rec attachment.Record) {
	if len(rec.NICs) > 0 && d.NICs != nil {
		d.NICs.Plugged(rec)
	}
}

// tellUnplugged says that nothing is left of the NICs of an attachment. It is called
// while the record is there still, so that nobody else can have their ports yet.
func (d *Daemon) tellUnplugged(rec attachment.Record) {
	if len(rec.NICs) > 0 && d.NICs != nil {
		d.NICs.Unplugged(rec)
	}
}

// nicNames are the interfaces and ports of a record's NICs, for a log line.
func nicNames(rec attachment.Record) (names []string) {
	for _, n := range rec.NICs {
		names = append(names, n.IfName+"="+n.Port)
	}
	return names
}

// isRouted tells whether the node routes to a NIC, as it does to the address of a lease.
func isRouted(nic attachment.NIC) bool { return plug.Kind(nic.Plug.Type) == plug.RoutedVLAN }

func nicName(nic attachment.NIC) string { return "NIC " + nic.IfName + ", port " + nic.Port }

// nicFailure says what came of something that was to be done about NICs.
func nicFailure(what string, err error) error {
	say := func(code uint, reason string) error {
		return &Failure{Code: code, Reason: reason, Message: what, Details: err.Error(), Err: err}
	}
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
	return say(CodeKernel, "nic")
}
