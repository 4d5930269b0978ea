package eni

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// ENIs left behind by an instance that vanished during a change are orphans. Every node of the cluster searches for
// them regularly, at random times, and deletes those that it has seen detached for long enough. The tag with their
// creation time is not used, because anyone can write it.

// collectPause is how long the collection of orphans is postponed while pods wait for addresses.
const collectPause = 10 * time.Second

// orphans schedules the searches of a node, and remembers their findings. It belongs to the reconciler's goroutine.
type orphans struct {
	cfg     *Config
	retries *retries
	at      time.Time // zero means never
	seen    Sightings // detached ENIs of other instances
}

// begin schedules the first search after the first observation of the node.
func (o *orphans) begin(observed time.Time) {
	if o.cfg.process.collects && o.at.IsZero() && !observed.IsZero() {
		o.at = observed.Add(time.Duration(o.cfg.Rand.Int64N(int64(o.cfg.CollectInterval))))
	}
}

func (o *orphans) collectDue(now time.Time) bool {
	return !o.at.IsZero() && !o.at.After(now) && !o.retries.blocked(activityCollect, now)
}

// due returns when to search next.
func (o *orphans) due(now time.Time) time.Time { return retry.Earliest(now, o.at) }

// collect searches for orphans once.
func (o *orphans) collect(ctx context.Context) {
	cfg, start := o.cfg, o.cfg.Clock.Now()
	o.at = start.Add(o.retries.stretch.after(cfg.CollectInterval, cfg.jitter))
	c := Collector{
		Cloud: cfg.Cloud, Cluster: cfg.Cluster, MinAge: cfg.OrphanAge, Seen: o.seen,
		Alive: func(id string) bool { return id == cfg.InstanceID },
		Pause: func() bool { return cfg.Node.Usage().Waiting > 0 },
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := c.Collect(call, start)
	if found.Paused {
		o.at = start.Add(collectPause)
	}
	if due := o.seen.Due(start, cfg.OrphanAge); !due.IsZero() && due.Before(o.at) {
		o.at = due
	}
	cfg.acted(plan.Action{Kind: plan.Collect}, err, start)
	cfg.Observer.Collected(found)
	throttled := cloud.ClassOf(err) == cloud.Throttled
	if found.Deleted+found.Refused == 0 && (err == nil || throttled) { // calls that only search
		o.retries.stretch.took(cfg.Clock.Now().Sub(start))
	}
	if throttled {
		o.retries.forget(activityCollect) // nothing waits for it
		return
	}
	if err != nil {
		o.retries.backOff(plan.Collect, err, cfg.Clock.Now())
		if class := cloud.ClassOf(err); class == cloud.Transient {
			o.at, _ = o.retries.until(activityCollect)
		}
		return
	}
	o.retries.succeed(activityCollect)
	if found.Deleted > 0 {
		cfg.Logger.Info("deleted ENIs of vanished instances", "count", found.Deleted)
	}
}

// Collector deletes the ENIs left behind by vanished instances of a cluster.
type Collector struct {
	Cloud   cloud.API
	Cluster string
	MinAge  time.Duration              // minimum time that an ENI was seen detached before it is deleted
	Seen    Sightings                  // from earlier searches of this process; updated
	Alive   func(instance string) bool // reports instances known to exist; others are described
	Pause   func() bool                // reports whether to stop the search; may be nil
}

// Collected is the result of a search for orphans. It counts the detached ENIs that Berth created in this cluster
// and that belong to no instance known to exist.
type Collected struct {
	Known   bool // the next three are valid: EC2 replied, and the search did not end early
	Waiting int  // not yet seen detached for MinAge
	Kept    int  // seen for MinAge, but one of their instances still exists, for example stopped
	Refused int  // could not be deleted
	Deleted int
	Paused  bool // the search ended early
}

// ByState returns the numbers of those left, for metrics; nil if unknown.
func (c Collected) ByState() map[string]int {
	if !c.Known {
		return nil
	}
	return map[string]int{"waiting": c.Waiting, "kept": c.Kept, "refused": c.Refused}
}

// Collect searches for orphans once, and deletes those that are old enough. It continues after one that cannot be
// deleted, and returns the first such error.
func (c Collector) Collect(ctx context.Context, now time.Time) (found Collected, err error) {
	list, err := c.Cloud.ENIs(ctx, cloud.ENIFilter{Status: "available", Tags: map[string]string{TagCluster: c.Cluster}})
	if err != nil {
		return found, fmt.Errorf("list detached ENIs of cluster %s: %w", c.Cluster, err)
	}
	list = slices.DeleteFunc(list, func(e cloud.ENI) bool { return !c.orphanable(e) })
	c.Seen.note(list, now)
	all := len(list)
	old := slices.DeleteFunc(list, func(e cloud.ENI) bool { return now.Sub(c.Seen[e.ID]) < c.MinAge })
	alive := map[string]bool{}
	if len(old) > 0 {
		if alive, err = c.alive(ctx, old); err != nil {
			return found, err
		}
	}
	slices.SortFunc(old, func(x, y cloud.ENI) int { return cmp.Compare(x.ID, y.ID) })
	var first error
	for _, e := range old {
		if slices.ContainsFunc(instances(e), func(id string) bool { return alive[id] }) {
			found.Kept++
			continue
		}
		if c.Pause != nil && c.Pause() {
			found.Paused = true
			return found, first
		}
		err := change(plan.Collect, func() error { return c.Cloud.DeleteENI(ctx, e.ID) })
		switch class := cloud.ClassOf(err); {
		case err == nil, class == cloud.Gone:
			found.Deleted++
		case class == cloud.Throttled || ctx.Err() != nil:
			return found, fmt.Errorf("delete %s of vanished instance %s: %w", e.ID, e.Tags[TagInstanceID], err)
		default:
			found.Refused++
			first = cmp.Or(first, fmt.Errorf("delete %s of vanished instance %s: %w", e.ID, e.Tags[TagInstanceID], err))
		}
	}
	found.Known, found.Waiting = true, all-len(old)
	return found, first
}

// orphanable reports whether an ENI may be an orphan: detached, with Berth's tags and description, and with no
// instance known to exist.
func (c Collector) orphanable(e cloud.ENI) bool {
	of := instances(e)
	return factsOf(e, c.Cluster).ours() && e.Attachment == nil && of != nil && !slices.ContainsFunc(of, c.Alive)
}

// instances returns the instances that must be gone before a detached ENI is an orphan: the one it was created for,
// according to its description, and the last one that had it, according to its tag. They differ if someone attached
// the ENI elsewhere. The result is nil if either is missing.
func instances(e cloud.ENI) []string {
	last := e.Tags[TagInstanceID]
	first, end := strings.CutSuffix(strings.TrimPrefix(e.Description, descriptionStart), ")")
	if !end || first == "" || last == "" || e.Description != Description(first) {
		return nil
	}
	return []string{first, last}
}

// Sightings maps detached ENIs to the time at which a process first saw them detached.
type Sightings map[string]time.Time

// note records the detached ENIs found now, and forgets the others.
func (s Sightings) note(list []cloud.ENI, now time.Time) {
	there := make(map[string]bool, len(list))
	for _, e := range list {
		there[e.ID] = true
		if _, ok := s[e.ID]; !ok {
			s[e.ID] = now
		}
	}
	maps.DeleteFunc(s, func(id string, _ time.Time) bool { return !there[id] })
}

// Due returns when the next sighting will be older than age; zero if there is none.
func (s Sightings) Due(now time.Time, age time.Duration) (first time.Time) {
	for _, at := range s {
		first = retry.Earliest(now, first, at.Add(age))
	}
	return first
}

// alive returns which of the ENIs' instances still exist. A stopped instance counts: it may start again, and the
// process that serves it handles its ENIs.
func (c Collector) alive(ctx context.Context, enis []cloud.ENI) (map[string]bool, error) {
	var ids []string
	for _, e := range enis {
		for _, id := range instances(e) {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	list, err := c.Cloud.Instances(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("describe the instances of detached ENIs: %w", err)
	}
	alive := map[string]bool{}
	for _, in := range list {
		alive[in.ID] = in.State != "terminated" && in.State != "shutting-down"
	}
	return alive, nil
}
