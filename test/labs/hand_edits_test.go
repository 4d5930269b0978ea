package labs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness"
)

// handEdits are edits by node name. TestManualEditsAreCorrected in internal/operator/nodeenis covers more of spec.ipam.
var handEdits = map[string]func(*testing.T, *cluster, string){
	"emptied": availableEmptied, "invented": availableInvented, "wiped": statusWiped,
	"smaller": wrongType("t3.nano", 4), "larger": wrongType("m5.4xlarge", 30), "nosuch": wrongType("m5.nosuch", 3),
	"huge": hugeWatermark, "othervpc": otherVPC, "otherid": otherInstance,
}

// TestHandEditsAreCorrected writes invalid values that CEL admits to NodeNetworks. Operator and daemon restore the
// fields that they own; invalid values in users' fields are reported. Pods are unaffected.
func TestHandEditsAreCorrected(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, 4, 8)
	s := withNodes(t, slices.Sorted(maps.Keys(handEdits))...)
	s.VPCs = append(s.VPCs, spec.Default().VPCs[0])
	s.VPCs[1].Name, s.VPCs[1].CIDRs = "other", []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	s.VPCs[1].Subnets = []spec.Subnet{{Name: "c", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.1.0.0/24")}}
	tests := map[string]func(*testing.T, *cluster, string){}
	for name, edit := range handEdits {
		tests[name] = func(t *testing.T, c *cluster, name string) {
			n := c.named(t, name)
			c.want(t, name, 2)
			c.has(t, name, 2)
			p := harness.Add(t, n, "stays")
			c.has(t, name, 3)
			c.well(t, name)
			edit(t, c, name)
			harness.OK(t, n.CheckPod(t.Context(), p.Name))
			harness.Add(t, n, "after")
			c.well(t, name)
		}
	}
	c := raise(t, s)
	c.eachOnItsNode(t, tests)
	harness.StartedOnce(t, harness.Programs(c.Lab)...)
}

// patch changes any part of an object, like `kubectl patch`.
func (c *cluster) patch(t *testing.T, name, body string) {
	t.Helper()
	harness.Eventually(t, patience, "patch the object of "+name, func() error {
		o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return c.Kube.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(body)), client.FieldOwner("kubectl-patch"))
	})
}

// restored waits until an object has exactly the addresses of the instance in EC2.
func (c *cluster) restored(t *testing.T, name string) {
	t.Helper()
	n := c.named(t, name)
	harness.Becomes(t, c.Lab, name, "spec.ipam is restored", func(o *v1alpha1.NodeNetwork) error {
		want := map[string]string{}
		for i, e := range harness.ENIs(c.Lab, n) {
			for _, a := range e.Secondary {
				want[a.String()] = e.ID
			}
			for _, p := range e.IPv6Prefixes {
				want[p.String()] = e.ID
			}
			for _, a := range e.IPv6 {
				if i > 0 { // the primary's address belongs to the node
					want[a.String()] = e.ID
				}
			}
		}
		for a, id := range want {
			if o.Spec.IPAM.Available[a].Resource != id {
				return fmt.Errorf("%s on %s is not available: %+v", a, id, o.Spec.IPAM)
			}
		}
		for _, a := range o.Spec.IPAM.Releasing {
			if _, ok := o.Spec.IPAM.Available[a]; !ok {
				return fmt.Errorf("%s is releasing", a)
			}
		}
		return harness.Equal("available addresses", len(o.Spec.IPAM.Available), len(want))
	})
}

func availableEmptied(t *testing.T, c *cluster, name string) {
	c.patch(t, name, `{"spec":{"ipam":{"available":null,"releasing":null}}}`)
	c.event(t, name, "NetworkOverwritten", "spec.ipam")
	c.othersGrow(t)
	c.restored(t, name)
}

// availableInvented lists addresses that EC2 has not assigned, or without an ENI: they are removed.
func availableInvented(t *testing.T, c *cluster, name string) {
	eni := harness.ENIs(c.Lab, c.named(t, name))[1].ID
	c.patch(t, name, fmt.Sprintf(`{"spec":{"ipam":{"available":{"10.0.3.250":{"resource":%[1]q},"2001:db8:1::fa":{"resource":%[1]q},"2001:db8:1:0:fa::/80":{"resource":%[1]q},"192.0.2.9":{"resource":"eni-nosuch"},"fd00::1":{"resource":""}}}}}`, eni))
	c.othersGrow(t)
	c.restored(t, name)
}

