//go:build guest

package lab

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
)

// A branch that the cloud has associated carries packets, once its node has made the VLAN,
// also after the instance was stopped, until it is disassociated.
func TestBranchesOfTheCloudCarryPackets(t *testing.T) {
	l := start(t, Options{Nodes: 2, InstanceType: "m5.large"})
	l.Cloud.SetDelays(spec.Delays{})
	n, far := l.Nodes()[0], l.Nodes()[1].Netns
	self, _ := l.Snapshot().Instance(n.InstanceID)
	subnet, _ := l.Snapshot().Subnet(self.SubnetID)
	trunk, err := l.Cloud.ENIs.Create(vpc.CreateRequest{SubnetID: self.SubnetID, Type: "trunk"})
	ok(t, err)
	_, err = l.Cloud.ENIs.Attach(vpc.AttachRequest{ENIID: trunk.ID, InstanceID: n.InstanceID, DeviceIndex: 1})
	ok(t, err)
	branch, err := l.Cloud.ENIs.Create(vpc.CreateRequest{SubnetID: self.SubnetID})
	ok(t, err)
	a, err := l.Cloud.ENIs.Associate(vpc.AssociateRequest{TrunkID: trunk.ID, BranchID: branch.ID, VLAN: 7})
	ok(t, err)
	l.WaitEvents()

	// vlan makes the node's end, which answers from the branch's address by the branch.
	vlan := func() {
		t.Helper()
		script := fmt.Sprintf(`ip link set ens6 up
ip link add link ens6 name ens6.7 address %[1]s type vlan id 7
sysctl -qw net.ipv4.conf.ens6/7.rp_filter=2
ip addr add %[2]s/32 dev ens6.7
ip link set ens6.7 up
ip rule add from %[2]s table 7
ip route add default via %[3]s dev ens6.7 onlink table 7`, branch.MAC, branch.Primary, fabric.RouterOf(subnet.CIDR))
		if out, err := exec.Command("nsenter", "--net="+n.Netns, "sh", "-ec", script).CombinedOutput(); err != nil {
			t.Fatalf("make the VLAN: %v: %s", err, out)
		}
	}
	vlan()
	ok(t, reach(t, far, branch.Primary, time.Minute))
	s, err := l.Status(t.Context())
	ok(t, err)
	enis := s.Nodes[0].ENIs
	if len(enis) != 2 || len(enis[1].Branches) != 1 || enis[1].Branches[0].ID != branch.ID || enis[1].Branches[0].VLAN != 7 || enis[1].Branches[0].Drops == nil || len(s.Loose) > 0 {
		t.Errorf("status shows the ENIs %+v and %+v", enis, s.Loose)
	}

	ok(t, l.Cloud.Instances.Stop(n.Name))
	ok(t, l.Cloud.Instances.Start(n.Name))
	l.WaitEvents()
	n, err = l.Node(n.Name)
	ok(t, err)
	vlan()
	ok(t, reach(t, far, branch.Primary, time.Minute))

	ok(t, l.Cloud.ENIs.Disassociate(vpc.DisassociateRequest{AssociationID: a.ID}))
	l.WaitEvents()
	if err := reach(t, far, branch.Primary, time.Second); err == nil {
		t.Error("what was a branch answers")
	}
	if s, err = l.Status(t.Context()); err != nil || len(s.Loose) != 1 || s.Loose[0].ID != branch.ID {
		t.Errorf("status shows as available %+v, %v", s.Loose, err)
	}
	_, err = l.Cloud.ENIs.Associate(vpc.AssociateRequest{TrunkID: trunk.ID, BranchID: branch.ID, VLAN: 7})
	ok(t, err)
	ok(t, l.Cloud.Instances.Terminate(n.Name))
	l.WaitEvents()
	if e, there := l.Snapshot().ENI(branch.ID); !there || e.Status() != "available" {
		t.Errorf("the branch of a terminated instance is %+v", e)
	}
}
