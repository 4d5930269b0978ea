package eni

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/failpoint"
)

var _ = failpoint.Register(
	"eni.create.before", "eni.create.after", "eni.attach.before", "eni.attach.after",
	"eni.assign.before", "eni.assign.after", "eni.unassign.before", "eni.unassign.after",
	"eni.detach.before", "eni.detach.after", "eni.delete.before", "eni.delete.after",
	"eni.set-deletion.before", "eni.set-deletion.after", "eni.tag.before", "eni.tag.after",
	"eni.collect.before", "eni.collect.after",
)

// change makes a change in the cloud between its two failpoints.
func change(kind plan.Kind, call func() error) error {
	return failpoint.Around("eni."+string(kind), call)
}

// actor makes changes in the cloud, one at a time, and processes the replies: replies validates them, and the view
// records them. Failures are in failures.go. It belongs to the reconciler's goroutine.
type actor struct {
	cfg       *Config
	view      *view
	replies   *replies
	observer  *observer
	retries   *retries
	refusals  *refusals
	placement *placement.Selector
	releases  *releases
	creations *creations
	publisher *publisher
	demand    *demand
	surplus   *surplus
	report    func() // updates the status during a step
}

// act makes a step's call, and records its reply as the observed state.
func (a *actor) act(ctx context.Context, p *step) error {
	if p.lost {
		p.priority = cloud.Begun
	}
	ctx, cancel := context.WithTimeout(cloud.WithPriority(ctx, p.priority), callTimeout)
	defer cancel()
	if p.tidies {
		var done func()
		ctx, done = a.demand.recallable(ctx)
		defer done()
	}
	switch p.Kind {
	case plan.FindSubnets:
		return a.placement.FindSubnets(ctx)
	case plan.FindRoutes:
		return a.placement.FindRoutes(ctx)
	case plan.FindGroups:
		_, err := a.placement.FindGroups(ctx)
		return err
	case plan.Create, plan.CreateTrunk:
		return a.create(ctx, p)
	}
	k, ok := a.view.enis[p.ENI]
	if !ok {
		return gone(string(p.Kind), "%s is gone", p.ENI)
	}
	switch p.Kind {
	case plan.Attach, plan.AttachTrunk:
		return a.attach(ctx, p, k)
	case plan.Assign:
		return a.assign(ctx, p, k)
	case plan.Unassign:
		return a.unassign(ctx, p, k)
	case plan.Detach, plan.DetachTrunk:
		return a.detach(ctx, k)
	case plan.Delete:
		return a.delete(ctx, k)
	case plan.Retag:
		return a.tag(ctx, k)
	case plan.SetGroups:
		return a.setGroups(ctx, k)
	default:
		return fmt.Errorf("unknown step: %v", p.Action)
	}
}

func (a *actor) create(ctx context.Context, p *step) error {
	if p.reserved == nil { // resumed after a restart
		p.reserved = a.subnets().Reserve(p.Subnet, p.Weight())
	}
	var made cloud.ENI
	err := change(plan.Create, func() (err error) {
		made, err = a.cfg.Cloud.CreateENI(ctx, p.intent.Request)
		return err
	})
	if err != nil {
		return err
	}
	if err := a.replies.created(made, p.intent.Request); err != nil {
		p.doubtful = made.ID
		return err
	}
	if len(made.Tags) == 0 { // the reply may omit them
		made.Tags = p.intent.Request.Tags
	}
	made.Type = cmp.Or(made.Type, p.intent.Request.Type) // as above
	p.reserved.End(p.Weight())
	a.view.created(factsOf(made, a.cfg.Cluster), a.cfg.Clock.Now())
	return nil
}

