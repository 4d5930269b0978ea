package limits

import (
	"slices"
	"strings"
	"testing"
)

func TestBranches(t *testing.T) {
	for instanceType, want := range map[string]int{
		"m5.large": 9, "m5.xlarge": 18, "c5.2xlarge": 38, "c5.4xlarge": 54, "m5.24xlarge": 107, "a1.medium": 10, "p5.48xlarge": 120,
		"t3.large": 0, "m4.large": 0, "": 0, "m5": 0, "m5.larg": 0, "5.large": 0, "# type": 0, "m5.large\t9": 0,
	} {
		if got := Branches(instanceType); got != want {
			t.Errorf("Branches(%q) = %d, want %d", instanceType, got, want)
		}
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
