package operator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/sourcenode"
)

// attached lists an instance's ENIs with their secondary addresses.
func (c *cluster) attached(instance string) (out []string) {
	for _, e := range c.lab.Cloud.Snapshot().InstanceENIs(c.lab.Cloud.Instances.ID(instance)) {
		out = append(out, fmt.Sprintf("%s %v", e.ID, e.Secondary))
	}
	slices.Sort(out)
	return out
}

// A node whose daemon's token is in the wrong hands names another node's
// instance in its object, wants nothing there, and confirms whatever it is asked
// to give back: the other node keeps its ENIs and addresses.
func TestObjectNamesAnothersInstance(t *testing.T) {
	c := newCluster(t)
	o := c.start("one", "--shrink-delay=50ms", "--listing-interval=1s", "--settle-time=1s")
	o.until(c.leads("one"))
	four := v1alpha1.ENISpec{PreAllocate: new(int32(4))}
	c.node("node-a", four)
	c.node("node-b", four)
	o.until(c.has("node-a", 4))
	o.until(c.has("node-b", 4))
	before := c.attached("node-a")

	thief := harness.KubeClientFor(t, sourcenode.Config(t, "berthd", "node-b")) // has its daemon's token, and nothing else
	mine := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "node-b"}}
	harness.Eventually(t, limit, "the daemon may not delete its own object, in which a person's settings are", func() error {
		// A dry run: the API server may not enforce its policies yet.
		if err := thief.Delete(t.Context(), mine.DeepCopy(), client.DryRunAll); err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return errors.Join(errors.New("not refused by a policy"), err)
		}
		return nil
	})
	harness.OK(t, c.client.Delete(t.Context(), mine.DeepCopy())) // a person did
	harness.Eventually(t, limit, "it makes the object anew", func() error {
		// eth0 is for those only whom berthd-allowed lists
		return thief.Create(t.Context(), objectOf("node-b", c.lab.Cloud.Instances.ID("node-a"), v1alpha1.ENISpec{PreAllocate: new(int32)}))
	})
	harness.Eventually(t, limit, "the operator says that it will not work for that object", func() error {
		if now := c.attached("node-a"); !slices.Equal(now, before) {
			t.Fatalf("node-a had %v and has %v", before, now)
		}
		old := c.read("node-b")
		got := old.DeepCopy()
		got.Status.IPAM.Released, got.Status.IPAM.InstanceID = got.Spec.IPAM.Releasing, got.Spec.InstanceID
		if err := thief.Status().Patch(t.Context(), got, client.MergeFrom(old)); err != nil {
			return err
		}
		if d := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionDegraded); d != nil && d.Reason == "AnotherInstance" {
			return nil
		}
		return fmt.Errorf("conditions %+v", got.Status.Conditions)
	})
	if o := c.read("node-b"); len(o.Spec.IPAM.Available) > 0 {
		t.Errorf("it is told of another node's addresses: %v", o.Spec.IPAM.Available)
	}
	// Node-a grows as before.
	c.wants("node-a", 6)
	o.until(c.has("node-a", 6))

	// Without a provider ID it is EC2 that tells: a Node of the private DNS name
	// of the other instance has that one.
	harness.OK(t, c.client.Delete(t.Context(), mine.DeepCopy()))
	id := c.lab.Cloud.Instances.ID("node-b")
	primary := c.lab.Cloud.Snapshot().InstanceENIs(id)[0].Primary
	name := fmt.Sprintf("ip-%s.%s.compute.internal", strings.ReplaceAll(primary.String(), ".", "-"), c.lab.Cloud.Region())
	harness.OK(t, c.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	harness.OK(t, c.client.Create(t.Context(), objectOf(name, id, four)))
	o.until(c.has(name, 4))
}
