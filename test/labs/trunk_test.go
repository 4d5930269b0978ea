package labs

import (
	"fmt"
	"slices"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/test/harness"
)

// TestOperatorKeepsATrunk sets spec.eni.trunk: the instance has a trunk, whose addresses no pod gets, even after a
// restart of the daemon. When unset, the trunk is deleted.
func TestOperatorKeepsATrunk(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, 0) // make e2e runs TestPodsHaveBranches, with pods on trunks
	l := harness.RaiseQuick(t, lab.OperatorMode, lab.Options{Nodes: 1, InstanceType: "m5.large"})
	n := l.Nodes()[0]
	p := harness.Add(t, n, "before")
	trunks := func() []vpc.ENI {
		return slices.DeleteFunc(harness.ENIs(l, n), func(e vpc.ENI) bool { return e.Type != "trunk" })
	}
	harness.Edit(t, l, n.Name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.Trunk = new(true) })
	harness.Becomes(t, l, n.Name, "status of the trunk", func(o *v1alpha1.NodeNetwork) error {
		list, st := trunks(), o.Status.ENI.Trunk
		if st == nil || len(list) != 1 || st.ID != list[0].ID || st.MAC != list[0].MAC.String() || st.Reason != "" {
			return fmt.Errorf("status = %+v, trunks in EC2 = %+v", st, list)
		}
		return nil
	})
	harness.Restart(t, n)
	q := harness.Add(t, n, "after")
	for _, a := range trunks() {
		if a.Owns(p.Addr()) || a.Owns(q.Addr()) {
			t.Errorf("a pod has an address on the trunk %s", a.ID)
		}
	}
	harness.Settle(t, l)

	harness.Edit(t, l, n.Name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.Trunk = nil })
	harness.Becomes(t, l, n.Name, "trunk is deleted", func(o *v1alpha1.NodeNetwork) error {
		if list, st := trunks(), o.Status.ENI.Trunk; st != nil || len(list) > 0 {
			return fmt.Errorf("status = %+v, trunks in EC2 = %+v", st, list)
		}
		return nil
	})
	harness.Settle(t, l)
}