// wrongType sets another instance type, which is reported and ignored: the node gets the requested free addresses, up
// to its actual limit.
func wrongType(instanceType string, free int32) func(*testing.T, *cluster, string) {
	return func(t *testing.T, c *cluster, name string) {
		set := func(to string, free int32) {
			harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.InstanceType, s.ENI.PreAllocate = to, &free })
		}
		room := c.few.Further() // for a pod and the free addresses
		set(instanceType, free)
		c.troubled(t, name, v1alpha1.ConditionDegraded, "InstanceTypeMismatch", instanceType, c.few.Type)
		c.has(t, name, min(1+int(free), room))
		if 1+int(free) > room {
			c.condition(t, name, v1alpha1.ConditionInDeficit, metav1.ConditionTrue, "AtLimit")
		}
		set(c.few.Type, 2)
		c.healed(t, name, 3)
	}
}

// hugeWatermark requests more than any instance can have: the instance is filled.
func hugeWatermark(t *testing.T, c *cluster, name string) {
	c.want(t, name, 60000)
	c.has(t, name, c.few.Further())
	c.condition(t, name, v1alpha1.ConditionAtCapacity, metav1.ConditionTrue, "", "instance type")
	c.othersGrow(t)
	c.want(t, name, 2)
	c.rests(t, name, 3) // the excess is released
}

// otherVPC sets a VPC without a subnet for the instance, and one in which EC2 rejects the ENI. Existing ENIs stay in
// use.
func otherVPC(t *testing.T, c *cluster, name string) {
	mine, other, free := harness.ENIs(c.Lab, c.named(t, name))[0].VPCID, "", int32(c.few.Further()-1)
	for _, v := range c.Snapshot().VPCs {
		if v.ID != mine {
			other = v.ID
		}
	}
	in := func(vpc string) {
		harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.VPCID, s.ENI.PreAllocate = vpc, &free })
	}
	in("vpc-0123456789abcdef0")
	c.troubled(t, name, v1alpha1.ConditionInDeficit, "SubnetFull", "none of the configured subnets", "VPC")
	in(other)
	c.troubled(t, name, v1alpha1.ConditionDegraded, "InvalidRequest", "different networks", "check the configured subnets")
	harness.Add(t, c.named(t, name), "meanwhile")
	harness.Remove(t, c.named(t, name), "meanwhile")
	in(mine)
	c.healed(t, name, c.few.Further())
	c.want(t, name, 2) // no room for more, and another pod follows
}

func statusWiped(t *testing.T, c *cluster, name string) {
	empty := client.RawPatch(types.MergePatchType, []byte(`{"status":null}`)) // even if the operator writes concurrently
	harness.Eventually(t, patience, "empty the status of "+name, func() error {
		o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return c.Kube.Client.Status().Patch(t.Context(), o, empty, client.FieldOwner("kubectl-patch"))
	})
	c.othersGrow(t)
	p, err := c.named(t, name).Pod("stays")
	harness.OK(t, err)
	harness.Becomes(t, c.Lab, name, "status is reported again", func(o *v1alpha1.NodeNetwork) error {
		if len(o.Status.ENI.ENIs) == 0 || len(o.Status.Conditions) == 0 || slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return o.Status.IPAM.Used[a.String()].UID != p.UID }) {
			return fmt.Errorf("status = %+v, want ENIs, conditions and the pod's addresses %v as used", o.Status, p.Addrs)
		}
		return nil
	})
}

// otherInstance sets an instance that does not exist: the daemon replaces the object.
func otherInstance(t *testing.T, c *cluster, name string) {
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.InstanceID = "i-0123456789abcdef0" })
	c.othersGrow(t)
	harness.Becomes(t, c.Lab, name, "instance ID is restored", func(o *v1alpha1.NodeNetwork) error {
		if o.Spec.InstanceID != c.named(t, name).InstanceID {
			return fmt.Errorf("instance ID = %s", o.Spec.InstanceID)
		}
		return nil
	})
	c.has(t, name, 2)
}
