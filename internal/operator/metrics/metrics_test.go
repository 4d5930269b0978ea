package metrics

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
	"github.com/berthnet/berth/internal/eni/fleet"
	"github.com/berthnet/berth/internal/eni/plan"
	"github.com/berthnet/berth/internal/operator/addresspool"
	"github.com/berthnet/berth/internal/operator/nodenetwork"
)

var (
	_ fleet.Observer = (*Metrics)(nil)
	_ pace.Observer  = (*Metrics)(nil)
)

func TestEverythingIsCounted(t *testing.T) {
	r, m := prometheus.NewPedanticRegistry(), New()
	if err := m.Register(r); err != nil {
		t.Fatal(err)
	}
	if err := r.Register(State{
		Totals: func() nodenetwork.Totals {
			return nodenetwork.Totals{Used: 1, Available: 2, Needed: 3, ENIs: 4, Nodes: 5, InDeficit: 6, AtCapacity: 7}
		},
		Subnets: func() []cloud.Subnet { return []cloud.Subnet{{ID: "subnet-a", Zone: "z", Free: 8}} },
		Pools: func() []addresspool.Usage {
			return []addresspool.Usage{{
				Pool: "default", Waiting: 15,
				Blocks:    v1alpha1.PoolCounts{Total: 9, Allocated: 10, Free: 11},
				Addresses: v1alpha1.PoolCounts{Total: 12, Allocated: 13, Free: 14},
			}}
		},
	}); err != nil {
		t.Fatal(err)
	}
	full := errors.New("InsufficientFreeAddressesInSubnet")
	m.Acted("n", plan.Action{Kind: plan.Create, Subnet: "subnet-a"}, cloud.SubnetFull, full, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Create, Subnet: "subnet-a"}, cloud.Unknown, nil, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Assign, Subnet: "subnet-a"}, cloud.Unknown, nil, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Assign, Subnet: "subnet-a"}, cloud.SubnetFull, full, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Observe}, cloud.Unknown, nil, time.Second)
	m.Listed(time.Second, nil)
	m.Listed(time.Second, full)
	m.Call("AssignPrivateIpAddresses", "OK", time.Second)
	m.Limited("AssignPrivateIpAddresses", 2*time.Second)
	m.DemandServed(3 * time.Second)
	m.BlockServed(4 * time.Second)
	m.BlockRefused("NodeQuota")

	got := scrape(t, r)
	for name, want := range map[string]string{
		`berth_operator_eni_allocation_ops{subnet_id="subnet-a"}`:                                              "1",
		`berth_operator_eni_interface_creation_ops{status="success",subnet_id="subnet-a"}`:                     "1",
		`berth_operator_eni_interface_creation_ops{status="subnet-full",subnet_id="subnet-a"}`:                 "1",
		`berth_operator_eni_ips{type="used"}`:                                                                  "1",
		`berth_operator_eni_ips{type="available"}`:                                                             "2",
		`berth_operator_eni_ips{type="needed"}`:                                                                "3",
		`berth_operator_eni_available`:                                                                         "4",
		`berth_operator_eni_nodes{category="total"}`:                                                           "5",
		`berth_operator_eni_nodes{category="in-deficit"}`:                                                      "6",
		`berth_operator_eni_nodes{category="at-capacity"}`:                                                     "7",
		`berth_operator_eni_resync_total`:                                                                      "2",
		`berth_operator_subnet_free_addresses{subnet_id="subnet-a",zone="z"}`:                                  "8",
		`berth_operator_aws_api_duration_seconds_sum{operation="AssignPrivateIpAddresses",response_code="OK"}`: "1",
		`berth_operator_ec2_rate_limit_duration_seconds_sum{operation="AssignPrivateIpAddresses"}`:             "2",
		`berth_operator_demand_to_address_seconds_sum`:                                                         "3",
		`berth_operator_pool_blocks{pool="default",state="max"}`:                                               "9",
		`berth_operator_pool_blocks{pool="default",state="allocated"}`:                                         "10",
		`berth_operator_pool_blocks{pool="default",state="free"}`:                                              "11",
		`berth_operator_pool_addresses{pool="default",state="max"}`:                                            "12",
		`berth_operator_pool_addresses{pool="default",state="allocated"}`:                                      "13",
		`berth_operator_pool_addresses{pool="default",state="free"}`:                                           "14",
		`berth_operator_pool_waiting_requests{pool="default"}`:                                                 "15",
		`berth_operator_block_request_seconds_sum`:                                                             "4",
		`berth_operator_block_requests_refused_total{reason="NodeQuota"}`:                                      "1",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %s", name, got[name], want)
		}
	}
	for _, f := range families {
		if got["# TYPE "+f.Name] != f.Kind {
			t.Errorf("%s is a %q, documented as %s", f.Name, got["# TYPE "+f.Name], f.Kind)
		}
	}
}

// scrape reads samples and types as Prometheus does.
func scrape(t *testing.T, r prometheus.Gatherer) map[string]string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	out := map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		i := strings.LastIndexByte(line, ' ')
		out[line[:i]] = strings.TrimSpace(line[i:])
	}
	return out
}
