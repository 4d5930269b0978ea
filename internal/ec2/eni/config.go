package eni

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/retry"
)

// Settings is what a person may change while a reconciler works.
type Settings struct {
	InstanceType string // in a Fleet: as configured, until EC2 tells; else as the metadata service says
	VPCID        string // where subnets and security groups are looked for; empty: the instance's
	Zone         string // likewise
	Policy       ipam.Policy

	SubnetIDs  []string          // of new ENIs
	SubnetTags map[string]string // choose subnets of new ENIs in VPC and zone
	// AnySubnet: without SubnetIDs and SubnetTags every subnet of VPC and zone
	// may have new ENIs (Cilium, "AWS ENI", "ENI Creation"), rather than only the
	// primary ENI's.
	AnySubnet bool
	Groups    []string          // security groups of new ENIs
	GroupTags map[string]string // choose them in the VPC; with neither: the primary ENI's
	// FollowGroups: with neither, existing ENIs get the primary's groups whenever these change.
	FollowGroups bool
	KeepENIs     bool // ENIs stay when the instance is terminated (DeleteOnTermination off)
	// UsePrimaryAddress: pods may also have the primary address of an ENI that serves
	// pods, the instance's primary ENI excepted.
	UsePrimaryAddress bool
	// Trunk: the instance has a trunk, if its type can have branches. The trunk has the
	// security groups of other new ENIs and is in the subnet of the primary. It is for
	// nodes of a Fleet only: Intents keeps one creation, that of an ENI for pods.
	Trunk bool
	// DrainOutdated: ENIs that differ from the settings are emptied and deleted.
	DrainOutdated bool
}

// primaryServes reports whether pods may have the primary addresses of ENIs, which are IPv4 addresses.
func (s Settings) primaryServes() bool {
	return s.UsePrimaryAddress && s.Policy.Families.Has(ipfamily.IPv4)
}

// placement returns the part of the settings that decides where new ENIs are created.
func (s Settings) placement() placement.Settings {
	return placement.Settings{
		VPCID: s.VPCID, Zone: s.Zone, SubnetIDs: s.SubnetIDs, SubnetTags: s.SubnetTags, AnySubnet: s.AnySubnet,
		Groups: s.Groups, GroupTags: s.GroupTags, Drain: s.DrainOutdated, IPv6: s.Policy.Families.Has(ipfamily.IPv6),
	}
}

// Config is what a Reconciler needs. All interfaces and pointers but Cloud and Node may be nil.
type Config struct {
	Settings
	InstanceID string
	Cluster    string // value of TagCluster; only ENIs with it are ever deleted

	Cloud cloud.API
	Node  Node
	// Fleet is for a process that works for many nodes. Nil: the process works for
	// this node alone, and runs on its instance.
	Fleet    *Fleet
	Shared   *Shared // with the other reconcilers of the process
	Intents  Intents
	Observer Observer
	Clock    clock.Clock
	Rand     *rand.Rand // for jitter
	Logger   *slog.Logger
	Timing

	process process // chosen by New
}

// Timing is how often a reconciler acts, and how long it waits. Zero durations take the defaults named.
type Timing struct {
	ShrinkDelay     time.Duration // how long excess must persist; 1 min
	ListingInterval time.Duration // between full observations, for repair; 1 min
	CollectInterval time.Duration // between looks for orphans; 10 min
	OrphanAge       time.Duration // of ENIs that others may delete; 15 min
	Settle          time.Duration // how long a reply outranks a listing; 1 min
	Lag             time.Duration // how long a write may take to show in listings; 5 s
	SlowRetry       time.Duration // after errors that only a person can resolve; 1 min
}

// WithDefaults returns t with defaults in place of what is not positive.
func (t Timing) WithDefaults() Timing {
	for _, d := range []struct {
		to  *time.Duration
		def time.Duration
	}{
		{&t.ShrinkDelay, time.Minute}, {&t.ListingInterval, time.Minute}, {&t.CollectInterval, 10 * time.Minute},
		{&t.OrphanAge, 15 * time.Minute}, {&t.Settle, time.Minute}, {&t.Lag, 5 * time.Second}, {&t.SlowRetry, time.Minute},
	} {
		if *d.to <= 0 {
			*d.to = d.def
		}
	}
	return t
}