// attach does not wait: the addresses become assignable when the data path reports the link.
func (a *actor) attach(ctx context.Context, p *step, k *known) error {
	var id string
	err := change(plan.Attach, func() (err error) {
		id, err = a.cfg.Cloud.AttachENI(ctx, k.ID, a.cfg.InstanceID, p.Index)
		return err
	})
	if err != nil {
		return err
	}
	if err := a.replies.attached(k, id); err != nil {
		return err
	}
	now := a.cfg.Clock.Now()
	a.view.attached(k, cloud.Attachment{ID: id, InstanceID: a.cfg.InstanceID, DeviceIndex: p.Index, Status: "attaching"}, now)
	a.view.freshness.given(now)
	a.refusals.attached(p.Kind)
	a.creations.end()
	a.publisher.changed()
	return nil
}

func (a *actor) assign(ctx context.Context, p *step, k *known) error {
	var given []netip.Prefix
	err := change(plan.Assign, func() (err error) {
		given, err = a.cfg.Cloud.AssignAddresses(ctx, k.ID, p.Amount)
		return err
	})
	if err != nil {
		return err
	}
	if err := a.replies.assigned(k, given); err != nil {
		return err
	}
	p.reserved.End(p.Weight())
	now := a.cfg.Clock.Now()
	k.assigned(given, now)
	a.view.freshness.given(now)
	a.publisher.changed()
	return nil
}

func (a *actor) unassign(ctx context.Context, p *step, k *known) error {
	err := change(plan.Unassign, func() error { return a.cfg.Cloud.UnassignAddresses(ctx, k.ID, p.withdrawn) })
	if err != nil {
		return err
	}
	k.unassigned(p.withdrawn, a.cfg.Clock.Now())
	a.subnets().Returned(k.SubnetID, p.Weight())
	a.publisher.changed()
	return nil
}

func (a *actor) detach(ctx context.Context, k *known) error {
	err := change(plan.Detach, func() error { return a.cfg.Cloud.DetachENI(ctx, k.Attachment.ID) })
	if err != nil {
		return err
	}
	a.view.detached(k, a.cfg.Clock.Now())
	a.publisher.changed()
	return nil
}

func (a *actor) delete(ctx context.Context, k *known) error {
	if !k.listed { // known only from a reply, which may be wrong; a listing shows it if it exists and is ours
		a.forget(k.ID)
		return nil
	}
	err := change(plan.Delete, func() error { return a.cfg.Cloud.DeleteENI(ctx, k.ID) })
	if err != nil && cloud.ClassOf(err) != cloud.Gone {
		return err
	}
	a.forget(k.ID)
	a.view.wasDeleted(k.ID, a.cfg.Clock.Now())
	a.subnets().Returned(k.SubnetID, 1+plan.Count(cloud.AmountOf(k.held)))
	return nil
}

func (a *actor) forget(id string) {
	a.view.forget(id)
	a.creations.end()
}

func (a *actor) tag(ctx context.Context, k *known) error {
	tags := map[string]string{TagInstanceID: a.cfg.InstanceID}
	if !k.owner.tagged { // adopted
		tags[TagCluster], tags[TagOwner] = a.cfg.Cluster, Owner
	}
	if err := change(plan.Retag, func() error { return a.cfg.Cloud.Tag(ctx, k.ID, tags) }); err != nil {
		return err
	}
	k.tagged(a.cfg.InstanceID)
	return nil
}

// setGroups sets the security groups of an ENI to the primary's. Repeating it is harmless, so nothing is
// recorded before or after.
func (a *actor) setGroups(ctx context.Context, k *known) error {
	primary, ok := a.view.primary()
	if !ok {
		return gone("ModifyNetworkInterfaceAttribute", "instance %s has no primary ENI", a.cfg.InstanceID)
	}
	if err := a.cfg.Cloud.SetGroups(ctx, k.ID, primary.Groups); err != nil {
		return err
	}
	k.regrouped(primary.Groups, a.cfg.Clock.Now())
	return nil
}

func (a *actor) subnets() *placement.Subnets { return a.cfg.Shared.Catalog.Subnets }
