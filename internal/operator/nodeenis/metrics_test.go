package nodeenis

import (
	"errors"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/fleet"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/test/harness"
)

var (
	_ fleet.Observer = (*Metrics)(nil)
	_ pace.Observer  = (*Metrics)(nil)
)

func TestMetricsOfNodes(t *testing.T) {
	m := NewMetrics()
	full := errors.New("InsufficientFreeAddressesInSubnet")
	m.Acted("n", plan.Action{Kind: plan.Create, Subnet: "subnet-a"}, cloud.SubnetFull, full, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Create, Subnet: "subnet-a"}, cloud.Unknown, nil, time.Second)
	m.Acted("n", plan.Action{Kind: plan.CreateTrunk, Subnet: "subnet-a"}, cloud.Unknown, nil, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Assign, Subnet: "subnet-a"}, cloud.Unknown, nil, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Assign, Subnet: "subnet-a"}, cloud.SubnetFull, full, time.Second)
	m.Acted("n", plan.Action{Kind: plan.Observe}, cloud.Unknown, nil, time.Second)
	m.Listed(time.Second, nil)
	m.Listed(time.Second, full)
	m.Call("AssignPrivateIpAddresses", "OK", time.Second)
	m.Limited("AssignPrivateIpAddresses", 2*time.Second)
	m.DemandServed(3 * time.Second)
	m.Collected(eni.Collected{Known: true, Waiting: 1, Kept: 2, Refused: 3, Deleted: 4})
	m.Collected(eni.Collected{Deleted: 1}) // EC2 could not be asked for the others
	g := gauges(
		func() Totals {
			return Totals{Used: 1, Available: 2, Needed: 3, ENIs: 4, Nodes: 5, InDeficit: 6, AtCapacity: 7}
		},
		func() []cloud.Subnet { return []cloud.Subnet{{ID: "subnet-a", Zone: "z", Free: 8}} },
	)
	harness.CheckMetrics(t, append(m.Collectors(), g), Families, map[string]string{
		`berth_operator_eni_allocation_ops_total{subnet_id="subnet-a"}`:                                        "1",
		`berth_operator_eni_interface_creation_ops_total{status="success",subnet_id="subnet-a"}`:               "2",
		`berth_operator_eni_interface_creation_ops_total{status="subnet-full",subnet_id="subnet-a"}`:           "1",
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
		`berth_operator_orphan_enis{state="waiting"}`:                                                          "1",
		`berth_operator_orphan_enis{state="kept"}`:                                                             "2",
		`berth_operator_orphan_enis{state="refused"}`:                                                          "3",
		`berth_operator_orphan_enis_deleted_total`:                                                             "5",
	})
}
