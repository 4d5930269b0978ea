package main

import (
	"slices"
	"testing"
)

// Nobody waits for the build of something that is not measured.
func TestOnlyNeededProgramsAreBuilt(t *testing.T) {
	lab := []string{"./cmd/berth", "./cmd/berthd", "./bench/null", referencePlugins}
	for only, want := range map[string][]string{
		"limiter":             nil,
		"exec,daemon,limiter": lab,
		amazonGroup:           {"./cmd/berth", "./cmd/berthd", amazonVPCCNI, controlPlane},
		"scale-operator":      {"./cmd/berth-operator", controlPlane},
		"ports-burst":         nil,
		"egress-clients":      nil,
		"egress-throughput":   {virtualMachine},
		"egress":              {"./cmd/berth", "./cmd/berth-egress", "./cmd/berth-operator", "./cmd/berthd", controlPlane, virtualMachine},
		"ports-add":           {"./cmd/berth", "./cmd/berth-operator", "./cmd/berthd", "./bench/null", controlPlane, openVSwitch},
		"burst-ready":         {controlPlane, clusterImages},
		"":                    {"./cmd/berth", "./cmd/berth-egress", "./cmd/berth-operator", "./cmd/berthd", "./bench/null", controlPlane, clusterImages, openVSwitch, referencePlugins, virtualMachine},
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
