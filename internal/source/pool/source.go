package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/confirm"
	"github.com/berthnet/berth/internal/source/waiting"
)

var _ = failpoint.Register(
	"pool.request.before", "pool.request.after", "pool.done.before", "pool.done.after",
	"pool.return.before", "pool.return.after", "pool.free.before", "pool.free.after",
	"pool.save.before", "pool.save.after", "pool.program.before", "pool.program.after",
)

// Datapath makes the node's kernel carry traffic of blocks. Calls come from one
// goroutine.
type Datapath interface {
	// SetBlocks makes the node's routes those of these blocks and no others. It
	// is idempotent. With an error it is called again; with a *datapath.BlocksError
	// the blocks that it does not name are routed all the same.
	SetBlocks(ctx context.Context, blocks []datapath.Block) error
}

// Config is what the source needs. NodeName and Datapath are required.
type Config struct {
	NodeName   string // of the Node
	Kubeconfig string // a file; empty: what the cluster gives to a pod
	Datapath   Datapath
	StateDir   string // for the file; empty: none

	Cooling      time.Duration // how long released addresses cool; 0: not at all
	Watermark    int           // percent of a block to have free, 0 to 100
	ReleaseDelay time.Duration // how long a block is empty before it goes back
	// ClaimInterval is how often blocks are claimed while the Node is missing;
	// 0: 20 s.
	ClaimInterval time.Duration
	// IgnoreUntold takes pods whose annotations the runtime does not tell for ones
	// without.
	IgnoreUntold bool

	// Conflict is told of a pod whose address something else has too. It must be
	// quick; nil: nobody is told.
	Conflict func(pod attachment.Pod, ifName, message string)

	Clock    clock.Clock  // nil: the machine's
	Logger   *slog.Logger // nil: silent
	Observer Observer     // nil: none
}

// Observer is told what metrics count.
type Observer interface {
	// Asked is called after each request to the API server: what is a verb and
	// a kind in lower case, such as create-request; result is success or error.
	Asked(what, result string, took time.Duration)
	// Supplied is called when a block that was asked for has come.
	Supplied(pool string, took time.Duration)
}

type silent struct{}

func (silent) Asked(string, string, time.Duration) {}
func (silent) Supplied(string, time.Duration)      {}

// Source is a source.Source. Make it with New.
type Source struct {
	cfg   Config
	api   *kubeapi.Client
	clock clock.Clock
	log   *slog.Logger

	wake   retry.Signal // wakes the loop: something changed
	commit retry.Signal // wakes the goroutine that keeps the file and the data path

	mu     sync.Mutex // guards the ledger; memory only, no call is made under it
	ledger *ledger
}

var _ source.Source = (*Source)(nil)

