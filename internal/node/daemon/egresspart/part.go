// Package egresspart is the daemon part for egress: pods that reach external networks as clients of
// Egresses, and the gateways that forward their packets. Package podegress programs a pod's namespace and
// communicates with the operator.
package egresspart

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

var _ = failpoint.Register(
	"daemon.egress.acquired", "daemon.egress.applied", "daemon.egress.cleared", "daemon.egress.recorded", "daemon.egress.changed",
)

// ConditionEgress is the type of the condition that Inspect returns.
const ConditionEgress = "EgressReady"

// Egress is the egress of the node's pods. *podegress.Clients implements it. Methods without a
// comment are documented in part.Part.
type Egress interface {
	Annotations() []string
	CheckOptions(req attachment.Request) error
	// Acquire returns the pod's desired egress once the operator has assigned it, or nil if the pod has none,
	// without waiting if the node knows that. If the wait times out, or the pod's annotation names an
	// Egress that it may not use, the error names the Egress and the reason.
	// The returned state is attachment.EgressSetUp.
	Acquire(ctx context.Context, req attachment.Request) (*attachment.Egress, error)
	Why(key attachment.Key) *source.Exhausted
	// Apply makes the pod's namespace match rec.Egress, where nil means no egress, and removes any other egress
	// state of Berth. The addresses are rec.OwnAddrs() and rec.OtherAddrs(), the interface is Key.IfName with
	// its own MTU. It is idempotent and completes a partial setup. The errors of Apply, Check, Clear and
	// Supported include tunnel.ErrNoFoU and the datapath errors
	// about the namespace.
	Apply(ctx context.Context, rec attachment.Record) error
	// Check returns an error that describes how the kernel differs from rec.Egress. It changes nothing.
	Check(ctx context.Context, rec attachment.Record) error
	// Clear removes everything that Apply created. It is idempotent.
	Clear(ctx context.Context, rec attachment.Record) error
	// Supported returns an error if the node's kernel cannot set up clients.
	Supported(ctx context.Context) error
	DesiredChanged() <-chan struct{}
	// Desired returns the desired egress of a ready attachment, and whether it differs from rec.Egress in
	// anything but the state. The result is false while the desired egress is unknown, as before the
	// API server has responded. Gateways in rec.Egress keep their IDs.
	Desired(rec attachment.Record) (egress *attachment.Egress, differ bool)
	// Restore reports the ready attachments at startup. Those whose egress is settled are set up as recorded.
	// If the EgressClient of a pod on this node names another sandbox, the recorded sandbox is gone.
	Restore(ready []attachment.Record)
	// Announce reports that an attachment that is not ready yet is being set up with rec.Egress and its current
	// addresses, so that gateways learn of it in the meantime. A call of SetUp or Ended
	// follows.
	Announce(rec attachment.Record)
	// Await returns once every gateway that new connections of the attachment may use serves the pod.
	// The error names the gateways that do not, when ctx ends or waiting is pointless. The attachment must be
	// set up and announced.
	Await(ctx context.Context, rec attachment.Record) error
	// SetUp reports that a ready attachment is set up with rec.Egress, which may be nil. SetUp, Failed and Ended
	// do not wait for the operator, which is only notified of changes.
	SetUp(rec attachment.Record)
	// Failed reports a failed attempt to set up rec.Egress: at an ADD, which leaves nothing behind, or for a
	// running pod, which may partially keep its former egress. For a running pod, the EgressClient's condition
	// and an Event report the failure; for an ADD, the daemon does.
	Failed(rec attachment.Record, err error)
	Ended(rec attachment.Record)
	Describe(snap *source.Snapshot)
	Run(ctx context.Context) error
}

// Options are the settings and dependencies of a Part.
type Options struct {
	Egress      Egress
	Store       *attachment.Store
	Wait        time.Duration // part.About.Wait
	GatewayWait time.Duration // how long an ADD waits for gateways to serve the pod before it continues; 0: not at all
	Count       func(done string, err error)
	Clients     metric.Family // gauge of ready clients, by state
	// InspectNetns is datapath.InspectNetns, or a test's.
	InspectNetns func(path string) (datapath.NetnsID, error)
	Log          *slog.Logger
}

// Part is the egress of attachments, attachment.Record.Egress. It is stateless.
type Part struct {
	part.None
	Options
}

var _ part.Part = Part{}

// New returns a Part.
func New(o Options) Part { return Part{Options: o} }

var errUnconfigured = errors.New("the attachment uses an Egress, but this berthd is not configured for egress")

