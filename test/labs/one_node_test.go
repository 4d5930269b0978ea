package labs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/test/harness"
)

// nodeTroubles are failures by node name.
var nodeTroubles = map[string]func(*testing.T, *cluster, string){
	"notags": noMatchingSubnet, "full": subnetFull, "nogroup": deletedGroup,
	"halted": instanceStopped, "idle": idleInstanceStopped, "dying": instanceTerminated, "removed": objectDeleted, "nodeless": nodeDeleted,
}

// TestFailuresStayOnTheirNode causes a failure on each node of one cluster, all at the same time.
func TestFailuresStayOnTheirNode(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, 5, 7)
	s := withNodes(t, slices.Sorted(maps.Keys(nodeTroubles))...)
	s.Delays.Stop = spec.Duration(time.Hour) // until the test ends the stop
	s.VPCs[0].Subnets[0].Tags = map[string]string{"for": "pods"}
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{
		Name: "tiny", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.0.8.0/28"), Tags: map[string]string{"for": "few"},
	})
	raise(t, s).eachOnItsNode(t, nodeTroubles)
}

// noMatchingSubnet selects subnets by tags that no subnet has: the node gets no additional ENI, and fills its
// existing ENIs.
func noMatchingSubnet(t *testing.T, c *cluster, name string) {
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SubnetTags = map[string]string{"for": "nobody"} })
	c.want(t, name, int32(c.few.PerENI+2))
	c.has(t, name, c.few.PerENI)
	c.troubled(t, name, v1alpha1.ConditionInDeficit, "SubnetFull", "none of the configured subnets", "zone and VPC")
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SubnetTags = map[string]string{"for": "pods"} })
	c.healed(t, name, c.few.PerENI+2)
}

// subnetFull fills a subnet's IPv4 addresses; the operator retries until some are free. IPv6 addresses do not run
// out.
func subnetFull(t *testing.T, c *cluster, name string) {
	sn, _ := c.Snapshot().Subnet("tiny")
	room := 1 // for another ENI and one pod; IPv6-only needs neither
	leave := room + 1
	if c.IPFamilies == ipfamily.OnlyIPv6 {
		room, leave = 0, 0
	}
	other, err := c.Cloud.ENIs.Create(vpc.CreateRequest{SubnetID: sn.ID, Addresses: vpc.AddressRequest{IPv4Count: sn.Free - 1 - leave}})
	harness.OK(t, err)
	defer func() { _ = c.Cloud.ENIs.Delete(other.ID) }()
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SubnetTags = map[string]string{"for": "few"} })
	want := c.few.PerENI + 3
	c.want(t, name, int32(want)) // three more on an ENI in subnet tiny
	c.has(t, name, c.few.PerENI+room)
	short := "has a free address"
	if c.IPFamilies.Has(ipfamily.IPv6) {
		short = "has a free IPv4 address"
	}
	c.condition(t, name, v1alpha1.ConditionInDeficit, metav1.ConditionTrue, "SubnetFull", "no subnet", short, "free some")
	// The Event may also report that EC2 refused a call, because free counts may be old.
	c.event(t, name, "NetworkSubnetFull", "free", "or configure a further subnet")
	c.othersGrow(t)
	harness.OK(t, c.Cloud.ENIs.Delete(other.ID))
	c.healed(t, name, want)
}

// deletedGroup sets a security group that does not exist, and later an existing one.
func deletedGroup(t *testing.T, c *cluster, name string) {
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SecurityGroups = []string{"sg-0123456789abcdef0"} })
	c.want(t, name, int32(c.few.PerENI+2))
	c.troubled(t, name, v1alpha1.ConditionDegraded, "NotFound", "sg-0123456789abcdef0", "security groups")
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SecurityGroups = nil })
	c.healed(t, name, c.few.PerENI+2)
}

