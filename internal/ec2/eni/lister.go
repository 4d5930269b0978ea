package eni

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
)

// Listing is what the cloud showed of one node at one moment.
type Listing struct {
	At   time.Time   // when the call began that showed it
	ENIs []cloud.ENI // the part of them that Of names
	Of   Part

	InstanceType string // empty, like those below, if the listing does not have it
	VPCID, Zone  string
}

// Part is which of a node's ENIs a listing has.
type Part int

// The parts.
const (
	OnInstance Part = 1 << iota
	Detached        // detached ENIs of ours with the tag of the instance

	Whole = OnInstance | Detached
)

// covers reports whether the listing would have an ENI that exists as known.
func (l Listing) covers(k *known) bool {
	if k.Attachment == nil {
		return l.Of&Detached != 0
	}
	return l.Of&OnInstance != 0
}

// since reports whether there is a listing, and it is not older than any of some times.
func (l Listing) since(times ...time.Time) bool {
	return !l.At.IsZero() && !slices.ContainsFunc(times, l.At.Before)
}

// Lister asks the cloud what a reconciler needs to know. In node mode each method makes a call; in a
// process that works for many nodes they share calls. Errors are the cloud's, wrapped.
type Lister interface {
	// List lists the ENIs of an instance, as of since or later.
	List(ctx context.Context, instanceID string, since time.Time) (Listing, error)
	// Look describes one ENI, as of the call or later. One that does not exist
	// is an empty list.
	Look(ctx context.Context, eniID string) (list []cloud.ENI, at time.Time, err error)
	// Instance describes an instance; one that does not exist is of class Gone.
	Instance(ctx context.Context, id string) (cloud.Instance, error)
	// Subnets updates the free counts in the catalog, and returns as of when
	// they are.
	Subnets(ctx context.Context, q placement.Query) (at time.Time, err error)
}

// ownLister makes a call for each question: there is one node.
type ownLister struct {
	cfg            *Config
	first          cloud.Instance // its description, if any; its type and place never change
	listedDetached bool           // detached ENIs were listed once
	kept           Listing        // the first one, while a further call that it needs fails
}

// List implements Lister. At a cold start, where many nodes may ask at once, it lists only what is on
// the instance, until the reconciler has called listDetached. The instance itself is described only
// while its type is not known, and when a listing lacks its primary ENI: it may not exist.
func (o *ownLister) List(ctx context.Context, instanceID string, _ time.Time) (l Listing, err error) {
	l = Listing{At: o.cfg.Clock.Now(), Of: OnInstance}
	ask := o.cfg.InstanceType == "" && o.first.ID != instanceID
	if !ask {
		if l.ENIs, err = o.cfg.Cloud.ENIs(ctx, cloud.ENIFilter{InstanceID: instanceID}); err != nil {
			return Listing{}, fmt.Errorf("list the ENIs of %s: %w", instanceID, err)
		}
		ask = !hasPrimary(l.ENIs)
	}
	if ask {
		in, err := o.cfg.Cloud.Instance(ctx, instanceID)
		if err != nil {
			return Listing{}, fmt.Errorf("describe instance %s: %w", instanceID, err)
		}
		o.first, l.ENIs = in, in.ENIs
	}
	if o.listedDetached {
		off, err := o.listDetached(ctx, instanceID)
		if err != nil {
			return Listing{}, err
		}
		l.ENIs, l.Of = append(l.ENIs, off.ENIs...), Whole
	}
	l.InstanceType, l.VPCID, l.Zone = o.first.Type, o.first.VPCID, o.first.Zone
	return l, nil
}

// listDetached lists the detached ENIs of ours with the tag of the instance.
func (o *ownLister) listDetached(ctx context.Context, instanceID string) (Listing, error) {
	l := Listing{At: o.cfg.Clock.Now(), Of: Detached}
	mine := map[string]string{TagCluster: o.cfg.Cluster, TagInstanceID: instanceID}
	var err error
	if l.ENIs, err = o.cfg.Cloud.ENIs(ctx, cloud.ENIFilter{Status: "available", Tags: mine}); err != nil {
		return Listing{}, fmt.Errorf("list detached ENIs of %s: %w", instanceID, err)
	}
	o.listedDetached = true
	return l, nil
}

// Look implements Lister.
func (o *ownLister) Look(ctx context.Context, eniID string) (list []cloud.ENI, at time.Time, err error) {
	at = o.cfg.Clock.Now()
	list, err = o.cfg.Cloud.ENIs(ctx, cloud.ENIFilter{IDs: []string{eniID}})
	if cloud.ClassOf(err) == cloud.Gone {
		return nil, at, nil
	}
	if err != nil {
		return nil, at, fmt.Errorf("describe %s: %w", eniID, err)
	}
	return list, at, nil
}

// Instance implements Lister.
func (o *ownLister) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	return o.cfg.Cloud.Instance(ctx, id)
}

// Subnets implements Lister.
func (o *ownLister) Subnets(ctx context.Context, q placement.Query) (time.Time, error) {
	now := o.cfg.Clock.Now()
	if len(q.IDs) > 0 {
		if err := o.cfg.Shared.Catalog.Subnets.Refresh(ctx, cloud.SubnetFilter{IDs: q.IDs}, now); err != nil {
			return time.Time{}, err
		}
	}
	if q.Any || len(q.Tags) > 0 {
		f := cloud.SubnetFilter{VPCID: q.VPCID, Zone: q.Zone, Tags: q.Tags}
		if err := o.cfg.Shared.Catalog.Subnets.Refresh(ctx, f, now); err != nil {
			return time.Time{}, err
		}
	}
	return now, nil
}
