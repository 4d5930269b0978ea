// Package fleet works for the ENIs of many nodes in one process: one
// eni.Reconciler a node, and what they share. It knows no Kubernetes.
package fleet

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
)

// Config is what a Fleet needs to know. Zero durations take the defaults named.
type Config struct {
	Cluster  string // value of eni.TagCluster
	Cloud    cloud.API
	Observer Observer     // nil: none
	Clock    clock.Clock  // nil: the machine's
	Logger   *slog.Logger // nil: silent

	ListingInterval time.Duration // between full listings, for repair; 1 min
	ShrinkDelay     time.Duration // how long excess must persist; 1 min
	Settle          time.Duration // how long a reply outranks a listing; 1 min
	CollectInterval time.Duration // between looks for orphans; 10 min
	OrphanAge       time.Duration // of ENIs of vanished instances that are deleted; 15 min
}

// Node is one node's side: where its addresses are published and who uses them.
// Calls for one node come from one goroutine at a time.
type Node interface {
	eni.Node
	// Reconciled is called after every pass with how the node does.
	Reconciled(eni.Status)
}

// Observer is told of everything that is done, for metrics, from many
// goroutines at once. Its methods must be quick.
type Observer interface {
	// Acted is called after each action or observation of a node. The action
	// names its subnet, also for Assign. The class is Unknown when err is nil.
	Acted(node string, a eni.Action, class cloud.Class, err error, took time.Duration)
	// Listed is called after each full listing.
	Listed(took time.Duration, err error)
}

// Subnet is what is known of a subnet's free addresses.
type Subnet struct {
	ID, VPCID, Zone string
	Free            int // with what is being asked for taken off
}

// Fleet is the ENI allocator for all nodes. All methods may be called
// concurrently.
type Fleet struct{}

var errNotBuilt = errors.New("fleet: not built")

// New checks the configuration.
func New(Config) (*Fleet, error) { return nil, errNotBuilt }

// Run works until ctx ends, and returns once nothing is under way.
func (f *Fleet) Run(ctx context.Context) error { return errNotBuilt }

// Set adds a node under a name, or changes the settings of one that is there
// with the same instance. A node that comes back with another instance is
// another node. Seed, of the instance, is what was last published for it, by
// this process or one before; it is looked at for new nodes only.
func (f *Fleet) Set(name, instanceID string, s eni.Settings, seed eni.Inventory, n Node) error {
	return errNotBuilt
}

// Remove ends the work for a node. It returns at once; a call under way is
// finished, and nothing of the node is touched after it. Its ENIs go with the
// instance, or are collected once that has vanished.
func (f *Fleet) Remove(name string) {}

// Kick says that a node's use of addresses changed. It never blocks.
func (f *Fleet) Kick(name string) {}

// Doubt says that what was published for a node may not be what the cloud has:
// someone else wrote it. Nothing is published before the cloud was observed.
func (f *Fleet) Doubt(name string) {}

// Subnets lists what is known of subnets, by ID.
func (f *Fleet) Subnets() []Subnet { return nil }
