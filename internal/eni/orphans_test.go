package eni

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

// leftovers is a cloud with detached ENIs and two instances, of which one has ended.
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

// Only an ENI with all that Berth writes on its own is an orphan, and only once
// this process has seen it detached for as long as orphans must be: what it says
// of its age is anybody's.
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
	}}
	for id, e := range cl.enis {
		e.ID = id
		cl.enis[id] = e
	}
	seen := Sightings{}
	look := func(after time.Duration) int {
		t.Helper()
		c := Collector{
			Cloud: cl, Cluster: "test", MinAge: 15 * time.Minute, Seen: seen,
			Alive: func(id string) bool { return id == "i-alive" },
		}
		n, _, err := c.Collect(t.Context(), t0.Add(after))
		if err != nil {
			t.Fatal(err)
		}
		return n
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
	if n := look(15 * time.Minute); n != 3 || len(cl.enis) != 15 {
		t.Errorf("%d deleted, left are %v", n, slices.Sorted(maps.Keys(cl.enis)))
	}
	for _, id := range []string{"orphan", "without an age", "adopted"} {
		if _, ok := cl.enis[id]; ok {
			t.Errorf("the ENI %q is left", id)
		}
	}
}
