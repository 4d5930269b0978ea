package nodenetworksupplier

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
)

var _ = failpoint.Register(
	"nodenetwork.create.before", "nodenetwork.create.after", "nodenetwork.replace.deleted",
	"nodenetwork.withdraw.before", "nodenetwork.withdraw.recorded",
	"nodenetwork.report.before", "nodenetwork.report.after",
	"nodenetwork.restore.confirmed", "nodenetwork.restore.after",
)

// Config is what the source needs in operator mode. NodeName, InstanceID and
// Datapath are required.
type Config struct {
	NodeName   string // of the Node, and so of the NodeNetwork
	Kubeconfig string // a file; empty: what the cluster gives to a pod
	// Spec is what the object is created with; nil: it is not created, but
	// waited for.
	Spec *v1alpha1.NodeNetworkSpec

	InstanceID string // of this instance; from the metadata service
	Datapath   enisource.Datapath
	Cooling    time.Duration
	Store      enisource.InventoryStore // nil: none
	Clock      clock.Clock              // nil: the machine's
	Logger     *slog.Logger             // nil: silent

	Tell func(podevents.News) // tells pods that they are cut off; nil: nobody does

	// Reported is told of every report on the node's addresses, for metrics: result
	// is success, conflict (somebody else wrote to the object meanwhile; another
	// follows) or error. nil: nobody is.
	Reported func(result string, took time.Duration)
}

// allocator is the owner of the addresses.
type allocator interface {
	Offer(inv eni.Inventory, back []netip.Prefix) (withdrawn []netip.Prefix, err error)
	ServeUnconfirmed()
	Uses() (uses []enisource.Use, waiting int)
	Room() (free, waiting int)
	MissingLinks() []string
}

// New returns an address source that is supplied by the operator, through the
// node's NodeNetwork. It makes no request yet.
func New(cfg Config) (*enisource.Source, error) {
	if cfg.NodeName == "" {
		return nil, errors.New("NodeNetwork source: NodeName: want the name of this node")
	}
	rc, err := kubeapi.Config(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return newSource(cfg, rc)
}

func newSource(cfg Config, rc *rest.Config) (*enisource.Source, error) {
	api, err := kubeapi.New(rc)
	if err != nil {
		return nil, err
	}
	cfg.Clock = cmp.Or[clock.Clock](cfg.Clock, clock.Real{})
	unnamed := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Logger = unnamed.With("nodenetwork", cfg.NodeName)
	if cfg.Reported == nil {
		cfg.Reported = func(string, time.Duration) {}
	}
	s := newSupplier(&cfg, api)
	src, err := enisource.NewSupplied(enisource.Options{
		InstanceID: cfg.InstanceID, Datapath: cfg.Datapath, Cooling: cfg.Cooling,
		Store: cfg.Store, Clock: cfg.Clock, Logger: unnamed, Tell: cfg.Tell,
	}, s)
	if err != nil {
		return nil, err
	}
	s.serve(src)
	return src, nil
}

// supplier is an enisource.Supplier. One loop, Run, does everything; all but observed
// belongs to it.
type supplier struct {
	cfg       *Config
	allocator allocator
	observed  *observed
	kicked    retry.Signal // wakes the loop: pods came or went
	unserved  *stateLog    // why addresses are not served from the object
	creator   creator
	reports   reports
	handshake handshake
}

var _ enisource.Supplier = (*supplier)(nil)

func newSupplier(cfg *Config, api *kubeapi.Client) *supplier {
	o, log := newObserved(cfg, api), &stateLog{log: cfg.Logger}
	s := &supplier{cfg: cfg, observed: o, kicked: retry.NewSignal(), unserved: log}
	s.creator = creator{cfg: cfg, api: api, observed: o, unserved: log}
	s.reports = reports{cfg: cfg, api: api, observed: o}
	s.handshake = handshake{cfg: cfg, observed: o, reports: &s.reports}
	return s
}

// serve sets the owner of the addresses; it is called before Run.
func (s *supplier) serve(a allocator) {
	s.allocator, s.reports.allocator, s.handshake.allocator = a, a, a
}

// stateLog logs a state when it changes.
type stateLog struct {
	log  *slog.Logger
	last string
}

// set takes why addresses are not served from the object; empty: they are.
func (l *stateLog) set(because string) {
	if l.last != because && because != "" {
		l.log.Warn("addresses are not served from the object", "because", because)
	}
	l.last = because
}

// Run implements enisource.Supplier.
func (s *supplier) Run(ctx context.Context) error {
	ctx = kubeapi.Quiet(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.observed.follow(ctx) })
	s.reports.pending.since = s.cfg.Clock.Now() // a first report is due
	for ctx.Err() == nil {
		var due <-chan time.Time
		if at := s.pass(ctx); !at.IsZero() {
			due = s.cfg.Clock.After(at.Sub(s.cfg.Clock.Now()))
		}
		select {
		case <-ctx.Done():
		case <-s.observed.changed:
			s.objectChanged(s.cfg.Clock.Now())
		case <-s.kicked:
			s.reports.pending.note(s.cfg.Clock.Now())
		case <-due:
		}
	}
	wg.Wait()
	return ctx.Err()
}

