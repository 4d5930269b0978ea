package enisource

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

func TestMetricsAreRegistered(t *testing.T) {
	r := prometheus.NewRegistry()
	m := NewMetrics(r)
	m.Call("AssignPrivateIpAddresses", "OK", 0)
	m.Limited("AssignPrivateIpAddresses", 0)
	passes := m.Reconciler()
	passes.Acted(plan.Action{}, cloud.Throttled, errors.New("slower"), 0)
	passes.Reconciled(0)
	passes.Reconciled(0)
	passes.Collected(eni.Collected{Known: true, Waiting: 1, Kept: 2, Refused: 3, Deleted: 4})
	passes.Collected(eni.Collected{Deleted: 1, Paused: true}) // of the others nothing new is known
	want := map[string]float64{
		`berth_ec2_calls_total{code="OK",operation="AssignPrivateIpAddresses"}`: 1,
		`berth_ec2_call_duration_seconds{operation="AssignPrivateIpAddresses"}`: 1,
		`berth_ec2_limiter_wait_seconds{operation="AssignPrivateIpAddresses"}`:  1,
		`berth_orphan_enis{state="kept"}`:                                       2,
		`berth_orphan_enis{state="refused"}`:                                    3,
		`berth_orphan_enis{state="waiting"}`:                                    1,
		`berth_orphan_enis_deleted_total{}`:                                     5,
		`berth_reconciles_total{result="success"}`:                              1,
		`berth_reconciles_total{result="throttled"}`:                            1,
	}
	check.Same(t, sourcetest.Values(t, r, Reference), want)
}
