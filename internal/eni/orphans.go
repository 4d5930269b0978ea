package eni

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

// ENIs that an instance left behind when it vanished in the middle of a change
// are nobody's: every node of the cluster looks for them now and then, at its
// own random times, and deletes those that are old enough.

// collectPause is when orphans are looked at again after pods that wait for
// addresses of this node took precedence.
const collectPause = 10 * time.Second

func (r *Reconciler) collectDue(now time.Time) bool {
	return !r.cfg.NoCollection && !r.collectAt.IsZero() && !r.collectAt.After(now) && !r.closed(gateCollect, now)
}

func (r *Reconciler) collect(ctx context.Context) {
	start := r.cfg.Clock.Now()
	r.collectAt = start.Add(r.cfg.jitter(r.cfg.CollectInterval))
	n, err := r.deleteOrphans(ctx, start)
	r.told(Collect, err, start)
	if err != nil {
		class := cloud.ClassOf(err)
		r.fail(gateCollect, Collect, err, r.cfg.Clock.Now(), r.waitAfter(gateCollect, class))
		if class == cloud.Throttled || class == cloud.Transient {
			r.collectAt = r.gates[gateCollect].until
		}
		return
	}
	r.heal(gateCollect)
	if n > 0 {
		r.cfg.Logger.Info("deleted ENIs of vanished instances", "count", n)
	}
}

func (r *Reconciler) deleteOrphans(ctx context.Context, now time.Time) (deleted int, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	list, err := r.cfg.Cloud.ENIs(ctx, cloud.ENIFilter{Status: "available", Tags: map[string]string{TagCluster: r.cfg.Cluster}})
	if err != nil {
		return 0, fmt.Errorf("list detached ENIs of cluster %s: %w", r.cfg.Cluster, err)
	}
	old := slices.DeleteFunc(list, func(e cloud.ENI) bool { return !r.orphanable(e, now) })
	if len(old) == 0 {
		return 0, nil
	}
	alive, err := r.alive(ctx, old)
	if err != nil {
		return 0, err
	}
	slices.SortFunc(old, func(x, y cloud.ENI) int { return cmp.Compare(x.ID, y.ID) })
	var first error
	for _, e := range old {
		if alive[e.Tags[TagInstanceID]] {
			continue
		}
		if r.cfg.Node.Usage().Waiting > 0 {
			r.collectAt = now.Add(collectPause)
			break
		}
		err := around(Collect, func() error { return r.cfg.Cloud.DeleteENI(ctx, e.ID) })
		switch class := cloud.ClassOf(err); {
		case err == nil, class == cloud.Gone:
			deleted++
		case class == cloud.Throttled || ctx.Err() != nil:
			return deleted, fmt.Errorf("delete %s of vanished instance %s: %w", e.ID, e.Tags[TagInstanceID], err)
		case first == nil: // one that cannot go keeps no other
			first = fmt.Errorf("delete %s of vanished instance %s: %w", e.ID, e.Tags[TagInstanceID], err)
		}
	}
	return deleted, first
}

// orphanable tells whether an ENI may be looked at as an orphan: made by Berth
// for another instance, long ago, and still detached. One without a known age is left alone.
func (r *Reconciler) orphanable(e cloud.ENI, now time.Time) bool {
	made := createdAt(e)
	owner := e.Tags[TagInstanceID]
	return ours(e, r.cfg.Cluster) && e.Attachment == nil && owner != "" && owner != r.cfg.InstanceID &&
		!made.IsZero() && now.Sub(made) >= r.cfg.OrphanAge
}

// alive tells which of the ENIs' instances still exist. A stopped one does: it
// may start again and its own daemon will see to its ENIs.
func (r *Reconciler) alive(ctx context.Context, enis []cloud.ENI) (map[string]bool, error) {
	var ids []string
	for _, e := range enis {
		if id := e.Tags[TagInstanceID]; !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	list, err := r.cfg.Cloud.Instances(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("describe the instances of detached ENIs: %w", err)
	}
	alive := map[string]bool{}
	for _, in := range list {
		alive[in.ID] = in.State != "terminated" && in.State != "shutting-down"
	}
	return alive, nil
}
