package fleet

import (
	"errors"
	"log/slog"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// Config is what a Fleet needs.
type Config struct {
	Cluster  string // value of eni.TagCluster
	Cloud    cloud.API
	Observer Observer     // nil: none
	Clock    clock.Clock  // nil: the machine's
	Logger   *slog.Logger // nil: silent

	eni.Timing
}

// Node is one node's side: where its addresses are published and who uses them.
// Calls for one node come from one goroutine at a time.
type Node interface {
	eni.Node
	// Reconciled is called with how the node does after every pass, and in one
	// whose calls wait long for the cloud's rate limit.
	Reconciled(eni.Status)
	// Committed lists what whoever works for the node recorded as about to
	// leave, and what the cloud did not take yet: see eni.Fleet.
	Committed() []eni.Release
}

// Observer is told of everything that is done, for metrics, from many
// goroutines at once. Its methods must be quick.
type Observer interface {
	// Acted is called after each action or observation of a node. The action
	// names its subnet, also for Assign. The class is Unknown when err is nil.
	Acted(node string, a plan.Action, class cloud.Class, err error, took time.Duration)
	// Listed is called after each full listing.
	Listed(took time.Duration, err error)
	// Collected is called after each look for what vanished instances left.
	Collected(found eni.Collected)
}

func (c *Config) withDefaults() error {
	var errs []error
	if c.Cluster == "" {
		errs = append(errs, errors.New("Cluster: want the cluster's name, by which ENIs are known as ours"))
	}
	if c.Cloud == nil {
		errs = append(errs, errors.New("Cloud: want one"))
	}
	if c.Clock == nil {
		c.Clock = clock.Real{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Timing = c.Timing.WithDefaults()
	return errors.Join(errs...)
}