// New checks the configuration, loads the file if it is of this node, and
// returns a source that is ready for Restore. It makes no request yet.
func New(cfg Config) (*Source, error) {
	rc, err := kubeapi.Config(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	api, err := kubeapi.New(rc)
	if err != nil {
		return nil, err
	}
	return newSource(cfg, api)
}

func newSource(cfg Config, api *kubeapi.Client) (*Source, error) {
	switch {
	case cfg.NodeName == "":
		return nil, errors.New("pool source: NodeName: want the name of this node")
	case cfg.Datapath == nil:
		return nil, errors.New("pool source: Datapath: want one")
	case cfg.Cooling < 0:
		return nil, fmt.Errorf("pool source: Cooling %v: want a time from 0", cfg.Cooling)
	case cfg.Watermark < 0 || cfg.Watermark > 100:
		return nil, fmt.Errorf("pool source: Watermark %d: want percents", cfg.Watermark)
	}
	if cfg.ClaimInterval <= 0 {
		cfg.ClaimInterval = claimInterval
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
	s := &Source{
		cfg: cfg, api: api, clock: cfg.Clock, log: cfg.Logger,
		wake: retry.NewSignal(), commit: retry.NewSignal(),
		ledger: newLedger(policy{cooling: cfg.Cooling, watermark: cfg.Watermark, releaseDelay: cfg.ReleaseDelay, nodeName: cfg.NodeName, ignoreUntold: cfg.IgnoreUntold}),
	}
	s.load()
	return s, nil
}

// Run implements source.Source.
func (s *Source) Run(ctx context.Context) error {
	ctx = kubeapi.Quiet(ctx)
	var wg sync.WaitGroup
	s.follow(ctx, &wg)
	wg.Go(func() { s.commitBlocks(ctx) })
	wg.Go(func() { s.renewBlocks(ctx) })
	wg.Go(func() { confirm.Await(ctx, s.clock, s.serveUnconfirmed) })
	s.loop(ctx)
	wg.Wait()
	return ctx.Err()
}

// Kick implements source.Source.
func (s *Source) Kick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger.uncommitted() {
		s.commit.Set()
	}
}

// change changes the ledger, hands out what that makes free, and wakes whoever
// may have something to do.
func (s *Source) change(do func(l *ledger, now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	do(s.ledger, now)
	s.ledger.serveAll(now)
	s.wake.Set()
}

// Restore implements source.Source.
func (s *Source) Restore(req source.Request, lease source.Lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ledger.restore(req, lease, s.clock.Now()); err != nil {
		return fmt.Errorf("restore the lease of %v: %w", req.Key, err)
	}
	return nil
}

// RestoreCooling implements source.Source. An address of a dual-stack block
// cools together with the other one of its pair.
func (s *Source) RestoreCooling(addr netip.Addr, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.restoreCooling(addr, since, s.clock.Now())
}

// Withhold implements source.Source. An address of a dual-stack block is withheld together
// with the other one of its pair.
func (s *Source) Withhold(addrs []netip.Addr) (kept []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.ledger
	changed := !slices.Equal(l.nodeHas, addrs)
	l.nodeHas = slices.Clone(addrs)
	for _, h := range l.blocks {
		for _, first := range l.withhold(h) {
			kept = append(kept, l.ofNode(h, first)...)
		}
	}
	slices.SortFunc(kept, netip.Addr.Compare)
	if changed {
		l.serveAll(s.clock.Now())
		s.wake.Set()
	}
	return kept
}

// NodeAddresses implements source.Source.
func (s *Source) NodeAddresses() (out []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.ledger.blocks {
		for _, w := range h.withheld {
			if w.owner == s.ledger.selfOwner() && w.IsSingleIP() {
				out = append(out, w.Addr())
			}
		}
	}
	return out
}

// Acquire implements source.Source.
func (s *Source) Acquire(ctx context.Context, req source.Request) (source.Lease, error) {
	l := s.ledger
	return waiting.Desk{
		Lock:    &s.mu,
		Held:    func(key attachment.Key) (source.Lease, bool) { h, ok := l.leases[key]; return h.Lease, ok },
		Admit:   func(req source.Request) *waiting.Waiter { return l.admit(req, s.clock.Now()) },
		Why:     func(w *waiting.Waiter) *source.Exhausted { return l.whyWaits(w, s.clock.Now()) },
		Changed: s.wake.Set,
	}.Acquire(ctx, req)
}

// Why implements source.Source.
func (s *Source) Why(key attachment.Key) *source.Exhausted {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.ledger.waiter(key); w != nil {
		return s.ledger.whyWaits(w, s.clock.Now())
	}
	return nil
}

// Release implements source.Source.
func (s *Source) Release(key attachment.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger.release(key, s.clock.Now()) {
		s.wake.Set()
	}
}

// Cancel implements source.Source.
func (s *Source) Cancel(key attachment.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger.cancel(key, s.clock.Now()) {
		s.wake.Set()
	}
}

// CoolingPeriod implements source.Source.
func (s *Source) CoolingPeriod() time.Duration { return s.cfg.Cooling }

// Ready implements source.Source. A node whose pools keep nothing warm here gets
// its first block with its first pod, so that it must not wait for one to be
// ready for pods.
func (s *Source) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.ready(s.clock.Now())
}
