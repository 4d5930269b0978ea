package berthegress

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/retry"
)

// Kernel is the gateway in the kernel: gateway.Kernel.
type Kernel interface {
	Apply(ctx context.Context, s egressgateway.Setup) error
	Standing(s egressgateway.Setup) (bool, error)
	Forget()
	OpenConnections() (int, error)

	Counters() (egressgateway.Counters, error)
	Connections() (count, limit int, err error)
	ConnectionsRefused() (uint64, error)
}

// agent keeps one gateway.
type agent struct {
	cfg    config.Gateway
	kernel Kernel
	clock  clock.Clock
	log    *slog.Logger
	book   *book
	roster *roster
	news   retry.Signal
	counts metrics

	using sync.Mutex // held while the kernel is changed, and asked what is for one caller at a time

	mu      sync.Mutex // guards all below
	state   state
	clients map[int]int // addresses served, by family
	began   time.Time   // of what is under way in the kernel; zero: nothing is
}

// state is how far the gateway has come.
type state struct {
	serves bool  // the kernel was as asked for at least once, by this process or the one before
	err    error // why it is not as asked for now
	ending bool
}

func newAgent(cfg config.Gateway, k Kernel, c clock.Clock, log *slog.Logger) *agent {
	return &agent{cfg: cfg, kernel: k, clock: c, log: log, book: newBook(), roster: newRoster(), news: retry.NewSignal(), counts: newMetrics()}
}

// repairInterval is how often the kernel is compared with what it should be, as nobody else is expected to
// change it.
const repairInterval = time.Minute

// keep brings the kernel to what was heard last, until ctx ends.
func (a *agent) keep(ctx context.Context) {
	a.takeOver()
	repair := a.clock.After(repairInterval)
	var again <-chan time.Time
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.news:
		case <-again:
		case <-repair:
			a.using.Lock()
			a.kernel.Forget()
			a.using.Unlock()
			repair = a.clock.After(repairInterval)
		}
		if a.book.complete() != nil {
			continue
		}
		again = nil
		if a.apply(ctx) {
			failures = 0
			continue
		}
		again = a.clock.After(retry.Jitter(retry.Delay(retry.First, retry.Most, failures)))
		failures++
	}
}

// takeOver finds out whether an earlier process left a gateway that serves clients: it goes on doing so
// while the Kubernetes API is away.
func (a *agent) takeOver() {
	a.using.Lock()
	stands, err := a.kernel.Standing(a.setup(nil))
	a.using.Unlock()
	if err != nil {
		a.log.Warn("cannot tell what an earlier process left", "err", err)
	}
	if stands {
		a.log.Info("goes on with the clients that an earlier process served")
		a.mu.Lock()
		a.state.serves = true
		a.mu.Unlock()
	}
}

func (a *agent) setup(clients []egressgateway.Client) egressgateway.Setup {
	return egressgateway.Setup{Link: a.cfg.Link, Addrs: a.cfg.PodIPs, Port: uint16(a.cfg.Port), Clients: clients}
}

// apply brings the kernel to what was heard last. It tells whether that is done, as far as it can be.
func (a *agent) apply(ctx context.Context) bool {
	destinations, clients, garbage := a.book.wanted()
	setup := a.setup(clients)
	setup.Destinations = destinations

	a.under(a.clock.Now())
	began := a.clock.Now()
	a.using.Lock()
	err := a.kernel.Apply(ctx, setup)
	a.using.Unlock()
	a.under(time.Time{})
	a.counts.applied(a.clock.Now().Sub(began), err)
	if ctx.Err() != nil {
		return true
	}
	// These are for somebody else to mend; the rest is done.
	done := err == nil || errors.Is(err, egressgateway.ErrLeftOut) || errors.Is(err, egressgateway.ErrNotForwarded)
	a.report(err, done, clients, garbage)
	return done && !errors.Is(err, egressgateway.ErrNotForwarded)
}

// report notes how an Apply went, and logs what is new.
func (a *agent) report(err error, done bool, clients []egressgateway.Client, garbage []string) {
	served := map[int]int{}
	for _, c := range clients {
		for _, addr := range c.Addrs {
			if addr.Is4() {
				served[4]++
			} else {
				served[6]++
			}
		}
	}
	a.mu.Lock()
	before, first := a.state, !a.state.serves
	known := a.clients
	a.state.err = err
	if done {
		a.clients = served
		a.state.serves = true
	}
	a.mu.Unlock()
	if done {
		a.roster.set(clients)
	}
	for _, g := range garbage {
		a.log.Warn("passed over what cannot be", "what", g)
	}
	switch {
	case err != nil && (before.err == nil || before.err.Error() != err.Error()):
		a.log.Error("the gateway is not as it should be", "err", err)
	case err == nil && (first || before.err != nil):
		a.log.Info("serving clients", "clients", len(clients))
	case err == nil && (known[4] != served[4] || known[6] != served[6]):
		a.log.Debug("clients changed", "clients", len(clients))
	}
}

// under notes when something began that may take long; zero: it ended.
func (a *agent) under(began time.Time) {
	a.mu.Lock()
	a.began = began
	a.mu.Unlock()
}

// Why a gateway is not ready, in a word for metrics.
const (
	clientsUnknown = "clients-unknown"
	noFoU          = "no-fou"
	notForwarded   = "not-forwarded"
	failing        = "failing"
)

// ready tells whether clients are served, else why not, in a word and for a person. One that has served goes
// on while the Kubernetes API is away and while a change fails, as those that it serves lose nothing by that.
func (a *agent) ready() (word string, err error) {
	a.mu.Lock()
	s := a.state
	a.mu.Unlock()
	switch {
	case errors.Is(s.err, tunnel.ErrNoFoU):
		return noFoU, s.err
	case errors.Is(s.err, egressgateway.ErrNotForwarded):
		return notForwarded, s.err
	case s.serves:
		return "", nil
	case s.err != nil:
		return failing, s.err
	}
	if err := a.book.complete(); err != nil {
		return clientsUnknown, err
	}
	return clientsUnknown, errStarting
}

var errStarting = errors.New("starting")

// hangs is longer than anything takes that ends at all.
const hangs = 2 * time.Minute

// alive is nil unless something in the kernel hangs.
func (a *agent) alive() error {
	a.mu.Lock()
	began := a.began
	a.mu.Unlock()
	if !began.IsZero() && a.clock.Now().Sub(began) > hangs {
		return errors.New("the kernel has not taken a change for " + hangs.String())
	}
	return nil
}
