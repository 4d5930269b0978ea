// Package enisource owns the addresses of a node's ENIs and assigns them to
// pods. A Supplier provides them: in node mode the reconciler of
// internal/ec2/eni, in operator mode internal/source/nodenetworksupplier. The
// Datapath makes the kernel carry the traffic of an ENI.
//
//	source.go     the interface to the daemon: Acquire, Release, Cancel, restore
//	addresses.go  holders of addresses, and waiting pods; in memory, guarded by Source.mu
//	enis.go       which ENIs serve pods, which of them the data path has, which links are missing
//	program.go    the goroutine that programs each ENI's data path
//	cutoff.go     running pods that are cut off
//	offer.go      the interface to a supplier that names the addresses to release
//	nodemode.go   the reconciler as a supplier, and the source as its Node
//	snapshot.go   introspection and metrics
//	store.go      the files that outlive the daemon
package enisource

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
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/addressqueue"
	"github.com/berthnet/berth/internal/source/confirm"
)

// Datapath makes the node's kernel carry pods' traffic over an ENI. Calls come from one goroutine.
type Datapath interface {
	// SetENI programs an ENI that is new or whose addresses changed. Its
	// addresses become assignable once SetENI has returned nil. After an error
	// SetENI is called again after Kick, and after a backoff. The error is a
	// source.ErrNoLink while the node has no link of the ENI.
	// SetENI is idempotent.
	SetENI(ctx context.Context, e eni.ENI) error
	// RemoveENI reverts SetENI for an ENI that is being detached or no longer exists. An
	// ENI that was never set is not an error.
	RemoveENI(ctx context.Context, eniID string) error
	// ChangedLinks returns the ENIs that were set and whose link vanished, or is another
	// one than was set up. It is called after each Kick.
	ChangedLinks(ctx context.Context) (map[string]source.LinkChange, error)
}

// InventoryStore stores the last inventory that the cloud confirmed.
type InventoryStore interface {
	// Load returns the stored inventory; false means that there is none.
	Load() (eni.Inventory, bool, error)
	// Save replaces the inventory atomically.
	Save(eni.Inventory) error
}

// Options are a Source's options regardless of its supplier. InstanceID and Datapath are required.
type Options struct {
	InstanceID string // of this instance; from the metadata service
	Template   string // in node mode, the object with the first settings, as KIND/NAME; empty: the daemon's own
	Datapath   Datapath
	Cooling    time.Duration        // how long released addresses cool; 0: not at all
	Store      InventoryStore       // nil: none
	Clock      clock.Clock          // nil: the machine's
	Logger     *slog.Logger         // nil: silent
	Notify     func(podevents.News) // notifies pods that they are cut off; does not block; may be nil
	// Permissions are those of the calls that the supply makes; nil if another process makes them.
	Permissions *Permissions
}

// Source is a source.Source. Create it with New or NewSupplied.
type Source struct {
	opts   Options
	clock  clock.Clock
	log    *slog.Logger
	supply Supplier
	file   inventoryFile

	program retry.Signal // wakes the programmer
	kicked  retry.Signal // wakes it when links may have changed
	cooled  retry.Signal // wakes the goroutine that watches cooling

	mu        sync.Mutex // guards the fields below; never held during I/O
	addresses addresses
	cutOffs   cutOffs
}

var _ source.Source = (*Source)(nil)

// NewSupplied checks the options, loads the stored inventory if it is of this instance, and returns a
// source that is ready for Restore. The supplier is seeded with the loaded inventory.
func NewSupplied(o Options, supply Supplier) (*Source, error) {
	s, err := newSource(o)
	if err != nil {
		return nil, err
	}
	s.supply = supply
	s.file.load()
	for _, r := range s.addresses.inv.Releasing {
		s.addresses.releasing = append(s.addresses.releasing, r.Prefix) // until the next Offer
	}
	return s, nil
}

