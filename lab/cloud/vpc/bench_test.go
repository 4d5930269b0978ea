package vpc_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// BenchmarkNodeOf2000 measures the calls of one node in a large cluster: a new ENI, its attachment, an
// assignment, and a description of the node.
func BenchmarkNodeOf2000(b *testing.B) {
	s := spec.Default()
	s.Delays, s.Consistency, s.Quotas.NetworkInterfaces = spec.Delays{}, spec.Consistency{}, 1<<20
	s.VPCs[0].Subnets = []spec.Subnet{{Name: "a", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.0.0.0/16")}}
	s.Instances = nil
	for i := range 2000 {
		s.Instances = append(s.Instances, spec.Instance{Name: fmt.Sprint("n", i), Type: "m5.large", Subnet: "a"})
	}
	c, err := vpc.New(s)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	snapshot := c.Snapshot()
	subnet := snapshot.Subnets[0].ID
	n := 0
	for b.Loop() {
		instance := snapshot.Instances[n%2000].ID
		n++
		e, err := c.ENIs.Create(vpc.CreateRequest{SubnetID: subnet})
		if err != nil {
			b.Fatal(err)
		}
		attachment, err := c.ENIs.Attach(vpc.AttachRequest{ENIID: e.ID, InstanceID: instance, DeviceIndex: 1})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.ENIs.Assign(e.ID, vpc.AddressRequest{IPv4Count: 9}); err != nil {
			b.Fatal(err)
		}
		if got := len(c.Described().InstanceENIs(instance)); got != 2 {
			b.Fatalf("%d ENIs described, want 2", got)
		}
		if err := c.ENIs.Detach(attachment, false); err != nil {
			b.Fatal(err)
		}
		if err := c.ENIs.Delete(e.ID); err != nil {
			b.Fatal(err)
		}
	}
}
