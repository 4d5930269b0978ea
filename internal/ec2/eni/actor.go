package eni

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
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

// change makes a change at the cloud between its two failpoints.
func change(kind plan.Kind, call func() error) error {
	return failpoint.Around("eni."+string(kind), call)
}

// act makes a step's one change at the cloud and takes its reply for the truth.
func (r *Reconciler) act(ctx context.Context, p *step) error {
	if p.lost {
		p.priority = cloud.Begun
	}
	ctx, cancel := context.WithTimeout(cloud.WithPriority(ctx, p.priority), callTimeout)
	defer cancel()
	if p.tidies && r.process.recalls {
		var done func()
		ctx, done = r.recallable(ctx)
		defer done()
	}
	if p.Kind == plan.FindSubnets {
		return r.placement.findSubnets(ctx)
	}
	if p.Kind == plan.FindRoutes {
		return r.placement.findRoutes(ctx)
	}
	if p.Kind == plan.FindGroups {
		_, err := r.placement.groups(ctx)
		return err
	}
	if p.creates() {
		return r.create(ctx, p)
	}
	k, ok := r.view.enis[p.ENI]
	if !ok {
		return gone(string(p.Kind), "%s is gone", p.ENI)
	}
	switch p.Kind {
	case plan.Attach, plan.AttachTrunk:
		return r.attach(ctx, p, k)
	case plan.Assign:
		return r.assign(ctx, p, k)
	case plan.Unassign:
		return r.unassign(ctx, p, k)
	case plan.Detach, plan.DetachTrunk:
		return r.detach(ctx, k)
	case plan.Delete:
		return r.delete(ctx, k)
	case plan.Retag:
		return r.tag(ctx, k)
	case plan.SetGroups:
		return r.setGroups(ctx, k)
	default:
		return fmt.Errorf("no such step: %v", p.Action)
	}
}

func (r *Reconciler) create(ctx context.Context, p *step) error {
	if p.reserved == nil { // resumed
		p.reserved = r.cfg.Shared.Subnets.reserve(p.Subnet, p.Weight())
	}
	var made cloud.ENI
	err := change(plan.Create, func() (err error) {
		made, err = r.cfg.Cloud.CreateENI(ctx, p.intent.Request)
		return err
	})
	if err != nil {
		return err
	}
	blocks := r.cfg.Shared.Subnets.blocks(p.Subnet)
	native := r.cfg.Shared.Subnets.native(p.Subnet)
	if err := r.view.checkCreated(made, p.intent.Request, r.cfg.InstanceID, blocks, native); err != nil {
		p.doubtful = made.ID
		return err
	}
	if len(made.Tags) == 0 { // a reply may leave them out
		made.Tags = p.intent.Request.Tags
	}
	made.Type = cmp.Or(made.Type, p.intent.Request.Type) // likewise
	k := newKnown(factsOf(made, r.cfg.Cluster))
	if err := r.checkOthers("CreateNetworkInterface", k.ID, k.SubnetID, append(k.kept(), ownAddress(k.Primary)...)); err != nil {
		p.doubtful = made.ID
		return err
	}
	p.reserved.end(p.Weight())
	k.replied = r.cfg.Clock.Now()
	k.assigned(k.held, k.replied)
	r.view.enis[k.ID] = k
	return nil
}

// attach needs no waiting: the addresses become assignable when the data path
// reports the link.
func (r *Reconciler) attach(ctx context.Context, p *step, k *known) error {
	var id string
	err := change(plan.Attach, func() (err error) {
		id, err = r.cfg.Cloud.AttachENI(ctx, k.ID, r.cfg.InstanceID, p.Index)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.view.checkAttached(k, id); err != nil {
		return err
	}
	// DeleteOnTermination is off after an attachment by API (EC2 API
	// Reference, NetworkInterfaceAttachment); the plan sees that and has it set.
	k.Attachment = &cloud.Attachment{ID: id, InstanceID: r.cfg.InstanceID, DeviceIndex: p.Index, Status: "attaching"}
	k.replied, k.attachUnresolved = r.cfg.Clock.Now(), false
	r.confidence.replied, r.attachmentsBy(p.Kind).abandoned = k.replied, 0
	r.forgetIntent()
	_ = r.publish(ctx)
	return nil
}

func (r *Reconciler) assign(ctx context.Context, p *step, k *known) error {
	var given []netip.Prefix
	err := change(plan.Assign, func() (err error) {
		given, err = r.cfg.Cloud.AssignAddresses(ctx, k.ID, p.Amount)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.view.checkAssigned(k, given, r.cfg.Shared.Subnets.blocks(k.SubnetID)); err != nil {
		return err
	}
	if err := r.checkOthers(assignOp(given), k.ID, k.SubnetID, given); err != nil {
		return err
	}
	p.reserved.end(p.Weight())
	r.confidence.replied = r.cfg.Clock.Now()
	k.assigned(given, r.confidence.replied)
	_ = r.publish(ctx)
	return nil
}

func (r *Reconciler) unassign(ctx context.Context, p *step, k *known) error {
	err := change(plan.Unassign, func() error { return r.cfg.Cloud.UnassignAddresses(ctx, k.ID, p.withdrawn) })
	if err != nil {
		return err
	}
	k.unassigned(p.withdrawn, r.cfg.Clock.Now())
	r.cfg.Shared.Subnets.returned(k.SubnetID, p.Weight())
	_ = r.publish(ctx)
	return nil
}

func (r *Reconciler) detach(ctx context.Context, k *known) error {
	err := change(plan.Detach, func() error { return r.cfg.Cloud.DetachENI(ctx, k.Attachment.ID) })
	if err != nil {
		return err
	}
	at := *k.Attachment
	at.Status = "detaching"
	k.Attachment, k.replied, k.attachUnresolved = &at, r.cfg.Clock.Now(), false
	delete(r.view.detaching, k.ID)
	r.lookups.at[k.ID] = k.replied.Add(time.Second)
	_ = r.publish(ctx)
	return nil
}

func (r *Reconciler) delete(ctx context.Context, k *known) error {
	if !k.listed { // only a reply named it, perhaps wrongly: if it exists and is ours, a listing shows it
		r.forget(k.ID)
		return nil
	}
	err := change(plan.Delete, func() error { return r.cfg.Cloud.DeleteENI(ctx, k.ID) })
	if err != nil && cloud.ClassOf(err) != cloud.Gone {
		return err
	}
	r.forget(k.ID)
	r.view.deleted[k.ID] = r.cfg.Clock.Now()
	r.cfg.Shared.Subnets.returned(k.SubnetID, 1+plan.Count(cloud.AmountOf(k.held)))
	return nil
}

// forget ends all that is known of an ENI that is not attached.
func (r *Reconciler) forget(id string) {
	delete(r.view.enis, id)
	r.lookups.forget(id)
	delete(r.links.flips, id)
	delete(r.view.detaching, id)
	r.forgetIntent()
}

func (r *Reconciler) tag(ctx context.Context, k *known) error {
	tags := map[string]string{TagInstanceID: r.cfg.InstanceID}
	if err := change(plan.Retag, func() error { return r.cfg.Cloud.Tag(ctx, k.ID, tags) }); err != nil {
		return err
	}
	k.instanceTag = r.cfg.InstanceID
	return nil
}
