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
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Reported == nil {
		cfg.Reported = func(string, time.Duration) {}
	}
	s := &supplier{
		cfg: cfg, api: api, clock: cfg.Clock, log: cfg.Logger.With("nodenetwork", cfg.NodeName),
		changed: retry.NewSignal(), kicked: retry.NewSignal(),
	}
	s.mirror = s.newMirror()
	source, err := enisource.NewSupplied(enisource.Options{
		InstanceID: cfg.InstanceID, Datapath: cfg.Datapath, Cooling: cfg.Cooling,
		Store: cfg.Store, Clock: cfg.Clock, Logger: cfg.Logger, Tell: cfg.Tell,
	}, s)
	if err != nil {
		return nil, err
	}
	s.allocator = source
	return source, nil
}

// supplier is an enisource.Supplier.
type supplier struct {
	cfg       Config
	api       *kubeapi.Client
	mirror    *kubeapi.Mirror
	allocator allocator
	clock     clock.Clock
	log       *slog.Logger

	changed retry.Signal // wakes the loop: the object, or whether the API answers
	kicked  retry.Signal // likewise: pods came or went

	mu         sync.Mutex            // guards what follows, memory only
	object     *v1alpha1.NodeNetwork // as last seen; nil: none. Never changed in place
	createErr  error                 // why the object could not be made
	bad        []string              // entries of the object that make no sense
	reportedAt time.Time             // when the last report was taken

	// What follows belongs to the loop.
	logged    logged
	handshake handshake
	creation  creation
	pending   pending
}

var _ enisource.Supplier = (*supplier)(nil)

// logged is what was logged already.
type logged struct {
	object string // why addresses are not served from it
}

// Run implements enisource.Supplier.
func (s *supplier) Run(ctx context.Context) error {
	ctx = kubeapi.Quiet(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.follow(ctx) })
	s.pending.since = s.clock.Now() // a first report is due
	for ctx.Err() == nil {
		var due <-chan time.Time
		if at := s.pass(ctx); !at.IsZero() {
			due = s.clock.After(at.Sub(s.clock.Now()))
		}
		select {
		case <-ctx.Done():
		case <-s.changed:
			s.objectChanged(s.clock.Now())
		case <-s.kicked:
			s.pending.note(s.clock.Now())
		case <-due:
		}
	}
	wg.Wait()
	return ctx.Err()
}

// objectChanged looks whether a report is due because the object changed, and does not
// let one wait for long that an outage delayed.
func (s *supplier) objectChanged(now time.Time) {
	s.pending.note(now)
	answers := s.mirror.Sync.Err() == nil
	for _, b := range []*retry.Backoff{&s.pending.retry, &s.creation.retry} {
		if soon := now.Add(retry.Jitter(coalesce)); answers && b.Until.After(soon) {
			b.Until = soon
		}
	}
}

// pass does what can be done now, and tells when to come back at the latest;
// zero: when woken.
func (s *supplier) pass(ctx context.Context) time.Time {
	s.mu.Lock()
	o, listed := s.object, s.mirror.Sync.Listed(resource)
	s.mu.Unlock()
	switch {
	case !listed:
		if s.mirror.Sync.Err() != nil {
			s.allocator.ServeUnconfirmed() // as when EC2 does not answer in node mode
		}
		return time.Time{}
	case o == nil || o.Spec.InstanceID != s.cfg.InstanceID:
		s.allocator.ServeUnconfirmed()
		return s.ensureObject(ctx, o)
	}
	s.objectFound()
	if !reported(o) {
		s.allocator.ServeUnconfirmed()
		s.logOnce(&s.logged.object, "the operator has not reported on this node yet")
		return s.report(ctx, o, nil, nil)
	}
	s.logOnce(&s.logged.object, "")
	return s.reconcile(ctx, o)
}

// logOnce logs a state when it changes.
func (s *supplier) logOnce(last *string, now string) {
	if *last != now && now != "" {
		s.log.Warn("addresses are not served from the object", "because", now)
	}
	*last = now
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
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.object != nil && s.object.EffectiveENI().Prefixes()
}

// Template implements enisource.Supplier.
func (s *supplier) Template() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.object == nil {
		return ""
	}
	return s.object.Status.ENI.Template
}
