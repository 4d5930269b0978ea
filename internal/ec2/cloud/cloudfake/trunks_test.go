package cloudfake

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// TestAssociations: the books tell them by trunk and VLAN, and a listing that trails shows a
// branch as the ENI that it was. What trunks and branches are otherwise, tests of package aws
// hold against the lab.
func TestAssociations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ctx := small(t, Options{}), t.Context()
		first, second := c.State.AddENI("i-1", 1, cloud.InterfaceTrunk, nil), c.State.AddENI("i-1", 2, cloud.InterfaceTrunk, nil)
		c.State.SetLag(time.Second)
		var want []cloud.Association
		for _, at := range []struct {
			trunk string
			vlan  int
		}{{second, 1}, {first, 2}, {first, 1}} {
			e, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1"})
			ok(t, err)
			a, err := c.AssociateBranch(ctx, cloud.Association{TrunkID: at.trunk, BranchID: e.ID, VLAN: at.vlan}, "")
			ok(t, err)
			want = append([]cloud.Association{a}, want...)
		}
		if got := c.State.Associations(); !slices.Equal(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		shown := func(status string) int {
			list, err := c.ENIs(ctx, cloud.ENIFilter{Status: status, Types: []cloud.InterfaceType{cloud.InterfaceBranch, cloud.InterfaceOrdinary}, IDs: []string{want[0].BranchID}})
			ok(t, err)
			return len(list)
		}
		time.Sleep(time.Second) //nolint:forbidigo // bubble time
		ok(t, c.DisassociateBranch(ctx, want[0].ID))
		if shown("in-use") != 1 || shown("available") != 0 {
			t.Error("the end of the association is shown at once")
		}
		time.Sleep(time.Second) //nolint:forbidigo // bubble time
		if shown("in-use") != 0 || shown("available") != 1 {
			t.Error("the end of the association is not shown after a second")
		}
		if got := c.State.Associations(); !slices.Equal(got, want[1:]) {
			t.Errorf("got %+v, want %+v", got, want[1:])
		}
	})
}
