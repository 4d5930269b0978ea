package warm

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDecide(t *testing.T) {
	a, b := Kind{VPC: "v", Host: "h", Groups: "a"}, Kind{VPC: "v", Host: "h", Groups: "b"}
	one := func(kinds ...Kind) (out []wanted) {
		for _, k := range kinds {
			out = append(out, wanted{k, 1})
		}
		return out
	}
	for _, tc := range []struct {
		name string
		h    host
		want verdict
	}{
		{"nothing", host{room: 9}, verdict{}},
		{"one of each", host{room: 9, wants: one(a, b)}, verdict{make: []Kind{a, b}}},
		{"all ports exist", host{room: 9, wants: one(a, b), ports: []stock{{id: "1", kind: b}, {id: "2", kind: a}}}, verdict{keep: []string{"1", "2"}}},
		{"all ports in creation", host{room: 9, wants: one(a, b), making: []Kind{b, a}}, verdict{}},
		{"several", host{room: 9, wants: []wanted{{a, 3}}, ports: []stock{{id: "1", kind: a}}, making: []Kind{a}}, verdict{keep: []string{"1"}, make: []Kind{a}}},
		{"room for one of two", host{room: 1, wants: one(a, b)}, verdict{make: []Kind{a}}},
		{"no room with one in creation", host{room: 1, wants: one(a, b), making: []Kind{b}}, verdict{}},
		{"NICs use all the room", host{room: 0, wants: one(a), ports: []stock{{id: "1", kind: a}}}, verdict{drop: []string{"1"}}},
		{"NICs use more than the room", host{room: -2, wants: one(a, b), ports: []stock{{id: "1", kind: a}, {id: "2", kind: b}}}, verdict{drop: []string{"1", "2"}}},
		{"the more important kind stays", host{room: 1, wants: one(b, a), ports: []stock{{id: "1", kind: a}, {id: "2", kind: b}}}, verdict{keep: []string{"2"}, drop: []string{"1"}}},
		{"surplus port kept for now", host{room: 9, keep: time.Minute, wants: one(a), ports: []stock{{id: "1", kind: a}, {id: "2", kind: a}}}, verdict{keep: []string{"1"}, spare: []string{"2"}}},
		{"surplus for too long", host{room: 9, keep: time.Minute, ports: []stock{{id: "1", kind: a, idle: time.Minute}}}, verdict{drop: []string{"1"}}},
		{"surplus port makes room for a wanted one", host{room: 1, keep: time.Minute, wants: one(a), ports: []stock{{id: "1"}}}, verdict{drop: []string{"1"}}},
		{"wanted port created once there is room", host{room: 1, keep: time.Minute, wants: one(a)}, verdict{make: []Kind{a}}},
		{"VPC without warm ports", host{room: 9, keep: time.Minute, wants: []wanted{{a, 0}}, ports: []stock{{id: "1", kind: a}}}, verdict{spare: []string{"1"}}},
	} {
		if d := cmp.Diff(tc.want, decide(tc.h), cmp.AllowUnexported(verdict{})); d != "" {
			t.Errorf("%s: decide() (-want +got):\n%s", tc.name, d)
		}
	}
}
