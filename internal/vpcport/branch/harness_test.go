package branch_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
	"github.com/berthnet/berth/test/harness"
)

const (
	vpc     = cloudfake.VPC
	cluster = "contract"
	// lag is how far listings lag, which is less than ec2.Settle.
	lag = 10 * time.Second
)

// bed is a VPC with instances in two zones, each with a trunk, and a provider.
type bed struct {
	t        *testing.T
	clock    *clock.Fake
	cloud    *cloudfake.Cloud
	provider *branch.Provider
}

// newBed creates i-a (m5.large: 9 branches) and i-a2 in zone a, i-b in zone b, and i-none without a trunk.
func newBed(t *testing.T, edit ...func(*branch.Settings)) *bed {
	t.Helper()
	b := &bed{t: t, clock: clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))}
	b.cloud = cloudfake.New(cloudfake.Options{Clock: b.clock})
	b.cloud.State.AddSubnet("subnet-a", "zone-a", "10.0.0.0/20", map[string]string{"Name": "pods-a"})
	b.cloud.State.AddSubnet("subnet-b", "zone-b", "10.0.16.0/20", nil)
	b.cloud.State.AddSubnet("subnet-small", "zone-a", "10.0.32.0/28", nil)
	b.cloud.State.AddSecurityGroup("sg-web", nil)
	for instance, subnet := range map[string]string{"i-a": "subnet-a", "i-a2": "subnet-a", "i-b": "subnet-b", "i-none": "subnet-a"} {
		b.cloud.State.AddInstance(instance, "m5.large", subnet)
		if instance != "i-none" {
			b.trunk(instance, map[string]string{eni.TagCluster: cluster, eni.TagOwner: eni.Owner, eni.TagInstanceID: instance})
		}
	}
	b.provider = b.open(edit...)
	return b
}

// open opens another process's provider.
func (b *bed) open(edit ...func(*branch.Settings)) *branch.Provider {
	s := branch.Settings{Cloud: b.cloud, Cluster: cluster, VPC: vpc, Clock: b.clock, Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil))}
	for _, e := range edit {
		e(&s)
	}
	return branch.Open(s)
}

// trunk gives an instance a trunk and returns the trunk's ID.
func (b *bed) trunk(instance string, tags map[string]string) string {
	return b.cloud.State.AddENI(instance, 1, cloud.InterfaceTrunk, tags)
}

// eni returns an ENI as EC2 has it.
func (b *bed) eni(id string) cloud.ENI {
	b.t.Helper()
	list, err := b.cloud.ENIs(b.t.Context(), cloud.ENIFilter{IDs: []string{id}})
	harness.OK(b.t, err)
	if len(list) != 1 {
		b.t.Fatalf("found %d ENIs with ID %s, want 1", len(list), id)
	}
	return list[0]
}

// trunkMAC returns the MAC address of an instance's trunk.
func (b *bed) trunkMAC(instance string) string {
	b.t.Helper()
	in, err := b.cloud.Instance(b.t.Context(), instance)
	harness.OK(b.t, err)
	for _, e := range in.ENIs {
		if e.Type == cloud.InterfaceTrunk {
			return e.MAC.String()
		}
	}
	b.t.Fatalf("instance %s has no trunk", instance)
	return ""
}

// newPort returns a minimal request for a NIC's port at a host.
func newPort(uid, host string, edit ...func(*vpcport.NewPort)) vpcport.NewPort {
	n := vpcport.NewPort{NetworkID: vpc, Name: "berth/" + uid + "/default/" + uid, Device: vpcport.Device(cluster, uid), Host: host}
	for _, e := range edit {
		e(&n)
	}
	return n
}

// make creates a port.
func (b *bed) make(p *branch.Provider, n vpcport.NewPort) vpcport.Port {
	b.t.Helper()
	out, err := p.Create(b.t.Context(), []vpcport.NewPort{n})
	harness.OK(b.t, err)
	return out[0]
}

// failsWith checks the class of an error.
func failsWith(t *testing.T, what string, err error, want vpcport.Class) {
	t.Helper()
	if err == nil || vpcport.ClassOf(err) != want {
		t.Errorf("%s: error = %v (class %v), want class %v", what, err, vpcport.ClassOf(err), want)
	}
}
