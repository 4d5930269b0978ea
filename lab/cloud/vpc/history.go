package vpc

import (
	"slices"
	"time"
)

// table holds the resources of one kind with the versions that lagging readers may still see. Its values
// are immutable.
type table[T any] struct {
	rows map[string][]version[T] // by ID, oldest version first
	ids  []string                // the keys of rows, sorted
	live int                     // number of rows that currently exist
}

// version is a resource from a point in time on; a nil value is its deletion.
type version[T any] struct {
	from  time.Time
	value *T
}

// get returns the current version, or nil.
func (t *table[T]) get(id string) *T {
	if vs := t.rows[id]; len(vs) > 0 {
		return vs[len(vs)-1].value
	}
	return nil
}

// asOf returns the version at a point in time, or nil.
func (t *table[T]) asOf(id string, at time.Time) *T {
	vs := t.rows[id]
	for i := len(vs) - 1; i >= 0; i-- {
		if !vs[i].from.After(at) {
			return vs[i].value
		}
	}
	return nil
}

// first returns the oldest version.
func (t *table[T]) first(id string) *T {
	if vs := t.rows[id]; len(vs) > 0 {
		return vs[0].value
	}
	return nil
}

// put adds a version (nil: deleted) and drops versions that are too old for readers with a lag of at most
// keep.
func (t *table[T]) put(id string, v *T, now time.Time, keep time.Duration) {
	if t.rows == nil {
		t.rows = map[string][]version[T]{}
	}
	vs, known := t.rows[id]
	if !known {
		i, _ := slices.BinarySearch(t.ids, id)
		t.ids = slices.Insert(t.ids, i, id)
	}
	if had := len(vs) > 0 && vs[len(vs)-1].value != nil; had && v == nil {
		t.live--
	} else if !had && v != nil {
		t.live++
	}
	vs = append(vs, version[T]{now, v})
	t.rows[id] = prune(vs, now.Add(-keep))
	if v == nil && keep <= 0 {
		t.drop(id)
	}
}

// prune keeps the newest version that is valid at the horizon, and all later ones.
func prune[T any](vs []version[T], horizon time.Time) []version[T] {
	n := 0
	for n+1 < len(vs) && !vs[n+1].from.After(horizon) {
		n++
	}
	return slices.Delete(vs, 0, n)
}

// drop removes a resource and its history.
func (t *table[T]) drop(id string) {
	if t.get(id) != nil {
		t.live--
	}
	delete(t.rows, id)
	if i, ok := slices.BinarySearch(t.ids, id); ok {
		t.ids = slices.Delete(t.ids, i, i+1)
	}
}

// all returns the resources that currently exist, ordered by ID.
func (t *table[T]) all() []*T {
	out := make([]*T, 0, len(t.ids))
	for _, id := range t.ids {
		if v := t.get(id); v != nil {
			out = append(out, v)
		}
	}
	return out
}

// allAsOf returns the resources that existed at a point in time, ordered by ID.
func (t *table[T]) allAsOf(at time.Time) []*T {
	out := make([]*T, 0, len(t.ids))
	for _, id := range t.ids {
		if v := t.asOf(id, at); v != nil {
			out = append(out, v)
		}
	}
	return out
}