// newSource returns a source that has no supplier yet.
func newSource(o Options) (*Source, error) {
	switch {
	case o.InstanceID == "":
		return nil, errors.New("enisource: InstanceID is empty, expected the ID of this instance")
	case o.Datapath == nil:
		return nil, errors.New("enisource: Datapath is missing")
	case o.Cooling < 0:
		return nil, fmt.Errorf("enisource: Cooling is %v, expected 0 or more", o.Cooling)
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Source{
		opts: o, clock: o.Clock, log: o.Logger,
		program: retry.NewSignal(), kicked: retry.NewSignal(), cooled: retry.NewSignal(),
		addresses: addresses{alloc: ipam.NewNode[attachment.Key](o.Cooling), leases: map[attachment.Key]hold{}, enis: newENIs(o.Clock, o.Logger)},
	}
	s.file.s, s.cutOffs.s = s, s
	return s, nil
}

// Run implements source.Source.
func (s *Source) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { (&programmer{s: s}).run(ctx) })
	wg.Go(func() { s.watchCooling(ctx) })
	wg.Go(func() { confirm.Await(ctx, s.clock, s.ServeUnconfirmed) })
	err := s.supply.Run(ctx)
	wg.Wait()
	return err
}

// Kick implements source.Source.
func (s *Source) Kick() { s.kicked.Set() }

// Restore implements source.Source.
func (s *Source) Restore(req source.Request, lease source.Lease) error {
	if len(lease.Addrs()) == 0 {
		return fmt.Errorf("restore the lease of %v: it has no address", req.Key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.addresses.alloc.Hold(req.Key, lease.Addrs(), s.clock.Now()); err != nil {
		return fmt.Errorf("restore the lease of %v: %w", req.Key, err)
	}
	s.addresses.leases[req.Key] = hold{lease, req.Pod}
	s.addresses.usable = true
	return nil
}

// RestoreCooling implements source.Source.
func (s *Source) RestoreCooling(addr netip.Addr, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses.alloc.Cool(addr, since, s.clock.Now())
	s.addresses.usable = true
	s.cooled.Set()
}

// Withhold implements source.Source.
func (s *Source) Withhold(addrs []netip.Addr) []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.addresses.alloc.Withhold(addrs)
	if !slices.Equal(kept, s.addresses.withheld) {
		s.addresses.withheld = kept
		s.addresses.serve(s.clock.Now())
		s.program.Set() // one may be an ENI's own address
		s.supply.Kick()
	}
	return kept
}

// NodeAddresses implements source.Source. An ENI lists none of them for pods.
func (s *Source) NodeAddresses() []netip.Addr { return nil }

// Annotations implements source.Source.
func (s *Source) Annotations() []string { return nil }

// CheckOptions implements source.Source.
func (s *Source) CheckOptions(w source.PodOptions) error { return source.CheckNetworkPool(w) }

// Acquire implements source.Source.
func (s *Source) Acquire(ctx context.Context, req source.Request) (source.Lease, error) {
	if pool := req.Options.NetworkPool; pool != "" {
		return source.Lease{}, &source.Exhausted{Reason: "pool-unsupported", Message: fmt.Sprintf(
			"pool of the network's configuration is %s, and addresses come from ENIs here: remove it, or run address pools (--ipam=pool)", pool)}
	}
	return addressqueue.Acquirer{
		With: func(do func()) {
			s.mu.Lock()
			defer s.mu.Unlock()
			do()
		},
		Held: s.addresses.held, Changed: s.supply.Kick,
		Admit: func(req source.Request) *addressqueue.Waiter { return s.addresses.wait(req, s.clock.Now()) },
		Why:   func(*addressqueue.Waiter) *source.Exhausted { return s.whyNone() },
	}.Acquire(ctx, req)
}

// whyNone returns the reason why no address is assignable. s.mu is held.
func (s *Source) whyNone() *source.Exhausted {
	why := s.supply.Why(s.addresses.served)
	if why.Reason != Growing {
		return why
	}
	if id, down := s.addresses.enis.why(); id != "" {
		return &source.Exhausted{Reason: "not-ready", Message: fmt.Sprintf("no address is free: the data path of %s is not ready: %s", id, down)}
	}
	return why
}

// Why implements source.Source.
func (s *Source) Why(key attachment.Key) *source.Exhausted {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addresses.waiters.Find(key) == nil {
		return nil
	}
	return s.whyNone()
}

// Release implements source.Source.
func (s *Source) Release(key attachment.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if a, ok := s.addresses.alloc.Release(key, now); ok {
		if s.addresses.end(key, a, now) { // without a cooling period the address is free immediately
			s.program.Set()
		}
		s.cooled.Set()
		s.supply.Kick()
	}
}

// Cancel implements source.Source.
func (s *Source) Cancel(key attachment.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.addresses.alloc.Cancel(key); ok {
		if s.addresses.end(key, a, s.clock.Now()) {
			s.program.Set()
		}
		s.supply.Kick()
	}
}

// CoolingPeriod implements source.Source.
func (s *Source) CoolingPeriod() time.Duration { return s.opts.Cooling }

// Ready implements source.Source.
func (s *Source) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addresses.usable {
		return nil
	}
	return fmt.Errorf("no address has been usable on this node yet: %s", s.whyNone().Message)
}

