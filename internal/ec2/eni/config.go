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

// Settings may change while a reconciler runs.
type Settings struct {
	InstanceType string // in a Fleet, as configured until EC2 reports it; otherwise from the metadata service
	VPCID        string // of subnets and security groups; the instance's if empty
	Zone         string // of subnets; the instance's if empty
	Policy       ipam.Policy

	SubnetIDs  []string          // of new ENIs
	SubnetTags map[string]string // select subnets of new ENIs in VPC and Zone
	// AnySubnet allows new ENIs in every subnet of VPC and zone if neither SubnetIDs nor SubnetTags is set
	// (Cilium, "AWS ENI", "ENI Creation"), rather than only in the primary ENI's.
	AnySubnet bool
	Groups    []string          // security groups of new ENIs
	GroupTags map[string]string // select groups in the VPC; without Groups and GroupTags, the primary ENI's apply
	// FollowGroups keeps the groups of existing ENIs equal to the primary's, if neither Groups nor GroupTags is
	// set.
	FollowGroups bool
	KeepENIs     bool // keep ENIs when the instance is terminated (DeleteOnTermination off)
	// UsePrimaryAddress also gives pods the primary address of ENIs that serve pods, except that of the
	// instance's primary ENI.
	UsePrimaryAddress bool
	// Trunk gives the instance a trunk, if its type supports branches. The trunk has the security groups of
	// other new ENIs and is in the subnet of the primary ENI. It works only for nodes of a Fleet: Intents
	// stores a single creation, that of an ENI for pods.
	Trunk bool
	// DrainOutdated drains and deletes ENIs that differ from the settings.
	DrainOutdated bool
}

// primaryServes reports whether pods may use the primary addresses of ENIs, which are IPv4 addresses.
func (s Settings) primaryServes() bool {
	return s.UsePrimaryAddress && s.Policy.Families.Has(ipfamily.IPv4)
}

// placement returns the settings that determine where new ENIs are created.
func (s Settings) placement() placement.Settings {
	return placement.Settings{
		VPCID: s.VPCID, Zone: s.Zone, SubnetIDs: s.SubnetIDs, SubnetTags: s.SubnetTags, AnySubnet: s.AnySubnet,
		Groups: s.Groups, GroupTags: s.GroupTags, Drain: s.DrainOutdated, IPv6: s.Policy.Families.Has(ipfamily.IPv6),
	}
}

// Config is the configuration of a Reconciler. All interfaces and pointers except Cloud and Node may be nil.
type Config struct {
	Settings
	InstanceID string
	Cluster    string   // value of TagCluster; ENIs without it are never deleted, unless they are adopted
	Adopt      []string // systems whose ENIs of the instance are Berth's (Adoptable)

	Cloud cloud.API
	Node  Node
	// Fleet is set in a process that serves many nodes. Nil means that the process serves only this node and runs
	// on its instance.
	Fleet    *Fleet
	Shared   *Shared // shared with the other reconcilers of the process
	Intents  Intents
	Observer Observer
	Clock    clock.Clock
	Rand     *rand.Rand // for jitter
	Logger   *slog.Logger
	Timing

	process process // chosen by New
}

// Timing sets intervals and delays of a reconciler. Zero durations mean the defaults noted below.
type Timing struct {
	ShrinkDelay     time.Duration // how long excess must persist before it is released; 1 min
	ListingInterval time.Duration // between full listings, for repair; 1 min
	CollectInterval time.Duration // between searches for orphans; 10 min
	OrphanAge       time.Duration // minimum age of ENIs deleted as orphans; 15 min
	Settle          time.Duration // how long a reply takes precedence over a listing; 1 min
	Lag             time.Duration // how long a write may take to show in listings; 5 s
	SlowRetry       time.Duration // after errors that need human intervention; 1 min
}

