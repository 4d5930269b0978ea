package eni

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
)

// Listing is the cloud's description of a node at one moment.
type Listing struct {
	At   time.Time   // start of the call
	ENIs []cloud.ENI // the node's ENIs in the part named by Of
	Of   Part

	InstanceType string // like those below, empty if not in the listing
	VPCID, Zone  string
}

// Part says which of a node's ENIs a listing covers.
type Part int

// The parts.
const (
	OnInstance Part = 1 << iota
	Detached        // Berth's detached ENIs with the tag of the instance

	Whole = OnInstance | Detached
)

// covers reports whether the listing would include an ENI in its known state.
func (l Listing) covers(k *known) bool {
	if k.Attachment == nil {
		return l.Of&Detached != 0
	}
	return l.Of&OnInstance != 0
}

// since reports whether there is a listing, and it is not older than any of the given times.
func (l Listing) since(times ...time.Time) bool {
	return !l.At.IsZero() && !slices.ContainsFunc(times, l.At.Before)
}

// Lister makes the observations of a reconciler. In node mode each method makes a call; in a process that serves
// many nodes they share calls. Errors wrap those of the cloud.
type Lister interface {
	// List lists the ENIs of an instance, as of since or later. A context with a positive cloud.Priority is that of a
	// node without free addresses.
	List(ctx context.Context, instanceID string, since time.Time) (Listing, error)
	// Look describes one ENI, as of the call or later. The list is empty if the ENI does not exist.
	Look(ctx context.Context, eniID string) (list []cloud.ENI, at time.Time, err error)
	// Instance describes an instance; the error is of class Gone if it does not exist.
	Instance(ctx context.Context, id string) (cloud.Instance, error)
	// FirstType returns the type of an instance for a node's first observation, with the errors of Instance. It may be as
	// old as the listing.
	FirstType(ctx context.Context, id string) (string, error)
	// Subnets updates the free counts in the catalog, and returns the time as of which they are valid.
	Subnets(ctx context.Context, q placement.Query) (at time.Time, err error)
}

// ownLister makes a call for each request, because there is only one node.
type ownLister struct {
	cfg            *Config
	first          cloud.Instance // description of the instance, if any; its type and location never change
	listedDetached bool           // detached ENIs have been listed
	kept           Listing        // the first listing, while another call that it needs fails
}

// List implements Lister. At a cold start, when many nodes may call simultaneously, it lists only the ENIs attached
// to the instance, until the reconciler has called listDetached. It describes the instance only while its type is
// unknown, or when a listing lacks its primary ENI: the instance may not exist.
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

// listDetached lists Berth's detached ENIs with the tag of the instance.
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

// FirstType implements Lister.
func (o *ownLister) FirstType(ctx context.Context, id string) (string, error) {
	in, err := o.Instance(ctx, id)
	return in.Type, err
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
