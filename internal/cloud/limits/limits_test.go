package limits

import (
	"slices"
	"strings"
	"testing"
)

func TestLookup(t *testing.T) {
	for _, tc := range []struct {
		instanceType string
		want         Limits
	}{
		{"t3.nano", Limits{2, 2, 2, true}},
		{"t3.small", Limits{3, 4, 4, true}},
		{"t2.micro", Limits{2, 2, 2, false}},
		{"c4.large", Limits{3, 10, 10, false}},
		{"c5.large", Limits{3, 10, 10, true}},
		{"m4.large", Limits{2, 10, 10, false}},
		{"m5.large", Limits{3, 10, 10, true}},
		{"m5.xlarge", Limits{4, 15, 15, true}},
		{"m5.24xlarge", Limits{15, 50, 50, true}},
		{"m5.metal", Limits{15, 50, 50, true}},
		{"m3.medium", Limits{2, 6, 0, false}},
		{"r6g.2xlarge", Limits{4, 15, 15, true}},
		{"g4dn.xlarge", Limits{3, 10, 10, true}},
		{"i3.large", Limits{3, 10, 10, false}},
		{"p3.2xlarge", Limits{4, 15, 15, false}},
	} {
		got, ok := Lookup(tc.instanceType)
		if !ok || got != tc.want {
			t.Errorf("Lookup(%s) = %+v, %v; want %+v", tc.instanceType, got, ok, tc.want)
		}
	}
	for _, s := range []string{"", "m5", "m5.larg", "5.large", "# type", "m5.large\t3"} {
		if got, ok := Lookup(s); ok {
			t.Errorf("Lookup(%q) = %+v, want none", s, got)
		}
	}
}

func TestEveryRowIsWellFormed(t *testing.T) {
	var types []string
	for line := range strings.Lines(table) {
		if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, "#") {
			continue
		}
		e, err := ParseRow(line)
		if err != nil {
			t.Fatal(err)
		}
		if e.Row() != line {
			t.Errorf("row %q is written back as %q", line, e.Row())
		}
		if e.MaxENIs < 1 || e.IPv4PerENI < 2 || e.NetworkCards < 1 {
			t.Errorf("row %q has a limit that is too small", line)
		}
		types = append(types, e.Type)
	}
	if len(types) < 500 || !slices.IsSorted(types) || len(slices.Compact(types)) != len(types) {
		t.Errorf("%d types; want at least 500, sorted, each once", len(types))
	}
	n := 0
	for range All() {
		n++
	}
	if n != len(types) {
		t.Errorf("All yields %d of %d rows", n, len(types))
	}
}