// instanceStopped stops an instance: the node keeps its addresses, and grows once the instance runs.
func instanceStopped(t *testing.T, c *cluster, name string) {
	n := c.named(t, name)
	instance := n.InstanceID
	before := len(harness.ENIs(c.Lab, n))
	harness.OK(t, c.Cloud.Instances.Stop(instance)) // ENIs cannot be attached while the instance is stopping
	c.want(t, name, int32(c.few.PerENI+2))
	c.condition(t, name, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "Conflict", instance, "stopped", "start the instance")
	// The Event may also report that EC2 refused to attach an ENI while the instance was stopping.
	c.event(t, name, "NetworkConflict", instance, "stop")
	c.othersGrow(t)
	if o := harness.NodeNetwork(t, c.Lab, name); len(o.Spec.IPAM.Available) == 0 || len(c.Snapshot().InstanceENIs(instance)) != before {
		t.Errorf("stopped instance has %d available addresses and %d ENIs, want some addresses and %d ENIs", len(o.Spec.IPAM.Available), len(c.Snapshot().InstanceENIs(instance)), before)
	}
	harness.OK(t, c.Cloud.Instances.ForceStop(instance))
	harness.OK(t, c.Cloud.Instances.Start(instance))
	c.healed(t, name, c.few.PerENI+2)
	harness.Eventually(t, patience, "the node accepts pods again", func() error {
		n, err := c.Node(name)
		if err != nil {
			return err
		}
		return n.WaitReady(harness.Deadline(t, patience))
	})
	harness.Add(t, c.named(t, name), "after")
}

// idleInstanceStopped stops an idle instance. The operator notices the stop and the start through the Node.
func idleInstanceStopped(t *testing.T, c *cluster, name string) {
	instance := c.named(t, name).InstanceID
	c.ready(t, name, corev1.ConditionTrue)
	harness.OK(t, c.Cloud.Instances.Stop(instance))
	c.ready(t, name, corev1.ConditionUnknown) // like the controller manager does if the kubelet is silent
	c.troubled(t, name, v1alpha1.ConditionDegraded, "Conflict", instance, "stopped", "start the instance")
	harness.OK(t, c.Cloud.Instances.ForceStop(instance))
	harness.OK(t, c.Cloud.Instances.Start(instance))
	c.ready(t, name, corev1.ConditionTrue)
	c.healed(t, name, 1)
}

// ready sets the Node's Ready condition like a kubelet does.
func (c *cluster) ready(t *testing.T, name string, is corev1.ConditionStatus) {
	t.Helper()
	body := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, is)
	harness.Eventually(t, patience, fmt.Sprintf("report Ready=%s of %s", is, name), func() error {
		k := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return c.Kube.Client.Status().Patch(t.Context(), k, client.RawPatch(types.MergePatchType, body))
	})
}

// instanceTerminated terminates an instance during growth: neither its object nor an ENI is left.
func instanceTerminated(t *testing.T, c *cluster, name string) {
	n, keep := c.named(t, name), false
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.DeleteOnTermination = &keep }) // ENIs outlive the instance
	c.want(t, name, int32(c.few.Further()))
	harness.Eventually(t, patience, "growth has started", func() error {
		if len(harness.ENIs(c.Lab, n)) < 2 {
			return fmt.Errorf("%d ENIs", len(harness.ENIs(c.Lab, n)))
		}
		return nil
	})
	harness.OK(t, c.Cloud.Instances.Terminate(n.InstanceID))
	c.gone(t, name, n.InstanceID)
	c.othersGrow(t)
}

// gone waits until nothing of a node is left.
func (c *cluster) gone(t *testing.T, name, instance string) {
	t.Helper()
	harness.Eventually(t, patience, "nothing of "+name+" is left", func() error {
		list, err := c.Kube.NodeNetworks(t.Context())
		if err != nil {
			return err
		}
		if slices.ContainsFunc(list, func(o v1alpha1.NodeNetwork) bool { return o.Name == name }) {
			return fmt.Errorf("its NodeNetwork still exists")
		}
		for _, e := range c.Snapshot().ENIs {
			if strings.Contains(e.Description, instance) {
				return fmt.Errorf("%s (%s) still exists", e.ID, e.Description)
			}
		}
		return nil
	})
}

