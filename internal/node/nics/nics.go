package nics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

// Config says what NICs are made of.
type Config struct {
	NodeName   string // of this node's Node
	Kubeconfig string // empty: in the cluster
	Plugger    plug.Plugger
	Switch     Switch   // nil: the node has no Open vSwitch
	Bridges    []string // of Open vSwitch that ports may be plugged into

	FirstIsPort bool // the first interface of pods is a NIC; else it comes from a source of addresses
	// FirstMayBeBranch: it comes from there unless a NIC has its name, which is a VLAN then that
	// the node routes to.
	FirstMayBeBranch bool
	Enforcing        plug.Enforcing // of a first interface that is a branch; that of one that is plugged stays
	// NeedIPv6 turns IPv6 on, unless it is, before such a branch with an address of it is plugged; nil:
	// nothing has to be done for that.
	NeedIPv6 func(context.Context) error

	IgnoreUntold bool // take a pod of whose annotations nothing is told for one with the NICs that there are

	// Recorded tells whether an attachment of the node has a port.
	Recorded func(port string) bool

	Clock    clock.Clock
	Logger   *slog.Logger
	Observer Observer // nil: nobody
}

// Switch is the node's Open vSwitch. *ovsdb.Client is one.
type Switch interface {
	// Bridge asks for a bridge. Errors: plug.ErrNoBridge, plug.ErrUnreachable.
	Bridge(ctx context.Context, name string) (*ovsdb.Bridge, error)
	// Watch tells what others change of what is plugged, until ctx ends.
	Watch(ctx context.Context, changed func([]ovsdb.Change))
}

// NICs are the ports of the node's pods. It implements daemon.NICs. Make it with New.
type NICs struct {
	cfg   Config
	rules rules
	api   *kubeapi.Client
	clock clock.Clock
	log   *slog.Logger

	report  retry.Signal // wakes the goroutine that writes status
	changed retry.Signal // others changed something plugged
	news    retry.Signal // a pod may have to have other NICs

	mu      sync.Mutex // guards all below; memory only, no call is made under it
	book    *book
	next    chan struct{} // closed when the book changes, and replaced
	waiters map[attachment.Key]waiter
	health  health
	touched touched
}

// New checks the configuration. It makes no request yet.
func New(cfg Config) (*NICs, error) {
	rc, err := kubeapi.Config(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	api, err := kubeapi.New(rc)
	if err != nil {
		return nil, err
	}
	return newNICs(cfg, api)
}

func newNICs(cfg Config, api *kubeapi.Client) (*NICs, error) {
	switch {
	case cfg.NodeName == "":
		return nil, errors.New("ports: NodeName: want the name of this node")
	case cfg.Plugger == nil:
		return nil, errors.New("ports: Plugger: want one")
	case cfg.Recorded == nil:
		return nil, errors.New("ports: Recorded: want the records of attachments")
	case cfg.FirstMayBeBranch && cfg.Enforcing != plug.Strict && cfg.Enforcing != plug.Standard:
		return nil, fmt.Errorf("ports: Enforcing: %q: want %s or %s", cfg.Enforcing, plug.Strict, plug.Standard)
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Real{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observer == nil {
		cfg.Observer = silent{}
	}
	return &NICs{
		cfg: cfg, rules: rules{firstIsPort: cfg.FirstIsPort, firstMayBeBranch: cfg.FirstMayBeBranch, enforcing: cfg.Enforcing, ignoreUntold: cfg.IgnoreUntold},
		api: api, clock: cfg.Clock, log: cfg.Logger,
		report: retry.NewSignal(), changed: retry.NewSignal(), news: retry.NewSignal(),
		book: newBook(), next: make(chan struct{}), waiters: map[attachment.Key]waiter{},
	}, nil
}

// Annotations are the keys of pods' annotations that are looked at.
func (n *NICs) Annotations() []string {
	return []string{v1alpha1.AnnotationVPC, v1alpha1.AnnotationNICs}
}

// CheckWish refuses what no pod can have, as far as that is known without waiting. The
// error names the annotation and what was expected.
func (n *NICs) CheckWish(req source.Request) error {
	n.mu.Lock()
	vpc, known := n.book.namespaces[req.Pod.Namespace]
	n.mu.Unlock()
	_, err := n.rules.of(req, vpc, known)
	return err
}

// Run follows what the operator says, and tells it what is plugged, until ctx ends. It
// returns only then.
func (n *NICs) Run(ctx context.Context) error {
	ctx = kubeapi.Quiet(ctx)
	var wg sync.WaitGroup
	n.follow(ctx, &wg)
	if n.cfg.Switch != nil {
		wg.Go(func() { n.watchSwitch(ctx) })
		wg.Go(func() { n.watchHealth(ctx) })
	}
	n.reports(ctx)
	wg.Wait()
	return ctx.Err()
}

// change changes the book, and tells those that wait and who writes reports.
func (n *NICs) change(do func(b *book)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	do(n.book)
	close(n.next)
	n.next = make(chan struct{})
	n.report.Set()
}
