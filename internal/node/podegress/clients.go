package podegress

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/confirm"
)

// Config says what egress is made of.
type Config struct {
	NodeName   string // of this node's Node
	Namespace  string // Berth's own; empty: it is not known
	Kubeconfig string // empty: in the cluster
	Kernel     Kernel

	Port            uint16         // UDP port of Foo over UDP, of gateways and clients
	ClusterNetworks []netip.Prefix // what keeps its way although an Egress's default route has it

	ProbeInterval time.Duration // between two questions to a gateway whether it answers; 0: none is asked
	Probe         Probe         // nil: by TCP
	Ask           Ask           // nil: by HTTP

	Full Full // nil: nobody is told

	Clock    clock.Clock
	Logger   *slog.Logger
	Observer Observer // nil: nobody
}

// Clients are the pods of the node that reach the outside by gateways. They implement
// daemon.Egress. Make them with New.
type Clients struct {
	cfg   Config
	api   *kubeapi.Client
	clock clock.Clock
	log   *slog.Logger

	report retry.Signal // wakes the goroutine that has status written
	news   retry.Signal // a pod may have to have another egress
	probed retry.Signal // the gateways to probe may be others

	mu              sync.Mutex // guards all below; memory only, no call is made under it
	book            *book
	clusterNetworks []netip.Prefix
}

// New checks the configuration. It makes no request yet.
func New(cfg Config) (*Clients, error) {
	rc, err := kubeapi.Config(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	api, err := kubeapi.New(rc)
	if err != nil {
		return nil, err
	}
	return newClients(cfg, api)
}

func newClients(cfg Config, api *kubeapi.Client) (*Clients, error) {
	switch {
	case cfg.NodeName == "":
		return nil, errors.New("egress: NodeName: want the name of this node")
	case cfg.Kernel == nil:
		return nil, errors.New("egress: Kernel: want one")
	case cfg.Port == 0:
		return nil, errors.New("egress: Port: want a UDP port")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Real{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	if cfg.Probe == nil {
		cfg.Probe = Connect
	}
	if cfg.Ask == nil {
		cfg.Ask = AskByHTTP
	}
	return &Clients{
		cfg: cfg, api: api, clock: cfg.Clock, log: cfg.Logger,
		report: retry.NewSignal(), news: retry.NewSignal(), probed: retry.NewSignal(),
		book: newBook(cfg.Namespace), clusterNetworks: cfg.ClusterNetworks,
	}, nil
}

// Annotations implements daemon.Egress: all that name Egresses, and the one of gateways.
func (c *Clients) Annotations() []string {
	return []string{v1alpha1.AnnotationEgressPrefix, v1alpha1.AnnotationEgressGateway}
}

// CheckWish implements daemon.Egress.
func (c *Clients) CheckWish(req source.Request) error {
	_, errs := membership.Named(req.Wish.Annotations)
	return errs.Err()
}

// News implements daemon.Egress.
func (c *Clients) News() <-chan struct{} { return c.news }

// Wanted implements daemon.Egress.
func (c *Clients) Wanted(rec attachment.Record) (egress *attachment.Egress, differ bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.book.wanted(rec)
}

// Run implements daemon.Egress.
func (c *Clients) Run(ctx context.Context) error {
	ctx = kubeapi.Quiet(ctx)
	var wg sync.WaitGroup
	c.follow(ctx, &wg)
	wg.Go(func() { confirm.Await(ctx, c.clock, c.hadItsTime) })
	if c.cfg.ProbeInterval > 0 {
		wg.Go(func() { c.probe(ctx) })
	}
	if c.cfg.Full != nil {
		wg.Go(func() { c.track(ctx) })
	}
	c.reports(ctx)
	wg.Wait()
	return ctx.Err()
}

// hadItsTime lets pods start of which it is not known whether an Egress selects them.
func (c *Clients) hadItsTime() {
	c.change(func(b *book) {
		b.late = true
		b.wakeAll()
	})
	c.mu.Lock()
	listed, err := c.book.isListed(), c.book.anyTrouble()
	c.mu.Unlock()
	if !listed {
		c.log.Warn("the API server has not told yet which Egresses there are; pods that name none start, and are made clients later", "error", err)
	}
}

// change changes the book, and tells who has to do something about it.
func (c *Clients) change(do func(b *book)) {
	c.mu.Lock()
	do(c.book)
	news, unsaid := c.book.news, len(c.book.unsaid) > 0
	c.book.news = false
	c.mu.Unlock()
	if news {
		c.news.Set()
	}
	if unsaid {
		c.report.Set()
	}
}
