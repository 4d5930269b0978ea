// Package eni is the address source of node mode: pods get secondary addresses
// of the node's own ENIs. It owns the addresses in memory; internal/eni's
// reconciler keeps it supplied and the Datapath tells when an ENI carries traffic.
//
//	source.go     what the daemon calls: Acquire, Release, Cancel, restore
//	waiting.go    who waits for an address, and why in vain
//	supply.go     what the reconciler calls: usage, new inventory, withdrawals
//	program.go    getting each ENI's data path ready
//	firstword.go  EC2's word comes before the file's after a start
//	snapshot.go   what introspection sees
//	store.go      the files that outlive the daemon
package eni

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/source"
)

// Datapath makes the node's kernel carry pods' traffic by an ENI. Calls come
// from one goroutine.
type Datapath interface {
	// SetENI programs an ENI that is new or whose addresses changed. Its
	// addresses become assignable once this returned nil for it. An error means
	// not yet: it is called again after Kick, and now and then by itself.
	// It is idempotent.
	SetENI(ctx context.Context, e eni.ENI) error
	// RemoveENI undoes SetENI for an ENI that is leaving or has left. One that
	// was never set is no error.
	RemoveENI(ctx context.Context, eniID string) error
}

// InventoryStore keeps the last inventory that the cloud confirmed.
type InventoryStore interface {
	// Load returns the stored inventory, or false without one.
	Load() (eni.Inventory, bool, error)
	// Save replaces it, atomically.
	Save(eni.Inventory) error
}

// Config is what the source needs. Cloud, Datapath, Identity.InstanceID and
// Cluster are required.
type Config struct {
	Identity cloud.Identity // of this instance; from the metadata service
	Cluster  string         // value of the cluster tag on ENIs
	Cloud    cloud.API
	Datapath Datapath
	Policy   ipam.Policy
	Limits   cloud.Limits  // zero: as the cloud says
	Cooling  time.Duration // how long released addresses cool; 0: not at all

	Subnets    []string          // IDs for new ENIs; with no SubnetTags: the primary's by default
	SubnetTags map[string]string // choose subnets in the instance's zone
	Groups     []string          // security groups of new ENIs; default: the primary's
	Tags       map[string]string // further tags of new ENIs
	KeepENIs   bool              // DeleteOnTermination off

	Store    InventoryStore // nil: none
	Intents  eni.Intents    // nil: in memory
	Clock    clock.Clock    // nil: the machine's
	Logger   *slog.Logger   // nil: silent
	Observer eni.Observer   // nil: none
	Rand     *rand.Rand     // nil: seeded at random

	ShrinkDelay     time.Duration // 0: the reconciler's default, as for those below
	ListingInterval time.Duration
	SettleTime      time.Duration
	OrphanAge       time.Duration
	OrphanInterval  time.Duration
	// Tune may change what the reconciler is made with; for tests.
	Tune func(*eni.Config)
}

// Source is a source.Source. Make it with New.
type Source struct {
	cfg   Config
	clock clock.Clock
	log   *slog.Logger
	rec   *eni.Reconciler

	program chan struct{} // wakes the goroutine that programs ENIs
	cooled  chan struct{} // wakes the one that watches cooling

	saving sync.Mutex // puts the writes of the inventory file in order; held during that I/O, by nothing that a pod waits for

	mu         sync.Mutex // guards all below; memory only, no call is made under it
	alloc      *ipam.Allocator[attachment.Key]
	leases     map[attachment.Key]source.Lease
	waiters    *list.List // of *waiter, the first to come first
	inv        eni.Inventory
	published  map[string]eni.ENI // what the cloud has for pods, by ID
	programmed map[string]eni.ENI // what the data path has
	down       map[string]string  // why an ENI's data path is not ready
	usable     bool               // an address was assignable once
	served     bool               // the inventory came from the cloud or the file
	unproven   bool               // it came from the file, and the cloud still has a moment to correct it
}

var _ source.Source = (*Source)(nil)
var _ eni.Node = (*Source)(nil)

