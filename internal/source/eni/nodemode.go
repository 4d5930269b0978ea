package eni

import (
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/source"
)

// Config is what the source needs in node mode. Cloud, Datapath,
// Identity.InstanceID and Cluster are required.
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
}

// New checks the configuration, loads the stored inventory if it is of this
// instance, and returns a source of node mode that is ready for Restore.
func New(cfg Config) (*Source, error) {
	s, rc, err := prepare(cfg)
	if err == nil {
		err = s.reconcile(rc)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// prepare returns a source without a supplier yet, and what to make its reconciler with.
func prepare(cfg Config) (*Source, eni.Config, error) {
	o := Options{
		InstanceID: cfg.Identity.InstanceID, Datapath: cfg.Datapath, Cooling: cfg.Cooling,
		Store: cfg.Store, Clock: cfg.Clock, Logger: cfg.Logger,
	}
	if err := o.withDefaults(); err != nil {
		return nil, eni.Config{}, err
	}
	s := newSource(o)
	return s, eni.Config{
		Settings: eni.Settings{
			InstanceType: cfg.Identity.InstanceType, Policy: cfg.Policy,
			SubnetIDs: cfg.Subnets, SubnetTags: cfg.SubnetTags, Groups: cfg.Groups, KeepENIs: cfg.KeepENIs,
		},
		InstanceID: cfg.Identity.InstanceID, Cluster: cfg.Cluster, Limits: cfg.Limits, Tags: cfg.Tags, Cloud: cfg.Cloud, Node: s, Intents: cfg.Intents, Observer: cfg.Observer,
		Clock: o.Clock, Rand: cfg.Rand, Logger: o.Logger, ShrinkDelay: cfg.ShrinkDelay, ListingInterval: cfg.ListingInterval,
		Settle: cfg.SettleTime, OrphanAge: cfg.OrphanAge, CollectInterval: cfg.OrphanInterval,
	}, nil
}

// reconcile makes the source's supplier a reconciler, and loads the stored inventory.
func (s *Source) reconcile(rc eni.Config) error {
	rec, err := eni.New(rc)
	if err != nil {
		return err
	}
	s.supply = &reconciled{rec, rc.Policy.PrefixDelegation}
	s.load()
	return nil
}

// reconciled is the reconciler as a Supplier.
type reconciled struct {
	*eni.Reconciler
	prefixes bool
}

// PrefixDelegation implements Supplier.
func (r *reconciled) PrefixDelegation() bool { return r.prefixes }

// LastError implements Supplier.
func (r *reconciled) LastError() string { return r.Status().LastError }

// reasons by class of what went wrong at the cloud.
var reasons = map[cloud.Class]string{
	cloud.Throttled: "throttled", cloud.SubnetFull: plan.ReasonSubnetFull, cloud.LimitReached: plan.ReasonENILimit,
	cloud.Permission: "permission", cloud.Bug: "refused", cloud.Gone: "refused",
}

// Why implements Supplier.
func (r *reconciled) Why(served bool) *source.Exhausted {
	st := r.Status()
	switch {
	case st.Err != nil && (st.Grows || !st.Confirmed):
		reason, ok := reasons[st.Class]
		if !ok {
			reason = "unreachable"
		}
		return &source.Exhausted{Reason: reason, Message: "no address is free: " + st.LastError, Err: st.Err}
	case !st.Confirmed && !served:
		return &source.Exhausted{Reason: "starting", Message: "no address is free: EC2 has not told yet which addresses this node has"}
	case st.Shortage != "":
		return &source.Exhausted{Reason: st.Shortage, Message: "no address is free: " + st.Explanation}
	}
	return &source.Exhausted{Reason: Growing, Message: "no address is free yet: EC2 was asked for more and they have not arrived in time"}
}
