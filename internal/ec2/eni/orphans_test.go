package eni

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
)

// leftovers is a cloud with detached ENIs and two instances, one of which has ended.
type leftovers struct {
	cloud.API
	enis map[string]cloud.ENI
}

func (l *leftovers) ENIs(context.Context, cloud.ENIFilter) ([]cloud.ENI, error) {
	return slices.Collect(maps.Values(l.enis)), nil
}

func (l *leftovers) Instances(_ context.Context, ids []string) (out []cloud.Instance, _ error) {
	for _, in := range []cloud.Instance{{ID: "i-asleep", State: "stopped"}, {ID: "i-ended", State: "terminated"}} {
		if slices.Contains(ids, in.ID) {
			out = append(out, in)
		}
	}
	return out, nil
}

func (l *leftovers) DeleteENI(_ context.Context, id string) error {
	delete(l.enis, id)
	return nil
}

// An ENI is an orphan only if it has all tags and the description that Berth writes, and only once this
// process has seen it detached for long enough: anyone can write the tag with its age.
func TestOnlyOrphansAreCollected(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	one := func(change func(*cloud.ENI)) cloud.ENI {
		e := cloud.ENI{
			Status: "available", Description: Description("i-gone"),
			Tags: map[string]string{
				TagCluster: "test", TagOwner: Owner, TagInstanceID: "i-gone", TagCreatedAt: t0.Add(-24 * time.Hour).Format(time.RFC3339),
			},
		}
		change(&e)
		return e
	}
	cl := &leftovers{enis: map[string]cloud.ENI{
		"orphan":                one(func(*cloud.ENI) {}),
		"without an age":        one(func(e *cloud.ENI) { delete(e.Tags, TagCreatedAt) }),
		"no description":        one(func(e *cloud.ENI) { e.Description = "" }),
		"another description":   one(func(e *cloud.ENI) { e.Description = "database" }),
		"adopted":               one(func(e *cloud.ENI) { e.Description = Description("i-ended") }),
		"made for one of ours":  one(func(e *cloud.ENI) { e.Description = Description("i-alive") }),
		"made for one asleep":   one(func(e *cloud.ENI) { e.Description = Description("i-asleep") }),
		"adopted by one alive":  one(func(e *cloud.ENI) { e.Tags[TagInstanceID] = "i-alive" }),
		"adopted by one asleep": one(func(e *cloud.ENI) { e.Tags[TagInstanceID] = "i-asleep" }),
		"half a description":    one(func(e *cloud.ENI) { e.Description = "Berth (i-gone" }),
		"an empty description":  one(func(e *cloud.ENI) { e.Description = Description("") }),
		"another owner":         one(func(e *cloud.ENI) { e.Tags[TagOwner] = "somebody" }),
		"another's in capital":  one(func(e *cloud.ENI) { e.Tags[TagOwner] = "Berth" }),
		"another cluster":       one(func(e *cloud.ENI) { e.Tags[TagCluster] = "other" }),
		"unmanaged":             one(func(e *cloud.ENI) { e.Tags[TagUnmanaged] = "true" }),
		"no instance":           one(func(e *cloud.ENI) { delete(e.Tags, TagInstanceID) }),
		"of a living instance":  one(func(e *cloud.ENI) { e.Tags[TagInstanceID], e.Description = "i-alive", Description("i-alive") }),
		"no orphan any more":    one(func(*cloud.ENI) {}),
		"a trunk":               one(func(e *cloud.ENI) { e.Type = cloud.InterfaceTrunk }),
		"a branch":              one(func(e *cloud.ENI) { e.Type, e.Status = cloud.InterfaceBranch, "in-use" }),
		"a branch by its state": one(func(e *cloud.ENI) { e.Status = "in-use" }),
		"to be a branch":        one(func(e *cloud.ENI) { e.Tags[TagNIC] = "0a1b2c3d" }),
	}}
	for id, e := range cl.enis {
		e.ID = id
		cl.enis[id] = e
	}
	seen := Sightings{}
	var last Collected
	look := func(after time.Duration) int {
		t.Helper()
		c := Collector{
			Cloud: cl, Cluster: "test", MinAge: 15 * time.Minute, Seen: seen,
			Alive: func(id string) bool { return id == "i-alive" },
		}
		found, err := c.Collect(t.Context(), t0.Add(after))
		if err != nil || !found.Known {
			t.Fatalf("%+v, %v", found, err)
		}
		last = found
		return found.Deleted
	}
	if n := look(0); n != 0 {
		t.Fatalf("%d deleted at first sight", n)
	}
	if due := seen.Due(t0, 15*time.Minute); !due.Equal(t0.Add(15 * time.Minute)) {
		t.Errorf("due at %v", due)
	}
	back := cl.enis["no orphan any more"] // attached, and detached again
	delete(cl.enis, back.ID)
	look(10 * time.Minute)
	cl.enis[back.ID] = back
	if n := look(14 * time.Minute); n != 0 {
		t.Fatalf("%d deleted before they are old enough", n)
	}
	if last.Waiting == 0 || last.Kept+last.Refused != 0 {
		t.Errorf("before they are old enough: %+v", last)
	}
	if n := look(15 * time.Minute); n != 4 || len(cl.enis) != 18 {
		t.Errorf("%d deleted, left are %v", n, slices.Sorted(maps.Keys(cl.enis)))
	}
	// Those of the instance that sleeps are kept, the one that came back is too young.
	if states := last.ByState(); last.Kept != 2 || states["kept"] != 2 || states["waiting"] != 1 || states["refused"] != 0 {
		t.Errorf("%+v", last)
	}
	for _, id := range []string{"orphan", "without an age", "adopted", "a trunk"} {
		if _, ok := cl.enis[id]; ok {
			t.Errorf("the ENI %q is left", id)
		}
	}
}

// Orphans that EC2 refuses to delete are counted; nothing is counted if EC2 could not be asked about
// all.
func TestOrphansThatStay(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	orphan := func(id string) cloud.ENI {
		return cloud.ENI{ID: id, Status: "available", Description: Description("i-gone"), Tags: map[string]string{TagCluster: "test", TagOwner: Owner, TagInstanceID: "i-gone"}}
	}
	refuses := &refusing{leftovers: leftovers{enis: map[string]cloud.ENI{"a": orphan("a"), "b": orphan("b"), "c": orphan("c")}}, id: "b"}
	c := Collector{Cloud: refuses, Cluster: "test", Seen: Sightings{}, Alive: func(string) bool { return false }}
	found, err := c.Collect(t.Context(), t0)
	check.ErrorSays(t, err, "delete b")
	check.Equal(t, found, Collected{Known: true, Refused: 1, Deleted: 2}, "found")
	c.Pause = func() bool { return true }
	if found, err = c.Collect(t.Context(), t0); err != nil || found != (Collected{Paused: true}) {
		t.Errorf("paused: %+v, %v", found, err)
	}
	refuses.away = true
	if found, err = c.Collect(t.Context(), t0); err == nil || found.ByState() != nil {
		t.Errorf("EC2 is away: %+v, %v", found, err)
	}
}

// refusing deletes all ENIs but one.
type refusing struct {
	leftovers
	id   string
	away bool
}

func (r *refusing) ENIs(ctx context.Context, f cloud.ENIFilter) ([]cloud.ENI, error) {
	if r.away {
		return nil, errors.New("no route to host")
	}
	return r.leftovers.ENIs(ctx, f)
}

func (r *refusing) DeleteENI(ctx context.Context, id string) error {
	if id == r.id {
		return errors.New("it is in use by another service")
	}
	return r.leftovers.DeleteENI(ctx, id)
}