// objectChanged looks whether a report is due because the object changed, and does not
// let one wait for long that an outage delayed.
func (s *supplier) objectChanged(now time.Time) {
	s.reports.pending.note(now)
	answers := s.observed.mirror.Sync.Err() == nil
	for _, b := range []*retry.Backoff{&s.reports.pending.retry, &s.creator.retry} {
		if soon := now.Add(retry.Jitter(coalesce)); answers && b.Until.After(soon) {
			b.Until = soon
		}
	}
}

// pass does what can be done now, and tells when to come back at the latest;
// zero: when woken.
func (s *supplier) pass(ctx context.Context) time.Time {
	o, listed := s.observed.latest()
	switch {
	case !listed:
		if s.observed.mirror.Sync.Err() != nil {
			s.allocator.ServeUnconfirmed() // as when EC2 does not answer in node mode
		}
		return time.Time{}
	case o == nil || o.Spec.InstanceID != s.cfg.InstanceID:
		s.allocator.ServeUnconfirmed()
		return s.creator.ensure(ctx, o)
	}
	s.creator.found()
	if !reported(o) {
		s.allocator.ServeUnconfirmed()
		s.unserved.set("the operator has not reported on this node yet")
		return s.reports.send(ctx, o, nil, nil)
	}
	s.unserved.set("")
	return s.handshake.reconcile(ctx, o)
}

// Seed implements enisource.Supplier: what was withdrawn before a restart stays
// so until the API server says otherwise.
func (s *supplier) Seed(inv eni.Inventory) {
	for _, r := range inv.Releasing {
		s.handshake.withheld = append(s.handshake.withheld, r.Prefix)
	}
}

// Kick implements enisource.Supplier.
func (s *supplier) Kick() { s.kicked.Set() }

// OtherGroups implements enisource.Supplier: the operator compares them with its settings.
func (s *supplier) OtherGroups() (enis []string, followed, compared bool) { return nil, false, false }

// PrefixDelegation implements enisource.Supplier.
func (s *supplier) PrefixDelegation() bool {
	o, _ := s.observed.latest()
	return o != nil && o.EffectiveENI().Prefixes()
}

// Template implements enisource.Supplier.
func (s *supplier) Template() string {
	o, _ := s.observed.latest()
	if o == nil {
		return ""
	}
	return o.Status.ENI.Template
}

// Why implements enisource.Supplier.
func (s *supplier) Why(bool) *source.Exhausted { return s.observed.why() }

// LastError implements enisource.Supplier.
func (s *supplier) LastError() string { return s.observed.lastError() }
