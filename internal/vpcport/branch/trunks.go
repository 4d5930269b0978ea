package branch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/mac"
)

// trunk is the trunk of an instance.
type trunk struct {
	ID, Instance   string
	MAC            mac.Addr
	Zone, SubnetID string
	Groups         []string
}

// listAgain is the minimum time between two listings of trunks.
const listAgain = 2 * time.Second

// trunks caches the trunks of the cluster in the VPC, which one listing returns.
type trunks struct {
	s Settings

	// listing is a semaphore that allows one listing at a time. It has an element while it is free, and guards at. Other callers wait for
	// the result or for the end of their contexts.
	listing chan struct{}
	at      time.Time // when the last listing began

	mu         sync.Mutex // guards the fields below; not held during calls
	byInstance map[string]*trunk
	byID       map[string]*trunk
}

func newTrunks(s Settings) *trunks {
	t := &trunks{s: s, listing: make(chan struct{}, 1)}
	t.listing <- struct{}{}
	return t
}

// missing returns the message about an instance without a trunk.
func (t *trunks) missing(instance string) string {
	return fmt.Sprintf("instance %s has no attached trunk interface of cluster %s in VPC %s: its NodeNetwork needs spec.eni.trunk, and its type must support branch interfaces", instance, t.s.Cluster, t.s.VPC)
}

// of returns the trunk of an instance.
func (t *trunks) of(ctx context.Context, instance string) (*trunk, bool, error) {
	known := func() (*trunk, bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		found := t.byInstance[instance]
		return found, found != nil
	}
	if found, ok := known(); ok {
		return found, true, nil
	}
	if err := t.list(ctx); err != nil {
		return nil, false, err
	}
	found, ok := known()
	return found, ok, nil
}

// byIDs returns trunks by ID. It leaves out those that do not exist.
func (t *trunks) byIDs(ctx context.Context, ids []string) (map[string]*trunk, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	known := func() (map[string]*trunk, bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		out := map[string]*trunk{}
		all := true
		for _, id := range ids {
			if found := t.byID[id]; found != nil {
				out[id] = found
			} else {
				all = false
			}
		}
		return out, all
	}
	if out, all := known(); all {
		return out, nil
	}
	if err := t.list(ctx); err != nil {
		return nil, err
	}
	out, _ := known()
	return out, nil
}

// forget drops the trunk of an instance from the cache.
func (t *trunks) forget(instance string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found := t.byInstance[instance]; found != nil {
		delete(t.byInstance, instance)
		delete(t.byID, found.ID)
	}
}

// list lists the trunks at EC2, unless the last listing is recent.
func (t *trunks) list(ctx context.Context) error {
	select {
	case <-t.listing:
		defer func() { t.listing <- struct{}{} }()
	case <-ctx.Done():
		return classified(opENIs, fmt.Errorf("wait for the trunks of cluster %s: %w", t.s.Cluster, context.Cause(ctx)))
	}
	now := t.s.Clock.Now()
	if !t.at.IsZero() && now.Sub(t.at) < listAgain {
		return nil
	}
	list, err := t.s.Cloud.ENIs(ctx, cloud.ENIFilter{
		VPCID: t.s.VPC, Types: []cloud.InterfaceType{cloud.InterfaceTrunk},
		Tags: map[string]string{eni.TagCluster: t.s.Cluster, eni.TagOwner: eni.Owner},
	})
	if err != nil {
		return classified(opENIs, fmt.Errorf("list the trunks of cluster %s: %w", t.s.Cluster, err))
	}
	byInstance, byID := map[string]*trunk{}, map[string]*trunk{}
	for _, e := range list {
		if found := trunkOf(e); found != nil {
			if other := byInstance[found.Instance]; other == nil || found.ID < other.ID {
				byInstance[found.Instance] = found
			}
			byID[found.ID] = found
		}
	}
	t.at = now
	t.mu.Lock()
	t.byInstance, t.byID = byInstance, byID
	t.mu.Unlock()
	return nil
}

// trunkOf converts an ENI to a trunk; nil if it cannot have branches.
func trunkOf(e cloud.ENI) *trunk {
	if e.Type != cloud.InterfaceTrunk || e.Attachment == nil || e.Attachment.Status != "attached" {
		return nil
	}
	return &trunk{ID: e.ID, Instance: e.Attachment.InstanceID, MAC: mac.Addr(e.MAC), Zone: e.Zone, SubnetID: e.SubnetID, Groups: e.Groups}
}
