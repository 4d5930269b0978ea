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

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/addressqueue"
	"github.com/berthnet/berth/internal/source/confirm"
)

var _ = failpoint.Register(
	"pool.request.before", "pool.request.after", "pool.done.before", "pool.done.after",
	"pool.return.before", "pool.return.after", "pool.free.before", "pool.free.after",
	"pool.save.before", "pool.save.after", "pool.program.before", "pool.program.after",
)

// Datapath routes the traffic of blocks. It is called by one goroutine.
type Datapath interface {
	// SetBlocks sets the node's routes to those of these blocks. It is idempotent, and is called again after an
	// error. With a *datapath.BlocksError all blocks that the error does not name are routed.
	SetBlocks(ctx context.Context, blocks []datapath.Block) error
}

// Config is the configuration of a Source. NodeName and Datapath are required.
type Config struct {
	NodeName   string // of the Node
	Kubeconfig string // a file; empty: what the cluster gives to a pod
	Datapath   Datapath
	StateDir   string // for the file; empty: none

	Cooling      time.Duration // how long released addresses cool; 0: not at all
	Watermark    int           // percentage of a block to keep free, 0 to 100
	ReleaseDelay time.Duration // how long a block is empty before it is returned
	// ClaimInterval is how often blocks are claimed while the Node is missing;
	// 0: 20 s.
	ClaimInterval time.Duration
	// IgnoreUntold: pods whose annotations the runtime does not pass have none.
	IgnoreUntold bool

	// Conflict is called for a pod whose address something else has too. It must not block, and may call the source;
	// nil: nothing is called.
	Conflict func(pod attachment.Pod, ifName, message string)

	Clock    clock.Clock  // nil: the machine's
	Logger   *slog.Logger // nil: silent
	Observer Observer     // nil: none
}

// Observer counts what the source does.
type Observer interface {
	// Asked is called after each request to the API server: what is a verb and
	// a kind in lower case, such as create-request; result is success or error.
	Asked(what, result string, took time.Duration)
	// Supplied is called when a block that was requested has arrived.
	Supplied(pool string, took time.Duration)
}

type silent struct{}

func (silent) Asked(string, string, time.Duration) {}
func (silent) Supplied(string, time.Duration)      {}

// Source is a source.Source. Make it with New.
type Source struct {
	cfg       Config
	api       *kubeapi.Client
	log       *slog.Logger
	state     *guarded
	committer *committer
}

// guarded is the holdings with their lock, and the signals of the goroutines that act on them.
type guarded struct {
	clock  clock.Clock
	wake   retry.Signal // wakes the requester: something changed
	commit retry.Signal // wakes the committer: what the file and the data path are to have may have changed

	mu       sync.Mutex // guards all below, and is taken by with alone; memory only: what calls others is an effect
	holdings *holdings  // never replaced: what has kept the pointer is called by with or change
	effects  []func()   // of the present change; called when the lock is free
}

func newGuarded(n *holdings, clk clock.Clock) *guarded {
	return &guarded{clock: clk, wake: retry.NewSignal(), commit: retry.NewSignal(), holdings: n}
}

// change changes the holdings, hands out addresses that become free by that, and wakes the requester.
func (g *guarded) change(do func(n *holdings, now time.Time)) {
	g.with(func(n *holdings, now time.Time) {
		do(n, now)
		n.serveAll(now)
		g.wake.Set()
	})
}

// with calls do with the lock held, and then its effects without.
func (g *guarded) with(do func(n *holdings, now time.Time)) {
	for _, effect := range g.locked(do) {
		effect()
	}
}

// locked calls do with the lock held, and returns its effects.
func (g *guarded) locked(do func(n *holdings, now time.Time)) (effects []func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do(g.holdings, g.clock.Now())
	effects, g.effects = g.effects, nil
	return effects
}

// then has an effect follow when the lock is free. It is called with the lock held, by what with and change call.
func (g *guarded) then(effect func()) { g.effects = append(g.effects, effect) }

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
		return nil, fmt.Errorf("pool source: Watermark %d: want a percentage", cfg.Watermark)
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
	state := newGuarded(newHoldings(policy{cooling: cfg.Cooling, watermark: cfg.Watermark, releaseDelay: cfg.ReleaseDelay, nodeName: cfg.NodeName, ignoreUntold: cfg.IgnoreUntold}), cfg.Clock)
	s := &Source{
		cfg: cfg, api: api, log: cfg.Logger, state: state,
		committer: &committer{state: state, nodeName: cfg.NodeName, dir: cfg.StateDir, datapath: cfg.Datapath, log: cfg.Logger},
	}
	s.committer.load()
	return s, nil
}

