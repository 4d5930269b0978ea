package eni

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// step is an action with all inputs of its cloud call, so that a throttled one can be repeated exactly.
type step struct {
	plan.Action
	withdrawn []netip.Prefix         // Unassign: the withdrawn addresses
	intent    Intent                 // Create, CreateTrunk
	reserved  *placement.Reservation // Create, CreateTrunk, Assign: addresses reserved in the subnet; may be nil
	priority  cloud.Priority         // priority of the call
	tidies    bool                   // no pod needs it: part of a move, or for a trunk
	lost      bool                   // Create, CreateTrunk: the reply of an earlier call was lost
	doubtful  string                 // Create, CreateTrunk: ENI ID in an impossible reply
}

// creates reports whether a step creates an ENI.
func (p *step) creates() bool { return p.Kind == plan.Create || p.Kind == plan.CreateTrunk }

// attaches reports whether a step attaches an ENI.
func (p *step) attaches() bool { return p.Kind == plan.Attach || p.Kind == plan.AttachTrunk }

// returns reports whether a step takes something from the node.
func (p *step) returns() bool { return p.Kind == plan.Unassign || p.Kind == plan.Detach }

// creations keeps the creation in flight recorded until its result is known, so that neither a lost reply nor a crash
// leaks an ENI. It belongs to the reconciler's goroutine.
type creations struct {
	cfg     *Config
	view    *view
	resumed bool // the last process's record has been read
}

// begin records the request for a new ENI, with all tags and addresses in one call.
func (c *creations) begin(a plan.Action, groups []string, now time.Time) (Intent, error) {
	q := cloud.CreateENI{
		SubnetID: a.Subnet, Groups: groups, Description: Description(c.cfg.InstanceID),
		Tags: c.cfg.creationTags(now), ClientToken: "berth-" + rand.Text(),
		Amount: a.Amount,
	}
	if a.Kind == plan.CreateTrunk {
		q.Type = cloud.InterfaceTrunk
	}
	i := Intent{Index: a.Index, At: now, Request: q}
	if err := c.cfg.Intents.Save(i); err != nil {
		return i, fmt.Errorf("record the intent to %v: %w", a, err)
	}
	return i, nil
}

// end drops the record: the result is known, or there will be none.
func (c *creations) end() {
	if err := c.cfg.Intents.Clear(); err != nil {
		c.cfg.Logger.Warn("intent not cleared", "err", err)
	}
}

// resume returns the step that repeats a creation of the last process; nil if there is none, or its ENI is in view.
// With the same client token, EC2 returns the ENI of the first call. Intents older than an hour are dropped: listings
// do not lag that long, and tokens expire.
func (c *creations) resume() *step {
	now := c.cfg.Clock.Now()
	intent, ok, err := c.cfg.Intents.Load()
	c.resumed = true
	if err != nil {
		c.cfg.Logger.Warn("intent unreadable; the ENI, if any, is found by its tags", "err", err)
		ok = false
	}
	created := intent.Request.Tags[TagCreatedAt]
	for _, k := range c.view.enis {
		if k.owner.createdTag == created {
			ok = false
		}
	}
	if !ok || now.Sub(intent.At) > time.Hour || intent.Request.Tags[TagInstanceID] != c.cfg.InstanceID {
		c.end()
		return nil
	}
	q := intent.Request
	return &step{
		Action: plan.Action{Kind: plan.Create, Subnet: q.SubnetID, Index: intent.Index, Amount: q.Amount},
		intent: intent, priority: cloud.Begun, lost: true,
	}
}