const (
	callTimeout       = 5 * time.Minute       // of one cloud call, its wait for the limiter included
	rateLimitPatience = 15 * time.Second      // how long a call waits for its rate limit before the status says so
	prefixRetry       = 5 * time.Minute       // before prefixes are tried again in a fragmented subnet
	burstWindow       = 10 * time.Millisecond // without a kick ends a burst
)

func (c *Config) withDefaults() error {
	var errs []error
	if c.InstanceID == "" {
		errs = append(errs, errors.New("InstanceID: want the instance to work for"))
	}
	if c.Cluster == "" {
		errs = append(errs, errors.New("Cluster: want the cluster's name, by which ENIs are known as ours"))
	}
	if c.Cloud == nil || c.Node == nil {
		errs = append(errs, errors.New("Cloud, Node: want both"))
	}
	if err := c.Policy.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("Policy: %w", err))
	}
	if c.Clock == nil {
		c.Clock = clock.Real{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	if c.Intents == nil {
		c.Intents = &MemoryIntents{}
	}
	if c.Rand == nil {
		c.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if c.Shared == nil {
		c.Shared = NewShared(c.Cloud, c.Clock, nil)
	}
	c.Timing = c.Timing.WithDefaults()
	return errors.Join(errs...)
}

// jitter spreads d over half to one and a half of it, so that nodes that started together do not call
// together.
func (c *Config) jitter(d time.Duration) time.Duration {
	return retry.Seeded(c.Rand, d)
}

// acted reports an action that began at start to the Observer.
func (c *Config) acted(a plan.Action, err error, start time.Time) {
	c.Observer.Acted(a, cloud.ClassOf(err), err, c.Clock.Now().Sub(start))
}

// Shared is what the reconcilers of a process share.
type Shared struct {
	Catalog *placement.Catalog
	outage  *outage
}

// NewShared returns a Shared that has asked EC2 nothing yet. Answered, which may be nil, is called when
// EC2 was away and answers again, so that waiting nodes can go on. It is called from the goroutine that
// reconciles.
func NewShared(api cloud.API, c clock.Clock, answered func()) *Shared {
	return &Shared{placement.NewCatalog(api, c), newOutage(answered)}
}

// process is what depends on whether a process works for one node or for many.
type process struct {
	onInstance   bool // it runs on the node's instance, which therefore exists and runs
	lists        bool // it lists the node's ENIs for repair itself
	collects     bool // it looks for what vanished instances left
	yields       bool // calls for a supplied node yield to those of other processes
	recalls      bool // calls that no pod needs are recalled for pods, as they queue with those of other nodes
	sharesNode   bool // another process may work for the node too
	sharesCounts bool // one call for the free counts of subnets serves many nodes
}

var (
	ofOneNode = process{onInstance: true, lists: true, collects: true, yields: true}
	ofFleet   = process{recalls: true, sharesNode: true, sharesCounts: true}
)

// Fleet is what a process that works for many nodes does for the reconciler of each. No field may be
// nil.
type Fleet struct {
	// Lister observes the nodes together. The fleet also hands over listings
	// for repair, by Observed.
	Lister Lister
	// Elsewhere returns the ENI of another node of the process that has part of an
	// address or prefix of a subnet; empty: none has.
	Elsewhere func(subnetID string, p netip.Prefix) (eniID string)
	// Committed lists the addresses and prefixes, and the ENIs (without a prefix),
	// that this process or another that works for the same node recorded as about to
	// leave, and that have not left yet. None of them is ever restored to the
	// node: another process may be about to ask the cloud.
	Committed func() []Release
	// RateLimited is called during a pass in which a step waits for the cloud's rate limit
	// for longer than rateLimitPatience. Status says so already.
	RateLimited func()
	// Beside runs a call that no pass waits for in a goroutine, and has
	// a pass follow it. The call ends with the pass's context, or with End.
	Beside func(call func())
}

// fleetOfOne returns the Fleet of a process that works for this node alone. Run waits for the calls
// that it runs beside a pass.
func (r *Reconciler) fleetOfOne() *Fleet {
	return &Fleet{
		Lister:      r.observer.own,
		Elsewhere:   func(string, netip.Prefix) string { return "" },
		Committed:   func() []Release { return nil },
		RateLimited: func() {},
		Beside:      func(call func()) { r.loop.beside.Go(func() { call(); r.Kick() }) },
	}
}
