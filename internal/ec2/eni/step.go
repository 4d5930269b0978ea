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

// step is an action with everything that its cloud call takes, so that a throttled one can be made
// again exactly as it was.
type step struct {
	plan.Action
	withdrawn []netip.Prefix         // Unassign: what was withdrawn
	intent    Intent                 // Create, CreateTrunk
	reserved  *placement.Reservation // those, Assign: the addresses of the subnet; nil: none
	priority  cloud.Priority         // of its call
	tidies    bool                   // no pod needs it: a move's Assign, or what a trunk takes
	lost      bool                   // Create, CreateTrunk: the reply of an earlier call was lost
	doubtful  string                 // Create, CreateTrunk: the ENI that a reply named which does not fit
}

// creates reports whether a step creates an ENI.
func (p *step) creates() bool { return p.Kind == plan.Create || p.Kind == plan.CreateTrunk }

// attaches reports whether a step attaches an ENI.
func (p *step) attaches() bool { return p.Kind == plan.Attach || p.Kind == plan.AttachTrunk }

// returns reports whether a step takes something from the node.
func (p *step) returns() bool { return p.Kind == plan.Unassign || p.Kind == plan.Detach }

// creations keeps the creation that is in flight recorded until its result is known, so that neither a
// lost reply nor a crash leaves an ENI behind. It belongs to the goroutine that reconciles.
type creations struct {
	cfg     *Config
	view    *view
	resumed bool // what the last process recorded was looked for
}

// begin records the request for a new ENI: all tags and addresses in the one call.
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

// resume returns the step that repeats a creation of the last process; nil: there is none, or its ENI
// is in view. The token makes the repeat return the ENI of the first call. Intents older than an hour
// are dropped: listings do not trail that long, and tokens expire.
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
