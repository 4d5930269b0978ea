// Package parts compares the fields of a type with a list of its parts.
package parts

import (
	"reflect"
	"slices"
	"testing"
)

// Listed checks that the fields of Struct that are of Kind are exactly the listed parts, without duplicates, and that
// there are at least some.
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
			t.Errorf("field %s is a %v but is not listed", f.Name, kind)
		}
	}
	if n < least || n != len(listed) {
		t.Errorf("%d parts, %d listed, want equal numbers of at least %d", n, len(listed), least)
	}
}