// watchCooling serves waiting pods when an address has cooled, and kicks the supplier.
func (s *Source) watchCooling(ctx context.Context) {
	for {
		var due <-chan time.Time
		s.mu.Lock()
		if at, ok := s.addresses.alloc.NextExpiry(); ok {
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
			if s.addresses.alloc.Expire(now) > 0 {
				s.program.Set() // one may be an ENI's own address
				s.addresses.serve(now)
				s.supply.Kick()
			}
			s.mu.Unlock()
		}
	}
}

// ServeUnconfirmed allows serving from the stored inventory: the supplier, which is the authority on the
// node's addresses, tried and has nothing newer, or had confirm.Timeout to do so.
func (s *Source) ServeUnconfirmed() {
	s.mu.Lock()
	unconfirmed := s.addresses.unconfirmed
	s.mu.Unlock()
	if !unconfirmed {
		return
	}
	// Log before the first address is assigned.
	s.log.Warn("assigning addresses from the stored inventory, which has not been confirmed since the start")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses.unconfirmed = false
	s.addresses.serve(s.clock.Now())
}

// MissingLinks returns the ENIs whose links the node lacks although they should exist, or which pods
// use and the inventory lacks, sorted.
func (s *Source) MissingLinks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addresses.enis.missingLinks()
}

// Supplier acquires the node's addresses and releases surplus ones. It passes them on with Publish, or
// with Offer.
//
// Kick, LastError, OtherGroups, PrefixDelegation, Template and Why are called with the Source locked:
// they do not block and do not call the Source.
type Supplier interface {
	// Seed passes the stored inventory, before Run.
	Seed(inv eni.Inventory)
	// Run supplies addresses and blocks until ctx ends.
	Run(ctx context.Context) error
	// Kick signals that pods started, ended or wait, or that addresses became usable.
	Kick()
	// LastError returns the current problem and its remedy, or "".
	LastError() string
	// OtherGroups returns the ENIs whose security groups should be those of the primary ENI but are
	// not, and whether that will be corrected. compared reports whether the supplier checks this.
	OtherGroups() (enis []string, followed, compared bool)
	// PrefixDelegation reports whether ENIs get prefixes.
	PrefixDelegation() bool
	// Template returns the object whose settings new ENIs get, or "".
	Template() string
	// Why returns the reason why waiting pods get no address, as far as the supply is concerned; the
	// reason is Growing if more was requested. served means that there is an inventory.
	Why(served bool) *source.Exhausted
}

// Growing is the reason if more addresses were requested and the request has not failed.
const Growing = "growing"