// Unconfigured returns the part of a daemon that is not configured for egress.
func Unconfigured(log *slog.Logger) part.Part {
	return part.Unconfigured("egress", func(rec attachment.Record) error {
		if rec.Egress == nil {
			return nil
		}
		return failure(rec, errUnconfigured)
	}, log)
}

// About implements part.Part.
func (p Part) About() part.About {
	return part.About{
		Name: "egress", Annotations: p.Egress.Annotations(), Wait: p.Wait, AwaitLimit: p.GatewayWait,
		NotAcquired: "no egress for the pod: ", NotPrepared: "no egress for the pod: ",
		NotServed:         "the pod's gateways do not serve it yet: ", // for an ADD whose caller has left
		FollowsInterfaces: true, ChecksAtOnce: 4, Count: p.Count,
	}
}

// CheckOptions implements part.Part.
func (p Part) CheckOptions(req attachment.Request) error { return p.Egress.CheckOptions(req) }

// Acquire implements part.Part.
func (p Part) Acquire(ctx context.Context, req attachment.Request, rec *attachment.Record) (has bool, err error) {
	if rec.Egress, err = p.Egress.Acquire(ctx, req); err != nil || rec.Egress == nil {
		return false, err
	}
	return true, failpoint.Hit("daemon.egress.acquired")
}

// Why implements part.Part.
func (p Part) Why(key attachment.Key) *source.Exhausted { return p.Egress.Why(key) }

// Prepare implements part.Part. It announces the pod to gateways.
func (p Part) Prepare(_ context.Context, rec attachment.Record) error {
	if rec.Egress != nil && rec.State != attachment.Ready { // gateways know those that run
		p.Egress.Announce(rec)
	}
	return nil
}

// SetUp implements part.Part.
func (p Part) SetUp(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	if rec.Egress == nil {
		return rec, nil
	}
	return p.apply(ctx, rec)
}

// apply sets up the recorded egress, and returns the record in its settled form.
func (p Part) apply(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	if err := p.Egress.Apply(ctx, rec); err != nil {
		p.Egress.Failed(rec, err)
		return rec, failure(rec, err)
	}
	rec.Egress = rec.Egress.Settled()
	return rec, failpoint.Hit("daemon.egress.applied")
}

// Await implements part.Part, so that a pod's first packets get through. If gateways take too long, the pod
// starts without them; its retransmissions get through later.
func (p Part) Await(ctx context.Context, rec attachment.Record) error {
	if p.GatewayWait <= 0 || rec.Egress == nil || len(rec.Egress.Egresses) == 0 {
		return nil
	}
	err := p.Egress.Await(ctx, rec)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) && !errors.Is(cause, part.ErrDraining) {
		return cause
	}
	p.Log.Info("a pod starts before all gateways serve it", rec.ForLog("egresses", rec.EgressNames(), "err", err)...)
	return nil
}

// Check implements part.Part. It does not compare egress that is being changed.
func (p Part) Check(ctx context.Context, rec attachment.Record) error {
	if !isSettled(rec) {
		return nil
	}
	if err := p.Egress.Check(ctx, rec); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	return nil
}

func isSettled(rec attachment.Record) bool {
	return rec.Egress != nil && rec.Egress.State == attachment.EgressSetUp
}

// Remove implements part.Part. It never prevents the removal of a pod, because all egress state is in the
// pod's namespace and ends with it.
func (p Part) Remove(ctx context.Context, rec attachment.Record) error {
	if rec.Egress == nil {
		return nil
	}
	switch alive, err := part.Alive(p.InspectNetns, rec.Netns); {
	case err != nil:
		p.Log.Warn("looking up the network namespace of a pod whose egress is to be removed failed", "attachment", rec.Key.String(), "err", err)
		return nil
	case alive:
		if err := p.Egress.Clear(ctx, rec); err != nil {
			p.Log.Warn("removing a pod's egress from its namespace failed", "attachment", rec.Key.String(), "err", err)
			return nil
		}
	}
	return failpoint.Hit("daemon.egress.cleared")
}

// Lingers implements part.Part. All egress state is in the pod's namespace, which the runtime usually removes right after the
// reply. Removing the state first takes three RCU grace periods.
func (Part) Lingers(rec attachment.Record) (has, lingers bool) { return rec.Egress != nil, true }

// Checks implements part.Part.
func (p Part) Checks(rec attachment.Record) (checks bool, service string) { return isSettled(rec), "" }

