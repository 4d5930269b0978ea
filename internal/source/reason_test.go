package source_test

import (
	"testing"

	"github.com/berthnet/berth/internal/source"
)

func TestReasonOf(t *testing.T) {
	for in, want := range map[string]string{"SubnetFull": "subnet-full", "ENILimit": "eni-limit", "AtCapacity": "at-capacity", "Throttled": "throttled", "": "degraded"} {
		if got := source.ReasonOf(in); got != want {
			t.Errorf("ReasonOf(%q) = %q, want %q", in, got, want)
		}
	}
}
