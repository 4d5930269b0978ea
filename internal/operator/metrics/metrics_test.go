package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/eni/fleet"
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
		Totals: func() Totals {
			return Totals{Used: 1, Available: 2, Needed: 3, ENIs: 4, Nodes: 5, InDeficit: 6, AtCapacity: 7}
		},
		Subnets: func() []fleet.Subnet { return []fleet.Subnet{{ID: "subnet-a", Zone: "z", Free: 8}} },
	}); err != nil {
		t.Fatal(err)
	}
	full := errors.New("InsufficientFreeAddressesInSubnet")
	m.Acted("n", eni.Action{Kind: eni.Create, Subnet: "subnet-a"}, cloud.SubnetFull, full, time.Second)
	m.Acted("n", eni.Action{Kind: eni.Create, Subnet: "subnet-a"}, cloud.Unknown, nil, time.Second)
	m.Acted("n", eni.Action{Kind: eni.Assign, Subnet: "subnet-a"}, cloud.Unknown, nil, time.Second)
	m.Acted("n", eni.Action{Kind: eni.Assign, Subnet: "subnet-a"}, cloud.SubnetFull, full, time.Second)
	m.Acted("n", eni.Action{Kind: eni.Observe}, cloud.Unknown, nil, time.Second)
	m.Listed(time.Second, nil)
	m.Listed(time.Second, full)
	m.Call("AssignPrivateIpAddresses", "OK", time.Second)
	m.Limited("AssignPrivateIpAddresses", 2*time.Second)
	m.DemandServed(3 * time.Second)

	want := `
# HELP berth_operator_eni_allocation_ops Allocations of addresses or prefixes on ENIs that were there, by subnet.
# TYPE berth_operator_eni_allocation_ops counter
berth_operator_eni_allocation_ops{subnet_id="subnet-a"} 1
# HELP berth_operator_eni_available ENIs with an address that no pod uses.
# TYPE berth_operator_eni_available gauge
berth_operator_eni_available 4
# HELP berth_operator_eni_interface_creation_ops Creations of ENIs by subnet and status: success, or the class of the error.
# TYPE berth_operator_eni_interface_creation_ops counter
berth_operator_eni_interface_creation_ops{status="subnet-full",subnet_id="subnet-a"} 1
berth_operator_eni_interface_creation_ops{status="success",subnet_id="subnet-a"} 1
# HELP berth_operator_eni_ips Addresses of all nodes by type: used by pods (cooling ones included), available to pods (used ones included), or needed beyond those.
# TYPE berth_operator_eni_ips gauge
berth_operator_eni_ips{type="available"} 2
berth_operator_eni_ips{type="needed"} 3
berth_operator_eni_ips{type="used"} 1
# HELP berth_operator_eni_nodes Nodes by category: total, in-deficit (they need addresses), or at-capacity (they can have no more).
# TYPE berth_operator_eni_nodes gauge
berth_operator_eni_nodes{category="at-capacity"} 7
berth_operator_eni_nodes{category="in-deficit"} 6
berth_operator_eni_nodes{category="total"} 5
# HELP berth_operator_eni_resync_total Full listings of what EC2 holds for all nodes, failed ones included.
# TYPE berth_operator_eni_resync_total counter
berth_operator_eni_resync_total 2
# HELP berth_operator_subnet_free_addresses Free addresses of the subnets that nodes may use, less what is being asked for right now.
# TYPE berth_operator_subnet_free_addresses gauge
berth_operator_subnet_free_addresses{subnet_id="subnet-a",zone="z"} 8
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want),
		famAssigns.Name, famENIs.Name, famCreations.Name, famIPs.Name, famNodes.Name, famResyncs.Name, famSubnets.Name); err != nil {
		t.Error(err)
	}
	sums := map[string]float64{famCalls.Name: 1, famLimiter.Name: 2, famDemand.Name: 3}
	got, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range got {
		if want, ok := sums[f.GetName()]; ok {
			if h := f.Metric[0].Histogram; h.GetSampleCount() != 1 || h.GetSampleSum() != want {
				t.Errorf("%s: %v", f.GetName(), h)
			}
			delete(sums, f.GetName())
		}
	}
	if len(got) != len(families) || len(sums) > 0 {
		t.Errorf("%d families are gathered, %d are documented; no values of %v", len(got), len(families), sums)
	}
}
