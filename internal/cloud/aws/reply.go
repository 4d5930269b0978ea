package aws

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// A reply is compared with its request here; with what else is known of the
// node, by who called. The call has taken effect, so one that does not fit is
// like a lost one: Transient.

// asked is what an assignment asked for: so many addresses or prefixes.
type asked struct {
	eni string
	n   int
}

// reply is what an assignment answered.
type reply[T comparable] struct {
	eni  *string // may be left out
	got  []T
	rest int // how many of the other kind
}

// assigned returns what a reply says was assigned, if that is what was asked
// for. EC2 assigns all or nothing. Err is what of it could not be read.
func assigned[T comparable](op pace.Call, q asked, r reply[T], err error) ([]T, error) {
	switch {
	case err != nil:
	case r.eni != nil && *r.eni != q.eni:
		err = &badAnswer{fmt.Errorf("networkInterfaceId %q: expected %s", *r.eni, q.eni)}
	case len(r.got) != q.n || r.rest > 0:
		err = &badAnswer{fmt.Errorf("%d assigned, and %d of another kind: expected the %d asked for", len(r.got), r.rest, q.n)}
	case twice(r.got):
		err = &badAnswer{fmt.Errorf("assigned %v: expected each once", r.got)}
	}
	if err != nil {
		return nil, useless(op, err)
	}
	return r.got, nil
}

func twice[T comparable](list []T) bool {
	for i, x := range list {
		if slices.Contains(list[:i], x) {
			return true
		}
	}
	return false
}

// scope is what a listing of ENIs was asked for.
type scope struct {
	ids, instances map[string]bool // nil: any
	tags           map[string]string
}

func newScope(f cloud.ENIFilter) scope {
	set := func(list []string) map[string]bool {
		if len(list) == 0 {
			return nil
		}
		m := make(map[string]bool, len(list))
		for _, v := range list {
			m[v] = true
		}
		return m
	}
	instances := f.InstanceIDs
	if f.InstanceID != "" {
		instances = []string{f.InstanceID}
	}
	return scope{set(f.IDs), set(instances), f.Tags}
}

// listed refuses an element of a listing that its filter does not let through.
func (r *reading) listed(s scope, e cloud.ENI) {
	defer r.in("networkInterfaceSet", e.ID)()
	if s.ids != nil && !s.ids[e.ID] {
		r.bad("networkInterfaceId", e.ID, "one of those asked for")
	}
	instance := ""
	if e.Attachment != nil {
		instance = e.Attachment.InstanceID
	}
	if s.instances != nil && !s.instances[instance] {
		r.bad("attachment.instanceId", instance, "one of those asked for")
	}
	for _, k := range slices.Sorted(maps.Keys(s.tags)) {
		if e.Tags[k] != s.tags[k] {
			r.bad("tagSet["+k+"]", e.Tags[k], s.tags[k])
		}
	}
}
