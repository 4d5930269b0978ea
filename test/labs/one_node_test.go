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

// nodeTroubles are failures by node.
var nodeTroubles = map[string]func(*testing.T, *cluster, string){
	"notags": noMatchingSubnet, "full": subnetFull, "nogroup": deletedGroup,
	"halted": instanceStopped, "idle": idleInstanceStopped, "dying": instanceTerminated, "removed": objectDeleted, "nodeless": nodeDeleted,
}

// TestFailuresStayOnTheirNode has a failure on each node of one cluster, all at the same time.
func TestFailuresStayOnTheirNode(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, 5, 7)
	s := withNodes(t, slices.Sorted(maps.Keys(nodeTroubles))...)
	s.Delays.Stop = spec.Duration(time.Hour) // until a test has seen enough of it
	s.VPCs[0].Subnets[0].Tags = map[string]string{"for": "pods"}
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{
		Name: "tiny", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.0.8.0/28"), Tags: map[string]string{"for": "few"},
	})
	raise(t, s).eachOnItsNode(t, nodeTroubles)
}

// noMatchingSubnet selects subnets by tags that none has: the node gets no further ENI, and fills
// those that it has.
func noMatchingSubnet(t *testing.T, c *cluster, name string) {
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SubnetTags = map[string]string{"for": "nobody"} })
	c.want(t, name, int32(c.few.PerENI+2))
	c.has(t, name, c.few.PerENI)
	c.troubled(t, name, v1alpha1.ConditionInDeficit, "SubnetFull", "none of the configured subnets", "zone and VPC")
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SubnetTags = map[string]string{"for": "pods"} })
	c.healed(t, name, c.few.PerENI+2)
}

// subnetFull fills a subnet with IPv4 addresses, which is tried again until there are free ones. IPv6
// addresses do not run out.
func subnetFull(t *testing.T, c *cluster, name string) {
	sn, _ := c.Snapshot().Subnet("tiny")
	room := 1 // for a further ENI, and one pod; with IPv6 alone for neither
	leave := room + 1
	if c.IPFamilies == ipfamily.OnlyIPv6 {
		room, leave = 0, 0
	}
	other, err := c.Cloud.ENIs.Create(vpc.CreateRequest{SubnetID: sn.ID, Addresses: vpc.AddressRequest{IPv4Count: sn.Free - 1 - leave}})
	harness.OK(t, err)
	defer func() { _ = c.Cloud.ENIs.Delete(other.ID) }()
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SubnetTags = map[string]string{"for": "few"} })
	want := c.few.PerENI + 3
	c.want(t, name, int32(want)) // three more on an ENI in tiny
	c.has(t, name, c.few.PerENI+room)
	short := "has a free address"
	if c.IPFamilies.Has(ipfamily.IPv6) {
		short = "has a free IPv4 address"
	}
	c.condition(t, name, v1alpha1.ConditionInDeficit, metav1.ConditionTrue, "SubnetFull", "no subnet", short, "free some")
	// The event may also be that EC2 refused a call, as counts of free addresses may be old.
	c.event(t, name, "NetworkSubnetFull", "free", "or configure a further subnet")
	c.othersGrow(t)
	harness.OK(t, c.Cloud.ENIs.Delete(other.ID))
	c.healed(t, name, want)
}

// deletedGroup names a security group that does not exist, until somebody names another.
func deletedGroup(t *testing.T, c *cluster, name string) {
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SecurityGroups = []string{"sg-0123456789abcdef0"} })
	c.want(t, name, int32(c.few.PerENI+2))
	c.troubled(t, name, v1alpha1.ConditionDegraded, "NotFound", "sg-0123456789abcdef0", "security groups")
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SecurityGroups = nil })
	c.healed(t, name, c.few.PerENI+2)
}

// instanceStopped stops an instance: it keeps what it has, and grows once it runs.
func instanceStopped(t *testing.T, c *cluster, name string) {
	n := c.named(t, name)
	instance := n.InstanceID
	before := len(harness.ENIs(c.Lab, n))
	harness.OK(t, c.Cloud.Instances.Stop(instance)) // while it is stopping nothing can be attached
	c.want(t, name, int32(c.few.PerENI+2))
	c.condition(t, name, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "Conflict", instance, "stopped", "start the instance")
	// The event may also be that EC2 refused to attach an ENI while the instance was stopping.
	c.event(t, name, "NetworkConflict", instance, "stop")
	c.othersGrow(t)
	if o := harness.NodeNetwork(t, c.Lab, name); len(o.Spec.IPAM.Available) == 0 || len(c.Snapshot().InstanceENIs(instance)) != before {
		t.Errorf("a stopped instance lost something: %d addresses, %d ENIs of %d", len(o.Spec.IPAM.Available), len(c.Snapshot().InstanceENIs(instance)), before)
	}
	harness.OK(t, c.Cloud.Instances.ForceStop(instance))
	harness.OK(t, c.Cloud.Instances.Start(instance))
	c.healed(t, name, c.few.PerENI+2)
	harness.Eventually(t, patience, "the node takes pods again", func() error {
		n, err := c.Node(name)
		if err != nil {
			return err
		}
		return n.WaitReady(harness.Deadline(t, patience))
	})
	harness.Add(t, c.named(t, name), "after")
}

