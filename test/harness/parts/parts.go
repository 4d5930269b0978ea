// Package parts compares what a type is made of with what it lists.
package parts

import (
	"reflect"
	"slices"
	"testing"
)

// Listed asserts that the parts of a kind that a struct has as fields are those
// that it lists, each once, and that there are at least some.
func Listed[Struct, Kind any](t testing.TB, least int, listed []Kind) {
	t.Helper()
	fields, kind, n := reflect.TypeFor[Struct](), reflect.TypeFor[Kind](), 0
	for i := range fields.NumField() {
		f := fields.Field(i)
		part := reflect.PointerTo(f.Type)
		if !part.Implements(kind) {
			continue
		}
		n++
		if !slices.ContainsFunc(listed, func(x Kind) bool { return reflect.TypeOf(x) == part }) {
			t.Errorf("%s is a %v and is not listed", f.Name, kind)
		}
	}
	if n < least || n != len(listed) {
		t.Errorf("%d parts, %d listed, want at least %d", n, len(listed), least)
	}
}