// Inspect implements part.Part.
func (p Part) Inspect(ctx context.Context) []source.Condition {
	c := source.Condition{Type: ConditionEgress, Healthy: true, Reason: "Supported"}
	switch err := p.Egress.Supported(ctx); {
	case err == nil:
	case errors.Is(err, tunnel.ErrNoFoU):
		c = source.Condition{Type: ConditionEgress, Reason: "NoFoU", Message: err.Error() + ": pods that use an Egress cannot run on this node; others are not affected"}
	default:
		c = source.Condition{Type: ConditionEgress, Reason: "Unknown", Message: err.Error()}
	}
	return []source.Condition{c}
}

// DesiredChanged implements part.Part.
func (p Part) DesiredChanged() <-chan struct{} { return p.Egress.DesiredChanged() }

// Desired implements part.Part.
func (p Part) Desired(rec attachment.Record) (what any, differs bool) {
	desired, differs := p.Egress.Desired(rec)
	if !differs {
		desired = rec.Egress
	}
	return desired.Settled(), differs || rec.Egress != nil && !isSettled(rec)
}

// Change implements part.Part: the pod's Egresses or their settings have changed.
func (p Part) Change(ctx context.Context, host part.Host, key attachment.Key) error {
	rec, release, err := host.Hold(ctx, key)
	if release == nil {
		return err
	}
	defer release()
	ctx, cancel := host.Setting(ctx)
	defer cancel()
	if desired, differs := p.Egress.Desired(rec); differs {
		before := rec.EgressNames()
		rec.Egress = desired.Changing(rec.Egress)
		if err := host.Put(rec); err != nil {
			return err
		}
		if err := failpoint.Hit("daemon.egress.recorded"); err != nil {
			return err
		}
		p.Log.Info("the egress of a running pod changes", rec.ForLog("before", before)...)
	}
	// Network policies know all tunnels that the pod may have, before it has those.
	if err := host.SetUpLater(ctx, rec); err != nil {
		return err
	}
	now, err := p.SetUp(ctx, rec)
	if err != nil {
		return err
	}
	if rec.Egress != nil && !isSettled(rec) {
		if err := host.Put(now); err != nil {
			return err
		}
	}
	p.Egress.SetUp(now)
	if err := failpoint.Hit("daemon.egress.changed"); err != nil {
		return err
	}
	return host.SetUpLater(ctx, now)
}

// Ready implements part.Part.
func (p Part) Ready(rec attachment.Record) { p.Egress.SetUp(rec) }

// Gone implements part.Part.
func (p Part) Gone(rec attachment.Record) { p.Egress.Ended(rec) }

// TakeUp implements part.Part.
func (p Part) TakeUp(ready []attachment.Record) { p.Egress.Restore(ready) }

// Describe implements part.Part.
func (p Part) Describe(snap *source.Snapshot) {
	p.Egress.Describe(snap)
	snap.Detail = source.Details{snap.Detail, clients{p.Store, p.Clients}}
}

// clients returns the ready attachments that are clients of Egresses.
type clients struct {
	store *attachment.Store
	gauge metric.Family
}

// Describe implements source.Detail.
func (clients) Describe(*introspect.Document) {}

// Metrics implements source.Detail: clients by state.
func (c clients) Metrics() (out []prometheus.Metric) {
	count := map[string]int{"set-up": 0, "changing": 0}
	for _, rec := range c.store.Records() {
		switch {
		case rec.State != attachment.Ready || rec.Egress == nil || len(rec.Egress.Egresses) == 0:
		case isSettled(rec):
			count["set-up"]++
		default:
			count["changing"]++
		}
	}
	for state, n := range count {
		out = append(out, c.gauge.Value(float64(n), state))
	}
	return out
}

// Run implements part.Part.
func (p Part) Run(ctx context.Context) error { return p.Egress.Run(ctx) }

// failure returns the error of a failed setup of egress.
func failure(rec attachment.Record, err error) error {
	say := func(code uint, reason string) error {
		return cnierror.Because(err, code, reason, fmt.Sprintf("setting up the pod's egress by %v", rec.EgressNames()))
	}
	if ex, ok := errors.AsType[*source.Exhausted](err); ok {
		return say(types.ErrTryAgainLater, ex.Reason)
	}
	switch {
	case errors.Is(err, tunnel.ErrNoFoU):
		return say(types.ErrTryAgainLater, "no-fou")
	case errors.Is(err, errUnconfigured):
		return say(cnierror.CodeKernel, "no-egress")
	case errors.Is(err, datapath.ErrNoNetns), errors.Is(err, datapath.ErrNotNetns):
		return say(types.ErrInvalidNetNS, "netns-missing")
	}
	return say(cnierror.CodeKernel, "egress")
}