// WithDefaults returns t with defaults for values that are not positive.
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
	callTimeout       = 5 * time.Minute       // of a cloud call, including the wait for the limiter
	rateLimitPatience = 15 * time.Second      // wait for the rate limit before the status reports it
	prefixRetry       = 5 * time.Minute       // before prefixes are retried in a fragmented subnet
	burstWindow       = 10 * time.Millisecond // a pause this long ends a burst of kicks
)

func (c *Config) withDefaults() error {
	var errs []error
	if c.InstanceID == "" {
		errs = append(errs, errors.New("InstanceID: required"))
	}
	if c.Cluster == "" {
		errs = append(errs, errors.New("Cluster: required to identify Berth's ENIs"))
	}
	if c.Cloud == nil || c.Node == nil {
		errs = append(errs, errors.New("Cloud, Node: both required"))
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

// jitter spreads d over half to one and a half of it, so that nodes that started at the same time do not call
// at the same time.
func (c *Config) jitter(d time.Duration) time.Duration {
	return retry.Seeded(c.Rand, d)
}

// acted reports an action that started at start to the Observer.
func (c *Config) acted(a plan.Action, err error, start time.Time) {
	c.Observer.Acted(a, cloud.ClassOf(err), err, c.Clock.Now().Sub(start))
}

// Shared is state shared by the reconcilers of a process.
type Shared struct {
	Catalog *placement.Catalog
	outage  *outage
}

// NewShared returns a Shared without any knowledge of EC2. Answered, which may be nil, is called when EC2
// responds again after an outage, so that waiting nodes can proceed. It runs on the reconciler's goroutine.
func NewShared(api cloud.API, c clock.Clock, answered func()) *Shared {
	return &Shared{placement.NewCatalog(api, c), newOutage(answered)}
}

// process describes whether a process serves one node or many.
type process struct {
	onInstance   bool // the process runs on the node's instance, which therefore exists and runs
	lists        bool // the reconciler lists the node's ENIs for repair itself
	collects     bool // the reconciler collects orphans of vanished instances
	yields       bool // calls of a supplied node yield to those of other processes
	recalls      bool // calls that no pod needs are recalled for pods, because they queue with those of other nodes
	sharesNode   bool // another process may serve the node, too
	sharesCounts bool // one call for subnet free counts serves many nodes
}

var (
	ofOneNode = process{onInstance: true, lists: true, collects: true, yields: true}
	ofFleet   = process{recalls: true, sharesNode: true, sharesCounts: true}
)

// Fleet is what a process with many nodes provides to each reconciler. No field may be nil.
type Fleet struct {
	// Lister observes the nodes together. The fleet also passes on listings for repair, through Observed.
	Lister Lister
	// Elsewhere returns the ENI of another node of the process that holds part of an address or prefix of a
	// subnet; empty if there is none.
	Elsewhere func(subnetID string, p netip.Prefix) (eniID string)
	// Committed lists the addresses and prefixes, and the ENIs (without a prefix), that this process or another
	// one serving the same node has recorded for release and that have not left yet. They are never restored to
	// the node: another process may be about to call the cloud.
	Committed func() []Release
	// RateLimited is called during a pass in which a step has waited for the cloud's rate limit longer than
	// rateLimitPatience. Status already reports the wait.
	RateLimited func()
	// Beside runs a call in a goroutine without delaying a pass, and triggers a pass afterwards. The call's
	// context ends with the pass's context, or with End.
	Beside func(call func())
}

// fleetOfOne returns the Fleet of a process that serves only this node. Run waits for the calls that it runs
// beside a pass.
func (r *Reconciler) fleetOfOne() *Fleet {
	return &Fleet{
		Lister:      r.observer.own,
		Elsewhere:   func(string, netip.Prefix) string { return "" },
		Committed:   func() []Release { return nil },
		RateLimited: func() {},
		Beside:      func(call func()) { r.loop.beside.Go(func() { call(); r.Kick() }) },
	}
}
