package podegress

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/waiters"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/confirm"
)

// Config is the configuration of Clients. NodeName, Kernel and Port are required.
type Config struct {
	NodeName   string // name of this node's Node
	Namespace  string // Berth's namespace; empty: unknown
	Kubeconfig string // empty: in-cluster configuration
	Kernel     Kernel

	Port            uint16         // UDP port of Foo over UDP, of gateways and clients
	ClusterNetworks []netip.Prefix // networks to which an Egress's default route does not apply

	ProbeInterval time.Duration // interval of a gateway's probes; 0: no probes
	Probe         Probe         // nil: Connect
	Ask           Ask           // nil: AskByHTTP

	Full Full // nil: connection tables are not watched

	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics Metrics // zero: not registered
}

// Clients are the pods of the node that use Egresses. They implement egresspart.Egress.
// Create them with New.
type Clients struct {
	cfg      Config
	api      *kubeapi.Client
	clock    clock.Clock
	log      *slog.Logger
	*tunnels // the kernel
	asker    asker

	report  retry.Signal // wakes the reporter
	changed retry.Signal // the desired egress of running pods may have changed
	probed  retry.Signal // the gateways to probe may have changed

	mu       sync.Mutex // guards the fields below; never held during I/O
	observed *observed
	waiters  *waiters.Set
}

// New checks the configuration. It makes no requests yet.
func New(cfg Config) (*Clients, error) {
	api, err := kubeapi.Open(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return newClients(cfg, api)
}

func newClients(cfg Config, api *kubeapi.Client) (*Clients, error) {
	switch {
	case cfg.NodeName == "":
		return nil, errors.New("podegress: NodeName is empty, expected the name of this node")
	case cfg.Kernel == nil:
		return nil, errors.New("podegress: Kernel is missing")
	case cfg.Port == 0:
		return nil, errors.New("podegress: Port is 0, expected a UDP port")
	}
	cfg.Clock = cmp.Or[clock.Clock](cfg.Clock, clock.Real{})
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(prometheus.NewRegistry()))
	if cfg.Probe == nil {
		cfg.Probe = Connect
	}
	if cfg.Ask == nil {
		cfg.Ask = AskByHTTP
	}
	c := &Clients{
		cfg: cfg, api: api, clock: cfg.Clock, log: cfg.Logger,
		tunnels: &tunnels{kernel: cfg.Kernel, port: cfg.Port, networks: cfg.ClusterNetworks},
		asker:   asker{ask: cfg.Ask, clock: cfg.Clock, muted: map[string]time.Time{}},
		report:  retry.NewSignal(), changed: retry.NewSignal(), probed: retry.NewSignal(),
		observed: newObserved(cfg.Namespace),
	}
	c.waiters = waiters.New(&c.mu)
	return c, nil
}

// Annotations implements egresspart.Egress.
func (c *Clients) Annotations() []string {
	return []string{v1alpha1.AnnotationEgressPrefix, v1alpha1.AnnotationCoilEgressPrefix, v1alpha1.AnnotationEgressGateway}
}

// CheckOptions implements egresspart.Egress.
func (c *Clients) CheckOptions(req attachment.Request) error {
	_, errs := membership.Named(req.Options.Annotations)
	return errs.Err()
}

// DesiredChanged implements egresspart.Egress.
func (c *Clients) DesiredChanged() <-chan struct{} { return c.changed }

// Desired implements egresspart.Egress.
func (c *Clients) Desired(rec attachment.Record) (egress *attachment.Egress, differ bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.observed.desired(rec)
}

