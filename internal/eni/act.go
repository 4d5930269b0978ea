package eni

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
	"github.com/berthnet/berth/internal/failpoint"
)

var _ = failpoint.Register(
	"eni.create.before", "eni.create.after", "eni.attach.before", "eni.attach.after",
	"eni.assign.before", "eni.assign.after", "eni.unassign.before", "eni.unassign.after",
	"eni.detach.before", "eni.detach.after", "eni.delete.before", "eni.delete.after",
	"eni.set-deletion.before", "eni.set-deletion.after", "eni.tag.before", "eni.tag.after",
	"eni.collect.before", "eni.collect.after",
)

// around makes a change at the cloud between its two failpoints.
func around(kind plan.Kind, call func() error) error {
	return failpoint.Around("eni."+string(kind), call)
}

// act makes a step's one change at the cloud and takes its reply for the truth.
func (r *Reconciler) act(ctx context.Context, p *step) error {
	if p.lost {
		p.priority = cloud.Begun
	}
	ctx, cancel := context.WithTimeout(cloud.WithPriority(ctx, p.priority), r.cfg.CallTimeout)
	defer cancel()
	if p.tidies && r.passive {
		var done func()
		ctx, done = r.recallable(ctx)
		defer done()
	}
	if p.Kind == plan.FindSubnets {
		return r.findSubnets(ctx)
	}
	if p.Kind == plan.FindRoutes {
		return r.findRoutes(ctx)
	}
	if p.Kind == plan.Create {
		return r.create(ctx, p)
	}
	k, ok := r.view.enis[p.ENI]
	if !ok {
		return &cloud.Error{Class: cloud.Gone, Op: string(p.Kind), Message: p.ENI + " is gone"}
	}
	switch p.Kind {
	case plan.Attach:
		return r.attach(ctx, p, k)
	case plan.Assign:
		return r.assign(ctx, p, k)
	case plan.Unassign:
		return r.unassign(ctx, p, k)
	case plan.Detach:
		return r.detach(ctx, k)
	case plan.Delete:
		return r.delete(ctx, k)
	case plan.Retag:
		return r.tag(ctx, k)
	default:
		return fmt.Errorf("no such step: %v", p.Action)
	}
}

func (r *Reconciler) create(ctx context.Context, p *step) error {
	if p.hold == nil { // resumed
		p.hold = r.cfg.Subnets.reserve(p.Subnet, p.Weight())
	}
	var made cloud.ENI
	err := around(plan.Create, func() (err error) {
		made, err = r.cfg.Cloud.CreateENI(ctx, p.intent.Request)
		return err
	})
	if err != nil {
		return err
	}
	subnet, _ := r.cfg.Subnets.CIDR(p.Subnet)
	if err := r.view.checkCreated(made, p.intent.Request, r.cfg.InstanceID, subnet); err != nil {
		p.doubtful = made.ID
		return err
	}
	if err := r.cfg.checkOthers("CreateNetworkInterface", made.ID, made.SubnetID, append(newKnown(made).held(), host(made.Primary))); err != nil {
		p.doubtful = made.ID
		return err
	}
	p.hold.end(p.Weight())
	k := newKnown(made)
	if len(k.Tags) == 0 { // a reply may leave them out
		k.Tags = p.intent.Request.Tags
	}
	k.replied = r.cfg.Clock.Now()
	k.assigned(k.held(), k.replied)
	r.view.enis[made.ID] = k
	return nil
}

// attach needs no waiting: the addresses become assignable when the data path
// reports the link.
func (r *Reconciler) attach(ctx context.Context, p *step, k *known) error {
	var id string
	err := around(plan.Attach, func() (err error) {
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
	k.Status, k.replied, k.attachUnresolved = "in-use", r.cfg.Clock.Now(), false
	r.confidence.replied, r.attachments.abandoned = k.replied, 0
	r.forgetIntent()
	r.publishLater(ctx)
	return nil
}

// publishLater is publish for steps that are done whether or not it is recorded:
// a failure is logged, and the next change or observation records it.
func (r *Reconciler) publishLater(ctx context.Context) { _ = r.publish(ctx) }

func (r *Reconciler) assign(ctx context.Context, p *step, k *known) error {
	var things []netip.Prefix
	err := around(plan.Assign, func() (err error) {
		things, err = r.cfg.Cloud.AssignAddresses(ctx, k.ID, p.Amount)
		return err
	})
	if err != nil {
		return err
	}
	subnet, _ := r.cfg.Subnets.CIDR(k.SubnetID)
	if err := r.view.checkAssigned(k, things, subnet); err != nil {
		return err
	}
	if err := r.cfg.checkOthers("AssignPrivateIpAddresses", k.ID, k.SubnetID, things); err != nil {
		return err
	}
	p.hold.end(p.Weight())
	r.confidence.replied = r.cfg.Clock.Now()
	k.assigned(things, r.confidence.replied)
	r.publishLater(ctx)
	return nil
}

func (r *Reconciler) unassign(ctx context.Context, p *step, k *known) error {
	err := around(plan.Unassign, func() error { return r.cfg.Cloud.UnassignAddresses(ctx, k.ID, p.withdrawn) })
	if err != nil {
		return err
	}
	k.unassigned(p.withdrawn, r.cfg.Clock.Now())
	r.cfg.Subnets.returned(k.SubnetID, p.Weight())
	r.publishLater(ctx)
	return nil
}

func (r *Reconciler) detach(ctx context.Context, k *known) error {
	err := around(plan.Detach, func() error { return r.cfg.Cloud.DetachENI(ctx, k.Attachment.ID) })
	if err != nil {
		return err
	}
	at := *k.Attachment
	at.Status = "detaching"
	k.Attachment, k.replied, k.attachUnresolved = &at, r.cfg.Clock.Now(), false
	delete(r.detaching, k.ID)
	r.lookups.at[k.ID] = k.replied.Add(time.Second)
	r.publishLater(ctx)
	return nil
}

func (r *Reconciler) delete(ctx context.Context, k *known) error {
	if !k.described { // a reply may name another's: if it is there and ours, a listing brings it back
		r.forget(k.ID)
		return nil
	}
	err := around(plan.Delete, func() error { return r.cfg.Cloud.DeleteENI(ctx, k.ID) })
	if err != nil && cloud.ClassOf(err) != cloud.Gone {
		return err
	}
	r.forget(k.ID)
	r.view.deleted[k.ID] = r.cfg.Clock.Now()
	r.cfg.Subnets.returned(k.SubnetID, 1+plan.Count(cloud.AmountOf(k.held())))
	return nil
}

// forget ends all that is known of an ENI that is not attached.
func (r *Reconciler) forget(id string) {
	delete(r.view.enis, id)
	r.lookups.forget(id)
	delete(r.detaching, id)
	r.forgetIntent()
}

func (r *Reconciler) tag(ctx context.Context, k *known) error {
	tags := map[string]string{TagInstanceID: r.cfg.InstanceID}
	if err := around(plan.Retag, func() error { return r.cfg.Cloud.Tag(ctx, k.ID, tags) }); err != nil {
		return err
	}
	k.Tags[TagInstanceID] = r.cfg.InstanceID
	return nil
}