// idleInstanceStopped stops an instance that needs nothing. The operator notices it, and that it runs
// again, by its Node.
func idleInstanceStopped(t *testing.T, c *cluster, name string) {
	instance := c.named(t, name).InstanceID
	c.ready(t, name, corev1.ConditionTrue)
	harness.OK(t, c.Cloud.Instances.Stop(instance))
	c.ready(t, name, corev1.ConditionUnknown) // as the controller manager does when the kubelet is silent
	c.troubled(t, name, v1alpha1.ConditionDegraded, "Conflict", instance, "stopped", "start the instance")
	harness.OK(t, c.Cloud.Instances.ForceStop(instance))
	harness.OK(t, c.Cloud.Instances.Start(instance))
	c.ready(t, name, corev1.ConditionTrue)
	c.healed(t, name, 1)
}

// ready sets the Node's condition as a kubelet does.
func (c *cluster) ready(t *testing.T, name string, is corev1.ConditionStatus) {
	t.Helper()
	body := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, is)
	harness.Eventually(t, patience, fmt.Sprintf("report Ready=%s of %s", is, name), func() error {
		k := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return c.Kube.Client.Status().Patch(t.Context(), k, client.RawPatch(types.MergePatchType, body))
	})
}

// instanceTerminated terminates an instance that grows: neither its object nor an ENI is left.
func instanceTerminated(t *testing.T, c *cluster, name string) {
	n, keep := c.named(t, name), false
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.DeleteOnTermination = &keep }) // they outlive it
	c.want(t, name, int32(c.few.Further()))
	harness.Eventually(t, patience, "growth began", func() error {
		if len(harness.ENIs(c.Lab, n)) < 2 {
			return fmt.Errorf("%d ENIs", len(harness.ENIs(c.Lab, n)))
		}
		return nil
	})
	harness.OK(t, c.Cloud.Instances.Terminate(n.InstanceID))
	c.gone(t, name, n.InstanceID)
	c.othersGrow(t)
}

// gone waits until nothing is left of a node.
func (c *cluster) gone(t *testing.T, name, instance string) {
	t.Helper()
	harness.Eventually(t, patience, "nothing is left of "+name, func() error {
		list, err := c.Kube.NodeNetworks(t.Context())
		if err != nil {
			return err
		}
		if slices.ContainsFunc(list, func(o v1alpha1.NodeNetwork) bool { return o.Name == name }) {
			return fmt.Errorf("its NodeNetwork is there")
		}
		for _, e := range c.Snapshot().ENIs {
			if strings.Contains(e.Description, instance) {
				return fmt.Errorf("%s (%s) is there", e.ID, e.Description)
			}
		}
		return nil
	})
}

// remove deletes an object, but none that has replaced it.
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

// madeAnew waits until a node's object has another UID.
func (c *cluster) madeAnew(t *testing.T, name string, old types.UID) {
	t.Helper()
	harness.Becomes(t, c.Lab, name, "another than before", func(o *v1alpha1.NodeNetwork) error {
		if o.UID == old {
			return errors.New("it is the old one")
		}
		return nil
	})
}

// objectDeleted deletes an object: the daemon creates it again, and pods are not affected.
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
	c.has(t, name, 4) // three pods and the configured one
	c.well(t, name)
	harness.Becomes(t, c.Lab, name, "its pods' addresses are in the new object", func(o *v1alpha1.NodeNetwork) error {
		for pod, addrs := range pods {
			for _, a := range addrs {
				at, use := availableOf(o, a), o.Status.IPAM.Used[a.String()]
				if at.Resource == "" || at.Resource != use.Resource || use.Cooling {
					return fmt.Errorf("%s of pod %s is available %+v and used %+v", a, pod, at, use)
				}
			}
		}
		return nil
	})
	for pod, addrs := range pods {
		harness.OK(t, n.CheckPod(t.Context(), pod))
		if p, err := n.Pod(pod); err != nil || !slices.Equal(p.Addrs, addrs) {
			t.Errorf("pod %s has %v now, want %v (%v)", pod, p, addrs, err)
		}
	}
	harness.StartedOnce(t, n.Process)
	harness.Add(t, n, "after")
	c.condition(t, name, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
}

// availableOf is the entry of an address, or of the prefix that has it.
func availableOf(o *v1alpha1.NodeNetwork, a netip.Addr) v1alpha1.AvailableAddress {
	for text, at := range o.Spec.IPAM.Available {
		if p, err := netip.ParsePrefix(text); text == a.String() || err == nil && p.Contains(a) {
			return at
		}
	}
	return v1alpha1.AvailableAddress{}
}

// nodeDeleted deletes a Node: its object is deleted too, the daemon creates it again, and pods come
// and go.
func nodeDeleted(t *testing.T, c *cluster, name string) {
	n := c.named(t, name)
	p := harness.Add(t, n, "before")
	c.has(t, name, 2) // its own and the configured one: none is got without a Node
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
	harness.Eventually(t, patience, "its kubelet registers the Node", func() error {
		k := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: k.Spec}
		return client.IgnoreAlreadyExists(c.Kube.Client.Create(t.Context(), k))
	})
	c.has(t, name, 3)
	harness.Add(t, n, "after")
	c.well(t, name)
}
