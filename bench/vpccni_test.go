package main

import (
	"os"
	"testing"

	"github.com/berthnet/berth/bench/vpccni"
	"github.com/berthnet/berth/test/harness"
)

// TestColdStartInTheLab has Berth do one of the workloads of the comparison with
// the Amazon VPC CNI, alone: a whole berthd makes as many EC2 calls until its
// first addresses are warm as TestColdStartIsFourCalls says.
func TestColdStartInTheLab(t *testing.T) {
	o := vpccni.Order{BinDir: harness.BinDir, Assets: os.Getenv("KUBEBUILDER_ASSETS")}
	got, err := vpccni.ColdStart.Run(t.Context(), o, vpccni.Berth)
	harness.OK(t, err)
	if len(got) != 2 || got[0] != 4 || got[1] <= 0 {
		t.Errorf("measured %v, want 4 EC2 calls and a time", got)
	}
}
