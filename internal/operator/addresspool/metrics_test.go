package addresspool

import (
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

func TestMetricsOfPools(t *testing.T) {
	m := NewMetrics()
	m.RequestServed(4 * time.Second)
	m.RequestRefused("NodeQuota")
	g := gauges(func() []Usage {
		return []Usage{{
			Pool: "default", Waiting: 15,
			Blocks:    v1alpha1.PoolCounts{Total: 9, Allocated: 10, Free: 11},
			Addresses: v1alpha1.PoolCounts{Total: 12, Allocated: 13, Free: 14},
		}}
	})
	harness.CheckMetrics(t, append(m.Collectors(), g), Families, map[string]string{
		`berth_operator_pool_blocks{pool="default",state="max"}`:          "9",
		`berth_operator_pool_blocks{pool="default",state="allocated"}`:    "10",
		`berth_operator_pool_blocks{pool="default",state="free"}`:         "11",
		`berth_operator_pool_addresses{pool="default",state="max"}`:       "12",
		`berth_operator_pool_addresses{pool="default",state="allocated"}`: "13",
		`berth_operator_pool_addresses{pool="default",state="free"}`:      "14",
		`berth_operator_pool_waiting_requests{pool="default"}`:            "15",
		`berth_operator_block_request_seconds_sum`:                        "4",
		`berth_operator_block_requests_refused_total{reason="NodeQuota"}`: "1",
	})
}
