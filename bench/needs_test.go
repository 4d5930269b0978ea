package main

import (
	"slices"
	"testing"
)

// Nobody waits for the build of something that is not measured.
func TestOnlyNeededProgramsAreBuilt(t *testing.T) {
	lab := []string{"./bench/null", "./cmd/berth", "./cmd/berthd", referencePlugins}
	for only, want := range map[string][]string{
		"limiter":             nil,
		"exec,daemon,limiter": lab,
		amazonGroup:           {"./cmd/berth", "./cmd/berthd", amazonVPCCNI, controlPlane},
		"scale-operator":      {"./cmd/berth-operator", controlPlane},
		"ports-burst":         nil,
		"egress-clients":      nil,
		"egress-throughput":   {virtualMachine},
		"egress":              {"./cmd/berth", "./cmd/berth-egress", "./cmd/berth-operator", "./cmd/berthd", controlPlane, virtualMachine},
		"ports-add":           {"./bench/null", "./cmd/berth", "./cmd/berth-operator", "./cmd/berthd", controlPlane, openVSwitch},
		"burst-ready":         {controlPlane, clusterImages},
		"":                    {"./bench/null", "./cmd/berth", "./cmd/berth-egress", "./cmd/berth-operator", "./cmd/berthd", controlPlane, clusterImages, openVSwitch, referencePlugins, virtualMachine},
	} {
		chosen, err := choose(only)
		if err != nil {
			t.Fatal(err)
		}
		if got := needed(chosen); !slices.Equal(got, want) {
			t.Errorf("-only %q needs %q, expected %q", only, got, want)
		}
	}
}