// New checks the configuration, loads the stored inventory if it is of this
// instance, and returns a source that is ready for Restore.
func New(cfg Config) (*Source, error) {
	if cfg.Datapath == nil {
		return nil, errors.New("ENI source: Datapath: want one")
	}
	if cfg.Cooling < 0 {
		return nil, fmt.Errorf("ENI source: Cooling %v: want a time from 0", cfg.Cooling)
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Real{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Source{
		cfg: cfg, clock: cfg.Clock, log: cfg.Logger,
		program: make(chan struct{}, 1), cooled: make(chan struct{}, 1),
		alloc: ipam.New[attachment.Key](cfg.Cooling), leases: map[attachment.Key]source.Lease{}, waiters: list.New(),
		published: map[string]eni.ENI{}, programmed: map[string]eni.ENI{}, down: map[string]string{},
	}
	rc := eni.Config{
		InstanceID: cfg.Identity.InstanceID, InstanceType: cfg.Identity.InstanceType, Cluster: cfg.Cluster,
		Policy: cfg.Policy, Limits: cfg.Limits, SubnetIDs: cfg.Subnets, SubnetTags: cfg.SubnetTags, Groups: cfg.Groups,
		Tags: cfg.Tags, KeepENIs: cfg.KeepENIs, Cloud: cfg.Cloud, Node: s, Intents: cfg.Intents, Observer: &firstWord{s, cfg.Observer},
		Clock: cfg.Clock, Rand: cfg.Rand, Logger: cfg.Logger, ShrinkDelay: cfg.ShrinkDelay, ListingInterval: cfg.ListingInterval,
		Settle: cfg.SettleTime, OrphanAge: cfg.OrphanAge, CollectInterval: cfg.OrphanInterval,
	}
	if cfg.Tune != nil {
		cfg.Tune(&rc)
	}
	var err error
	if s.rec, err = eni.New(rc); err != nil {
		return nil, err
	}
	s.load()
	return s, nil
}

// Run implements source.Source.
func (s *Source) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.programENIs(ctx) })
	wg.Go(func() { s.watchCooling(ctx) })
	wg.Go(func() { s.trustFile(ctx) })
	err := s.rec.Run(ctx)
	wg.Wait()
	return err
}

// Kick says that links changed: ENIs that are not ready are tried again now.
func (s *Source) Kick() { signal(s.program) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Restore implements source.Source.
func (s *Source) Restore(key attachment.Key, lease source.Lease) error {
	if !lease.IPv4.IsValid() {
		return fmt.Errorf("restore the lease of %v: it has no IPv4 address", key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.alloc.Hold(key, lease.IPv4, s.clock.Now()); err != nil {
		return fmt.Errorf("restore the lease of %v: %w", key, err)
	}
	s.leases[key] = lease
	s.usable = true
	return nil
}

// RestoreCooling implements source.Source.
func (s *Source) RestoreCooling(addr netip.Addr, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alloc.Cool(addr, since, s.clock.Now())
	s.usable = true
	signal(s.cooled)
}

// Acquire implements source.Source.
func (s *Source) Acquire(ctx context.Context, req source.Request) (source.Lease, error) {
	s.mu.Lock()
	if l, ok := s.leases[req.Key]; ok {
		s.mu.Unlock()
		return l, nil
	}
	w := s.wait(req.Key)
	s.mu.Unlock()
	s.rec.Kick()
	select {
	case l := <-w.granted: // at once when an address is warm
		return l, nil
	default:
	}
	select {
	case l := <-w.granted:
		return l, nil
	case <-ctx.Done():
		return s.giveUp(ctx, w)
	}
}

// Release implements source.Source.
func (s *Source) Release(key attachment.Key) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if _, ok := s.alloc.Release(key, now); ok {
		delete(s.leases, key)
		s.serve(now) // without a cooling period it is free at once
		signal(s.cooled)
		s.rec.Kick()
	}
	return now
}

// Cancel implements source.Source.
func (s *Source) Cancel(key attachment.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.alloc.Cancel(key); ok {
		delete(s.leases, key)
		s.serve(s.clock.Now())
		s.rec.Kick()
	}
}

// CoolingPeriod implements source.Source.
func (s *Source) CoolingPeriod() time.Duration { return s.cfg.Cooling }

// Ready implements source.Source.
func (s *Source) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usable {
		return nil
	}
	return fmt.Errorf("no address has been usable on this node yet: %s", s.whyNone().Message)
}

// watchCooling serves those who wait when an address has cooled, and lets the
// reconciler look at what that leaves.
func (s *Source) watchCooling(ctx context.Context) {
	for {
		var due <-chan time.Time
		s.mu.Lock()
		if at, ok := s.alloc.NextExpiry(); ok {
			due = s.clock.After(at.Sub(s.clock.Now()))
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-s.cooled:
		case <-due:
			s.mu.Lock()
			now := s.clock.Now()
			if s.alloc.Expire(now) > 0 {
				s.serve(now)
				s.rec.Kick()
			}
			s.mu.Unlock()
		}
	}
}
