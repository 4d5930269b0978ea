package eni

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/retry"
)

// Settings is what a person may change while a reconciler works.
type Settings struct {
	InstanceType string // in a Fleet: as somebody said, and the cloud's answer counts; else as the instance itself says
	VPCID        string // where subnets and security groups are looked for; empty: the instance's
	Zone         string // likewise
	Policy       ipam.Policy

	SubnetIDs  []string          // for new ENIs
	SubnetTags map[string]string // choose subnets for new ENIs in VPC and zone
	// AnySubnet: without SubnetIDs and SubnetTags every subnet of VPC and zone
	// may have new ENIs (Cilium, "AWS ENI", "ENI Creation"), rather than only the
	// primary ENI's.
	AnySubnet bool
	Groups    []string          // security groups of new ENIs
	GroupTags map[string]string // choose them in the VPC; with neither: the primary ENI's
	// FollowGroups: with neither, ENIs that are there get the primary's too whenever these change.
	FollowGroups bool
	KeepENIs     bool // do not delete ENIs with the instance (DeleteOnTermination off)
	// UsePrimaryAddress: the primary address of an ENI that serves pods, the
	// instance's primary ENI excepted, is among its Addresses for pods.
	UsePrimaryAddress bool
	// Trunk: a trunk is on the instance, if its type may have branches, with the groups
	// of other new ENIs, in the subnet of the primary. Of nodes of a Fleet only: Intents
	// keeps one creation, and that is of ENIs with addresses for pods.
	Trunk bool
	// DrainOutdated: ENIs that are not as configured (outdated) are emptied and
	// given back.
	DrainOutdated bool
}

// primaryServes tells whether ENIs' primary addresses, which are of IPv4, are for pods.
func (s Settings) primaryServes() bool {
	return s.UsePrimaryAddress && s.Policy.Families.Has(ipfamily.IPv4)
}

// Config is what a Reconciler needs to know. Zero durations take the defaults
// named; all interfaces and pointers but Cloud and Node may be nil.
type Config struct {
	Settings
	InstanceID string
	Cluster    string // value of TagCluster; only ENIs with it are ever deleted

	Cloud cloud.API
	Node  Node
	// Fleet is for a process that works for many nodes. Nil: this one works for
	// this node alone, and runs on its instance.
	Fleet    *Fleet
	Shared   *Shared // with the other reconcilers of the process
	Intents  Intents
	Observer Observer
	Clock    clock.Clock
	Rand     *rand.Rand // for jitter
	Logger   *slog.Logger

	ShrinkDelay     time.Duration // how long excess must persist; 1 min
	ListingInterval time.Duration // between full observations, for repair; 1 min
	CollectInterval time.Duration // between looks for orphans; 10 min
	OrphanAge       time.Duration // of ENIs that others may delete; 15 min
	Settle          time.Duration // how long a reply outranks a listing; 1 min
	Lag             time.Duration // how long a write may take to show in listings; 5 s
	SlowRetry       time.Duration // after errors that only a person can heal; 1 min
}

const (
	callTimeout       = 5 * time.Minute       // of one cloud call, its wait for the limiter included
	rateLimitPatience = 15 * time.Second      // with the rate limit of a call, before it is told
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
	for _, d := range []struct {
		to  *time.Duration
		def time.Duration
	}{
		{&c.ShrinkDelay, time.Minute}, {&c.ListingInterval, time.Minute}, {&c.CollectInterval, 10 * time.Minute},
		{&c.OrphanAge, 15 * time.Minute}, {&c.Settle, time.Minute}, {&c.Lag, 5 * time.Second}, {&c.SlowRetry, time.Minute},
	} {
		if *d.to <= 0 {
			*d.to = d.def
		}
	}
	return errors.Join(errs...)
}

// jitter spreads d over half to one and a half of it, so that nodes that
// started together do not call together.
func (c *Config) jitter(d time.Duration) time.Duration {
	return retry.Seeded(c.Rand, d)
}
