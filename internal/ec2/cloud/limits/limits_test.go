package limits

import (
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/test/harness/check"
)

func TestLookup(t *testing.T) {
	for _, tc := range []struct {
		instanceType string
		want         Limits
	}{
		{"t3.nano", Limits{MaxENIs: 2, IPv4PerENI: 2, IPv6PerENI: 2, Prefixes: true}},
		{"t3.small", Limits{MaxENIs: 3, IPv4PerENI: 4, IPv6PerENI: 4, Prefixes: true}},
		{"t2.micro", Limits{MaxENIs: 2, IPv4PerENI: 2, IPv6PerENI: 2, Prefixes: false}},
		{"c4.large", Limits{MaxENIs: 3, IPv4PerENI: 10, IPv6PerENI: 10, Prefixes: false}},
		{"c5.large", Limits{MaxENIs: 3, IPv4PerENI: 10, IPv6PerENI: 10, Prefixes: true}},
		{"m4.large", Limits{MaxENIs: 2, IPv4PerENI: 10, IPv6PerENI: 10, Prefixes: false}},
		{"m5.large", Limits{MaxENIs: 3, IPv4PerENI: 10, IPv6PerENI: 10, Prefixes: true}},
		{"m5.xlarge", Limits{MaxENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15, Prefixes: true}},
		{"m5.24xlarge", Limits{MaxENIs: 15, IPv4PerENI: 50, IPv6PerENI: 50, Prefixes: true}},
		{"m5.metal", Limits{MaxENIs: 15, IPv4PerENI: 50, IPv6PerENI: 50, Prefixes: true}},
		{"m3.medium", Limits{MaxENIs: 2, IPv4PerENI: 6, IPv6PerENI: 0, Prefixes: false}},
		{"r6g.2xlarge", Limits{MaxENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15, Prefixes: true}},
		{"g4dn.xlarge", Limits{MaxENIs: 3, IPv4PerENI: 10, IPv6PerENI: 10, Prefixes: true}},
		{"i3.large", Limits{MaxENIs: 3, IPv4PerENI: 10, IPv6PerENI: 10, Prefixes: false}},
		{"p3.2xlarge", Limits{MaxENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15, Prefixes: false}},
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
		e := check.Must(ParseRow(line))(t)
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

func TestBranches(t *testing.T) {
	for instanceType, want := range map[string]int{
		"m5.large": 9, "m5.xlarge": 18, "c5.2xlarge": 38, "c5.4xlarge": 54, "m5.24xlarge": 107, "a1.medium": 10, "p5.48xlarge": 120,
		"t3.large": 0, "m4.large": 0, "": 0, "m5": 0, "m5.larg": 0, "5.large": 0, "# type": 0, "m5.large\t9": 0,
	} {
		check.Equal(t, Branches(instanceType), want, "Branches(%q)", instanceType)
	}
}

// Each row is of a type that the other table knows, is found, and is no Xen instance.
func TestEveryTypeWithTrunksIsKnown(t *testing.T) {
	var types []string
	for line := range strings.Lines(trunks) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		instanceType, _, _ := strings.Cut(line, "\t")
		if e, ok := Find(instanceType); !ok || e.Hypervisor == HypervisorXen || Branches(instanceType) < 1 {
			t.Errorf("row %q: %+v, %d branches", line, e, Branches(instanceType))
		}
		types = append(types, instanceType)
	}
	if len(types) < 500 || !slices.IsSorted(types) || len(slices.Compact(types)) != len(types) {
		t.Errorf("%d types; want at least 500, sorted, each once", len(types))
	}
}