// remove deletes an object, but not one that has replaced it.
func (c *cluster) remove(t *testing.T, o client.Object) {
	t.Helper()
	uid := o.GetUID()
	harness.Eventually(t, patience, "delete "+o.GetName(), func() error {
		err := c.Kube.Client.Delete(t.Context(), o, client.Preconditions{UID: &uid})
		if apierrors.IsConflict(err) {
			return nil
		}
		return client.IgnoreNotFound(err)
	})
}

// madeAnew waits until a node's object has a new UID.
func (c *cluster) madeAnew(t *testing.T, name string, old types.UID) {
	t.Helper()
	harness.Becomes(t, c.Lab, name, "object is recreated", func(o *v1alpha1.NodeNetwork) error {
		if o.UID == old {
			return errors.New("the old object still exists")
		}
		return nil
	})
}

// objectDeleted deletes an object: the daemon recreates it, and pods are unaffected.
func objectDeleted(t *testing.T, c *cluster, name string) {
	n := c.named(t, name)
	c.want(t, name, 3)
	c.has(t, name, 3)
	pods := map[string][]netip.Addr{}
	for i := range 3 {
		p := harness.Add(t, n, fmt.Sprintf("p%d", i))
		pods[p.Name] = p.Addrs
	}
	c.has(t, name, 6)
	old := harness.NodeNetwork(t, c.Lab, name)
	c.remove(t, old)
	c.othersGrow(t)
	c.madeAnew(t, name, old.UID)
	c.has(t, name, 4) // three pods and the configured free one
	c.well(t, name)
	harness.Becomes(t, c.Lab, name, "new object has the addresses of the pods", func(o *v1alpha1.NodeNetwork) error {
		for pod, addrs := range pods {
			for _, a := range addrs {
				at, use := availableOf(o, a), o.Status.IPAM.Used[a.String()]
				if at.Resource == "" || at.Resource != use.Resource || use.Cooling {
					return fmt.Errorf("%s of pod %s: available = %+v, used = %+v, want both on the same ENI", a, pod, at, use)
				}
			}
		}
		return nil
	})
	for pod, addrs := range pods {
		harness.OK(t, n.CheckPod(t.Context(), pod))
		if p, err := n.Pod(pod); err != nil || !slices.Equal(p.Addrs, addrs) {
			t.Errorf("pod %s = %v, want the addresses %v (error %v)", pod, p, addrs, err)
		}
	}
	harness.StartedOnce(t, n.Process)
	harness.Add(t, n, "after")
	c.condition(t, name, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
}

// availableOf returns the entry of an address, or of the prefix that contains it.
func availableOf(o *v1alpha1.NodeNetwork, a netip.Addr) v1alpha1.AvailableAddress {
	for text, at := range o.Spec.IPAM.Available {
		if p, err := netip.ParsePrefix(text); text == a.String() || err == nil && p.Contains(a) {
			return at
		}
	}
	return v1alpha1.AvailableAddress{}
}

// nodeDeleted deletes a Node: its object is deleted, too, the daemon recreates it, and pods can be added and removed.
func nodeDeleted(t *testing.T, c *cluster, name string) {
	n := c.named(t, name)
	p := harness.Add(t, n, "before")
	c.has(t, name, 2) // its own and the configured free one, because none can be requested without a Node
	k := &corev1.Node{}
	harness.Eventually(t, patience, "read the Node", func() error {
		return c.Kube.Client.Get(t.Context(), client.ObjectKey{Name: name}, k)
	})
	old := harness.NodeNetwork(t, c.Lab, name).UID
	c.remove(t, k)
	c.madeAnew(t, name, old)
	c.othersGrow(t)
	harness.Add(t, n, "meanwhile")
	harness.OK(t, n.CheckPod(t.Context(), p.Name))
	harness.Eventually(t, patience, "kubelet registers the Node", func() error {
		k := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: k.Spec}
		return client.IgnoreAlreadyExists(c.Kube.Client.Create(t.Context(), k))
	})
	c.has(t, name, 3)
	harness.Add(t, n, "after")
	c.well(t, name)
}