// Run implements source.Source.
func (s *Source) Run(ctx context.Context) error {
	ctx = kubeapi.Quiet(ctx)
	mirror := s.mirror()
	requester := newRequester(s.state, s.api, s.cfg)
	claimer := &claimer{state: s.state, api: s.api, interval: s.cfg.ClaimInterval, observer: s.cfg.Observer, log: s.log}
	var wg sync.WaitGroup
	wg.Go(func() { mirror.Run(ctx) })
	wg.Go(func() { s.committer.run(ctx) })
	wg.Go(func() { claimer.run(ctx) })
	wg.Go(func() { confirm.Await(ctx, s.cfg.Clock, s.serveUnconfirmed) })
	requester.run(ctx)
	wg.Wait()
	return ctx.Err()
}

// serveUnconfirmed lets the blocks of the file be served: the API server has had its time to correct them.
func (s *Source) serveUnconfirmed() {
	s.state.change(func(n *holdings, _ time.Time) { n.unconfirmed = false })
	s.state.commit.Set()
}

// Annotations implements source.Source.
func (s *Source) Annotations() []string { return []string{v1alpha1.AnnotationPool} }

// CheckOptions implements source.Source.
func (s *Source) CheckOptions(w source.PodOptions) error {
	if err := source.CheckPoolName("the pod's annotation "+v1alpha1.AnnotationPool, w.Annotations[v1alpha1.AnnotationPool]); err != nil {
		return err
	}
	return source.CheckNetworkPool(w)
}

// Kick implements source.Source.
func (s *Source) Kick() {
	s.state.with(func(n *holdings, _ time.Time) {
		if n.blocks.uncommitted() {
			s.state.commit.Set()
		}
	})
}

// Restore implements source.Source.
func (s *Source) Restore(req source.Request, lease source.Lease) (err error) {
	s.state.with(func(n *holdings, now time.Time) { err = n.restore(req, lease, now) })
	if err != nil {
		return fmt.Errorf("restore the lease of %v: %w", req.Key, err)
	}
	return nil
}

// RestoreCooling implements source.Source. An address of a dual-stack block
// cools together with the other one of its pair.
func (s *Source) RestoreCooling(addr netip.Addr, since time.Time) {
	s.state.with(func(n *holdings, now time.Time) { n.restoreCooling(addr, since, now) })
}

// Withhold implements source.Source. An address of a dual-stack block is withheld together
// with the other one of its pair.
func (s *Source) Withhold(addrs []netip.Addr) (kept []netip.Addr) {
	s.state.with(func(n *holdings, now time.Time) {
		changed := !slices.Equal(n.nodeHas, addrs)
		n.nodeHas = slices.Clone(addrs)
		for _, h := range n.blocks.byName {
			for _, first := range n.withhold(h) {
				kept = append(kept, h.among(first, n.nodeHas)...)
			}
		}
		if changed {
			n.serveAll(now)
			s.state.wake.Set()
		}
	})
	slices.SortFunc(kept, netip.Addr.Compare)
	return kept
}

// NodeAddresses implements source.Source.
func (s *Source) NodeAddresses() (out []netip.Addr) {
	s.state.with(func(n *holdings, _ time.Time) {
		for _, h := range n.blocks.byName {
			for _, w := range h.withheld {
				if w.owner == n.policy.selfOwner() && w.IsSingleIP() {
					out = append(out, w.Addr())
				}
			}
		}
	})
	return out
}

// Acquire implements source.Source.
func (s *Source) Acquire(ctx context.Context, req source.Request) (source.Lease, error) {
	n, now := s.state.holdings, s.cfg.Clock.Now
	return addressqueue.Acquirer{
		With:    func(do func()) { s.state.with(func(*holdings, time.Time) { do() }) },
		Held:    func(key attachment.Key) (source.Lease, bool) { h, ok := n.leases.byKey[key]; return h.Lease, ok },
		Admit:   func(req source.Request) *addressqueue.Waiter { return n.admit(req, now()) },
		Why:     func(w *addressqueue.Waiter) *source.Exhausted { return n.at(now()).waits(w) },
		Changed: s.state.wake.Set,
	}.Acquire(ctx, req)
}

// Why implements source.Source.
func (s *Source) Why(key attachment.Key) (why *source.Exhausted) {
	s.state.with(func(n *holdings, now time.Time) {
		if w := n.pools.waiter(key); w != nil {
			why = n.at(now).waits(w)
		}
	})
	return why
}

// Release implements source.Source.
func (s *Source) Release(key attachment.Key) {
	s.state.with(func(n *holdings, now time.Time) {
		if n.release(key, now) {
			s.state.wake.Set()
		}
	})
}

// Cancel implements source.Source.
func (s *Source) Cancel(key attachment.Key) {
	s.state.with(func(n *holdings, now time.Time) {
		if n.cancel(key, now) {
			s.state.wake.Set()
		}
	})
}

// CoolingPeriod implements source.Source.
func (s *Source) CoolingPeriod() time.Duration { return s.cfg.Cooling }

// Ready implements source.Source. A node of whose pools none keeps free addresses gets its first block with its first
// pod, and is ready without one.
func (s *Source) Ready() (err error) {
	s.state.with(func(n *holdings, now time.Time) { err = n.at(now).ready() })
	return err
}
