package vpc_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// trunk creates a trunk, attaches it to an instance, and returns the ENI and the attachment ID.
func trunk(t *testing.T, c *vpc.Cloud, instance string) (e vpc.ENI, attachmentID string) {
	t.Helper()
	e, err := c.ENIs.Create(vpc.CreateRequest{SubnetID: subnetID(t, c, "a"), Type: "trunk"})
	ok(t, err)
	attachmentID, err = c.ENIs.Attach(vpc.AttachRequest{ENIID: e.ID, InstanceID: c.Instances.ID(instance), DeviceIndex: 1})
	ok(t, err)
	return e, attachmentID
}

// A branch carries traffic while its trunk's link exists: after the association, or once the link appears,
// and again after a restart of the instance.
func TestBranchEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t, delayed())
		s := follow(c)
		e, _ := trunk(t, c, "node-a")
		associate := func(vlan int) vpc.Association {
			t.Helper()
			a, err := c.ENIs.Associate(vpc.AssociateRequest{TrunkID: e.ID, BranchID: spare(t, c).ID, VLAN: vlan})
			ok(t, err)
			return a
		}
		second, first := associate(2), associate(1)
		s.want(t)
		pass(3 * time.Second)
		s.want(t, "ENIAttached node-a 1", "ENIAssociated node-a vlan 1", "ENIAssociated node-a vlan 2")
		third := associate(3)
		s.want(t, "ENIAssociated node-a vlan 3")
		if _, err := c.ENIs.Assign(third.BranchID, vpc.AddressRequest{IPv4Count: 1}); err != nil {
			t.Fatal(err)
		}
		s.want(t, "AddressesChanged node-a vlan 3")
		ok(t, c.ENIs.Disassociate(vpc.DisassociateRequest{AssociationID: second.ID}))
		s.want(t, "ENIDisassociated node-a vlan 2")
		ok(t, c.ENIs.Delete(third.BranchID))
		s.want(t, "ENIDisassociated node-a vlan 3")

		ok(t, c.Instances.Stop("node-a"))
		pass(4 * time.Second)
		s.want(t, "InstanceStopped node-a")
		ok(t, c.Instances.Start("node-a"))
		pass(5 * time.Second)
		s.want(t, "InstanceLaunched node-a", "ENIAttached node-a 0", "ENIAttached node-a 1", "ENIAssociated node-a vlan 1")
		if got := c.Snapshot().Branches(e.ID); len(got) != 1 || got[0].ID != first.BranchID || got[0].Trunk.VLAN != 1 {
			t.Errorf("branches = %+v, want the first with VLAN 1", got)
		}
		ok(t, c.Instances.Terminate("node-a"))
		pass(4 * time.Second)
		s.want(t, "ENIDetached node-a 0", "ENIDisassociated node-a vlan 1", "ENIDetached node-a 1", "InstanceTerminated node-a")
	})
}

// A trunk that is being detached accepts no branches.
func TestDetachingTrunkAcceptsNoBranches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t, delayed())
		e, attachment := trunk(t, c, "node-a")
		pass(3 * time.Second)
		ok(t, c.ENIs.Detach(attachment, false))
		_, err := c.ENIs.Associate(vpc.AssociateRequest{TrunkID: e.ID, BranchID: spare(t, c).ID, VLAN: 1})
		if vpc.CodeOf(err) != "IncorrectState" {
			t.Errorf("Associate() with a detaching trunk = %v, want IncorrectState", err)
		}
	})
}

// Associations become visible, and can be ended, with the same delay as ENIs.
func TestAssociationsAreEventuallyConsistent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := delayed()
		s.Consistency = spec.Consistency{Describe: spec.Duration(time.Second), Writes: true}
		s.Instances[0].Interfaces = []spec.Interface{{DeviceIndex: 1, Type: "trunk"}}
		c := newCloud(t, s)
		e, branch := c.Snapshot().InstanceENIs(c.Instances.ID("node-a"))[1], spare(t, c)
		_, err := c.ENIs.Associate(vpc.AssociateRequest{TrunkID: e.ID, BranchID: branch.ID, VLAN: 1})
		if vpc.CodeOf(err) != "InvalidNetworkInterfaceID.NotFound" {
			t.Errorf("Associate() of an ENI that is not visible yet = %v, want InvalidNetworkInterfaceID.NotFound", err)
		}
		pass(time.Second)
		a, err := c.ENIs.Associate(vpc.AssociateRequest{TrunkID: e.ID, BranchID: branch.ID, VLAN: 1})
		ok(t, err)
		if got := c.Described().Associations(); len(got) != 0 || c.Described().ENI(branch.ID).Status() != "available" {
			t.Errorf("associations immediately after Associate() = %+v, want none", got)
		}
		if err := c.ENIs.Disassociate(vpc.DisassociateRequest{AssociationID: a.ID}); vpc.CodeOf(err) != "InvalidAssociationID.NotFound" {
			t.Errorf("Disassociate() immediately after Associate() = %v, want InvalidAssociationID.NotFound", err)
		}
		pass(time.Second)
		if got := c.Described().Associations(); len(got) != 1 || *got[0] != a {
			t.Errorf("associations after the delay = %+v, want one", got)
		}
		ok(t, c.ENIs.Disassociate(vpc.DisassociateRequest{AssociationID: a.ID}))
		if got := c.Described().Associations(); len(got) != 1 {
			t.Errorf("associations immediately after Disassociate() = %+v, want one", got)
		}
		pass(time.Second)
		if got := c.Described().Associations(); len(got) != 0 {
			t.Errorf("associations after the second delay = %+v, want none", got)
		}
	})
}
