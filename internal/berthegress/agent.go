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

// Kernel is the gateway in the kernel, as egressgateway.Kernel has it.
type Kernel interface {
	Apply(ctx context.Context, s egressgateway.Setup) error
	InKernel(s egressgateway.Setup) (bool, error)
	Forget()
	OpenConnections() (int, error)

	Counters() (egressgateway.Counters, error)
	Connections() (count, limit int, err error)
	ConnectionsRefused() (uint64, error)
}

// agent reconciles the kernel of one gateway with its Egress.
type agent struct {
	cfg     config.Gateway
	kernel  Kernel
	clock   clock.Clock
	log     *slog.Logger
	cache   *apiCache
	served  *servedClients
	changed retry.Signal
	counts  metrics

	using sync.Mutex // held during calls of the kernel that are for one caller at a time

	mu       sync.Mutex // guards all below
	state    state
	clients  map[int]int // addresses served, by family
	inFlight time.Time   // when the Apply in flight began; zero: none is
}

// state is the gateway's state for probes.
type state struct {
	serves bool  // the kernel was as desired once, by this process or an earlier one
	err    error // of the last Apply, or nil
	ending bool
}

func newAgent(cfg config.Gateway, k Kernel, c clock.Clock, log *slog.Logger) *agent {
	return &agent{cfg: cfg, kernel: k, clock: c, log: log, cache: newAPICache(), served: newServedClients(), changed: retry.NewSignal(), counts: newMetrics()}
}

// repairInterval is how often the kernel is compared with the desired state.
const repairInterval = time.Minute

// reconcile makes the kernel as desired whenever that changes, until ctx ends.
func (a *agent) reconcile(ctx context.Context) {
	a.takeOver()
	repair := a.clock.After(repairInterval)
	var again <-chan time.Time
	var failed retry.Backoff
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
		case <-again:
		case <-repair:
			a.using.Lock()
			a.kernel.Forget()
			a.using.Unlock()
			repair = a.clock.After(repairInterval)
		}
		if a.cache.complete() != nil {
			continue
		}
		again = nil
		if a.apply(ctx) {
			failed = retry.Backoff{}
			continue
		}
		now := a.clock.Now()
		failed.Fail(now, retry.First, retry.Most)
		again = a.clock.After(failed.Until.Sub(now))
	}
}

// takeOver checks whether an earlier process left a gateway that serves clients, which it continues to do
// during an outage of the Kubernetes API.
func (a *agent) takeOver() {
	a.using.Lock()
	found, err := a.kernel.InKernel(a.setup(nil))
	a.using.Unlock()
	if err != nil {
		a.log.Warn("cannot read what an earlier process left in the kernel", "err", err)
	}
	if found {
		a.log.Info("still serving the clients of an earlier process")
		a.mu.Lock()
		a.state.serves = true
		a.mu.Unlock()
	}
}

func (a *agent) setup(clients []egressgateway.Client) egressgateway.Setup {
	return egressgateway.Setup{Link: a.cfg.Link, Addrs: a.cfg.PodIPs, Port: uint16(a.cfg.Port), Clients: clients}
}

// apply makes the kernel as desired. It returns false if it should be tried again.
func (a *agent) apply(ctx context.Context) bool {
	destinations, clients, garbage := a.cache.desired()
	setup := a.setup(clients)
	setup.Destinations = destinations

	a.setInFlight(a.clock.Now())
	began := a.clock.Now()
	a.using.Lock()
	err := a.kernel.Apply(ctx, setup)
	a.using.Unlock()
	a.setInFlight(time.Time{})
	a.counts.applied(a.clock.Now().Sub(began), err)
	if ctx.Err() != nil {
		return true
	}
	// The rest is done; only a change of the pod or the clients helps with these.
	done := err == nil || errors.Is(err, egressgateway.ErrLeftOut) || errors.Is(err, egressgateway.ErrNotForwarded)
	a.report(err, done, clients, garbage)
	return done && !errors.Is(err, egressgateway.ErrNotForwarded)
}

// report records the outcome of an Apply, and logs what changed.
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
		a.served.set(clients)
	}
	for _, g := range garbage {
		a.log.Warn("ignored an invalid value", "value", g)
	}
	switch {
	case err != nil && (before.err == nil || before.err.Error() != err.Error()):
		a.log.Error("cannot set up the gateway", "err", err)
	case err == nil && (first || before.err != nil):
		a.log.Info("serving clients", "clients", len(clients))
	case err == nil && (known[4] != served[4] || known[6] != served[6]):
		a.log.Debug("clients changed", "clients", len(clients))
	}
}

// setInFlight records when an Apply began; zero: it ended.
func (a *agent) setInFlight(began time.Time) {
	a.mu.Lock()
	a.inFlight = began
	a.mu.Unlock()
}

// Reasons why a gateway is not ready, for metrics.
const (
	clientsUnknown = "clients-unknown"
	noFoU          = "no-fou"
	notForwarded   = "not-forwarded"
	failing        = "failing"
)

// ready returns why the gateway is not ready, as a reason and an error, or "" and nil. A gateway that has served clients
// stays ready during an outage of the Kubernetes API and when a change fails: clients that it serves lose nothing.
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
	if err := a.cache.complete(); err != nil {
		return clientsUnknown, err
	}
	return clientsUnknown, errStarting
}

var errStarting = errors.New("starting")

// maxInFlight is longer than any Apply takes that ends.
const maxInFlight = 2 * time.Minute

// alive returns an error if a change of the kernel hangs.
func (a *agent) alive() error {
	a.mu.Lock()
	began := a.inFlight
	a.mu.Unlock()
	if !began.IsZero() && a.clock.Now().Sub(began) > maxInFlight {
		return errors.New("a change of the kernel has been in flight for more than " + maxInFlight.String())
	}
	return nil
}

const (
	// countInterval is how often connections are counted while the gateway terminates.
	countInterval = time.Second
	// exitTime is the end of the grace period, in which the process exits by itself.
	exitTime = 2 * time.Second
)

// end returns when no connection is left or the grace period is over. Until then the gateway serves as before and
// stays ready: a pod that is deleted and ready is draining. The Egress's status tells clients, which open no new
// connections by it.
func (a *agent) end() {
	a.mu.Lock()
	a.state.ending = true
	a.mu.Unlock()
	began := a.clock.Now()
	a.log.Info("terminating: serving the open connections", "grace", a.cfg.GracePeriod)
	over := a.clock.After(max(0, a.cfg.GracePeriod-exitTime))
	lastCount := -1
	for {
		select {
		case <-over:
			a.log.Warn("the grace period is over", "connections", lastCount)
			return
		case <-a.clock.After(countInterval):
		}
		a.using.Lock()
		open, err := a.kernel.OpenConnections()
		a.using.Unlock()
		switch {
		case err != nil:
			a.log.Warn("cannot count connections", "err", err)
		case open == 0 && a.clock.Now().Sub(began) >= a.cfg.EndDelay:
			a.log.Info("no connection is left", "after", a.clock.Now().Sub(began).Round(time.Second))
			return
		case lastCount < 0:
			a.log.Info("waiting for open connections to end", "connections", open)
			lastCount = open
		default:
			lastCount = open
		}
	}
}