// Run watches the API server, reports and probes until ctx ends.
func (c *Clients) Run(ctx context.Context) error {
	ctx = kubeapi.Quiet(ctx)
	var wg sync.WaitGroup
	mirror, reporter := c.mirror(), c.reporter()
	wg.Go(func() { mirror.Run(ctx) })
	wg.Go(func() { confirm.Await(ctx, c.clock, c.stopWaiting) })
	if c.cfg.ProbeInterval > 0 {
		wg.Go(func() { newProber(c).run(ctx) })
	}
	if c.cfg.Full != nil {
		wg.Go(func() { tracker{c, map[attachment.Key]egressgateway.Tracked{}}.run(ctx) })
	}
	reporter.Run(ctx)
	wg.Wait()
	return ctx.Err()
}

// stopWaiting lets pods start even if it is unknown whether an Egress selects them.
func (c *Clients) stopWaiting() {
	c.change(func(o *observed) { o.late, o.effects.wakeAll = true, true })
	if sync := c.observed.sync; !sync.Listed(watched...) {
		c.log.Warn("the API server has not listed the Egresses in time; pods that name none start, and become clients later", "err", sync.Err())
	}
}

// change changes the observed state, and triggers the effects.
func (c *Clients) change(do func(o *observed)) {
	c.mu.Lock()
	do(c.observed)
	e, unreported := c.observed.effects.take(), len(c.observed.unreported) > 0
	c.waiters.Wake(e.wakes)
	c.mu.Unlock()
	if e.changed {
		c.changed.Set()
	}
	if unreported {
		c.report.Set()
	}
	for _, err := range e.invalid {
		c.log.Error("invalid fields of an Egress are ignored", "err", err)
	}
}

// Acquire implements egresspart.Egress.
func (c *Clients) Acquire(ctx context.Context, req attachment.Request) (*attachment.Egress, error) {
	var d decision
	started, waited := c.clock.Now(), false
	err := c.waiters.Until(ctx, req, func() *source.Exhausted {
		d = c.observed.decide(req)
		waited = waited || d.wait != nil
		return d.wait
	})
	switch {
	case err != nil:
		return nil, err
	case waited:
		c.cfg.Metrics.Waited(c.clock.Now().Sub(started))
	}
	if d.err != nil {
		return nil, d.err
	}
	return d.egress, nil
}

// Why implements egresspart.Egress.
func (c *Clients) Why(key attachment.Key) *source.Exhausted { return c.waiters.Why(key) }

// Restore implements egresspart.Egress.
func (c *Clients) Restore(ready []attachment.Record) {
	c.change(func(o *observed) {
		for _, rec := range ready {
			if mayBeClient(rec) {
				o.setUp(rec)
			}
		}
	})
}

// Announce implements egresspart.Egress.
func (c *Clients) Announce(rec attachment.Record) {
	if c.cfg.Kernel.Supported() == nil {
		c.SetUp(rec)
	}
}

// SetUp implements egresspart.Egress.
func (c *Clients) SetUp(rec attachment.Record) {
	if mayBeClient(rec) {
		c.change(func(o *observed) { o.setUp(rec) })
	}
}

// Failed implements egresspart.Egress. A failed ADD is reported by an Event on its pod instead.
func (c *Clients) Failed(rec attachment.Record, err error) {
	if mayBeClient(rec) && rec.State == attachment.Ready {
		c.change(func(o *observed) { o.fail(rec, err) })
	}
}

// Ended implements egresspart.Egress.
func (c *Clients) Ended(rec attachment.Record) {
	if mayBeClient(rec) {
		c.change(func(o *observed) { o.end(rec) })
	}
}

// mayBeClient reports whether a pod may use Egresses through an attachment.
func mayBeClient(rec attachment.Record) bool {
	return rec.Key.IfName == firstInterface && rec.Pod.Name != ""
}

// Await implements egresspart.Egress.
func (c *Clients) Await(ctx context.Context, rec attachment.Record) error {
	list := c.asker.gatewaysOf(rec)
	if !mayBeClient(rec) || len(list) == 0 {
		return nil
	}
	started := c.clock.Now()
	err := c.asker.await(ctx, list, rec)
	c.cfg.Metrics.Served(c.clock.Now().Sub(started), err)
	return err
}
