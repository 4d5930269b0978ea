package podnics

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/test/harness"
)

// inPool are the ENIs that are marked as the pool's.
func (b *branches) inPool() (out []cloud.ENI) {
	b.t.Helper()
	for _, e := range b.enis() {
		if strings.HasPrefix(e.Tags[eni.TagNIC], vpcport.Device(cluster, "warm/")) {
			out = append(out, e)
		}
	}
	return out
}

// awaitPool waits until the pool has so many, and returns them.
func (b *branches) awaitPool(n int, what string) (list []cloud.ENI) {
	b.t.Helper()
	harness.Eventually(b.t, limit, what, func() error {
		if list = b.inPool(); len(list) != n {
			return fmt.Errorf("the pool has %d, want %d: %+v", len(list), n, list)
		}
		for _, e := range list {
			if e.Type != cloud.InterfaceBranch {
				return fmt.Errorf("%s is no branch yet", e.ID)
			}
		}
		return nil
	})
	return list
}

// starts makes a pod on a node, and waits until its NIC is active.
func (b *branches) starts(pod, nics, node string) *v1alpha1.PodNIC {
	b.t.Helper()
	b.podIn(pod, nics)
	b.schedule(pod, node)
	return b.awaitNIC(pod, "eth0", "is active", in(v1alpha1.PhaseActive))
}

// away has EC2 answer nothing, until what is returned is called.
func (b *branches) away() (back func()) {
	b.ec2.Front.Inject(cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "")})
	return b.ec2.Front.ClearFaults
}

const inWeb = "[{securityGroups: [sg-web]}]"

// The next pod of a node does not wait for EC2, which may be away: a branch is there that is like
// its last one's. It becomes the pod's for good, and another takes its place.
func TestWarmBranch(t *testing.T) {
	b := startEC2With(t, time.Second, 1, Options{})
	b.starts("web-0", inWeb, "node-1")
	warm := b.awaitPool(1, "one more is made")[0]
	back := b.away()
	o := b.starts("web-1", inWeb, "node-1")
	if o.Status.PortID != warm.ID || o.Status.Addresses[0].CIDR != fmt.Sprintf("%s/20", warm.Primary) || o.Status.Host != "i-1" || o.Status.Plug == nil {
		t.Errorf("the pod has %+v, want %s with %s", o.Status, warm.ID, warm.Primary)
	}
	back()
	marked := func(o *v1alpha1.PodNIC) func() error {
		return func() error {
			for _, e := range b.enis() {
				if e.ID == o.Status.PortID && e.Tags[eni.TagNIC] == vpcport.Device(cluster, string(o.UID)) {
					return nil
				}
			}
			return fmt.Errorf("%+v", b.enis())
		}
	}
	harness.Eventually(t, limit, "it is marked as the NIC's", marked(o))
	next := b.awaitPool(1, "another is made")[0]
	if next.ID == warm.ID {
		t.Errorf("%s is in the pool still", warm.ID)
	}
	b.deletePod("web-1")
	b.awaitGone(o.Name)
	if e := b.enis(); len(e) != 2 {
		t.Errorf("left are %+v, want web-0's and one warm", e)
	}

	// Others do not get it: in other groups, on another node, with an address of their own.
	for pod, nics := range map[string]string{"plain": "", "picky": "[{securityGroups: [sg-web], ip: 10.0.9.9}]"} {
		if o := b.starts(pod, nics, "node-1"); o.Status.PortID == next.ID {
			t.Errorf("%s has %s", pod, next.ID)
		}
	}
	if o := b.starts("other", inWeb, "node-2"); o.Status.PortID == next.ID {
		t.Errorf("a pod of another node has %s", next.ID)
	}
	b.awaitPool(3, "each node and set of groups has one")
}

// Another operator finds what the one before made, and gives none to a NIC that another has, also
// where EC2 was not told of that.
func TestWarmBranchesOfAnOperatorBefore(t *testing.T) {
	b := startEC2With(t, time.Second, 2, Options{})
	b.starts("web-0", inWeb, "node-1")
	b.awaitPool(2, "two more are made")
	b.ec2.Front.Inject(cloudfake.Fault{Op: "Tag", Err: cloudfake.Err(cloud.Transient, "")})
	first := b.starts("web-1", inWeb, "node-1")
	b.end()
	creates := b.calls("CreateENI")
	b.run(Options{WarmKeep: time.Hour})
	harness.Eventually(t, limit, "the other is found", func() error {
		if n := b.c.nics.pool.Ready()["e"]; n == 0 && b.calls("CreateENI") == creates {
			return fmt.Errorf("%d are ready", n)
		}
		return nil
	})
	second := b.starts("web-2", inWeb, "node-1")
	if second.Status.PortID == first.Status.PortID {
		t.Errorf("web-1 and web-2 have %s", first.Status.PortID)
	}
	b.ec2.Front.ClearFaults()
	third := b.starts("web-3", inWeb, "node-1")
	if id := third.Status.PortID; id == first.Status.PortID || id == second.Status.PortID {
		t.Errorf("web-3 has %s, as another", id)
	}
	b.awaitPool(2, "two are ready again")
}

// A branch that an operator which was replaced still records of another PodNIC stays with the NIC that
// had it, whether EC2 was told of that or not, and the other gets one of its own; also when that one ends.
func TestWarmBranchThatTwoRecord(t *testing.T) {
	for name, told := range map[string]bool{"told": true, "not told yet": false} {
		t.Run(name, func(t *testing.T) { twoRecord(t, told) })
	}
}

func twoRecord(t *testing.T, told bool) {
	b := startEC2With(t, 0, 1, Options{})
	b.starts("web-0", inWeb, "node-1")
	b.awaitPool(1, "one more is made")
	if !told {
		b.ec2.Front.Inject(cloudfake.Fault{Op: "Tag", Err: cloudfake.Err(cloud.Transient, "")})
	}
	owner := b.starts("web-1", inWeb, "node-1")
	id := owner.Status.PortID
	b.says(owner, v1alpha1.NodePlugged)
	marked := func() error {
		for _, e := range b.enis() {
			if e.ID == id && e.Tags[eni.TagNIC] == vpcport.Device(cluster, string(owner.UID)) {
				return nil
			}
		}
		return fmt.Errorf("%+v", b.enis())
	}
	if told {
		harness.Eventually(t, limit, "EC2 knows whose it is", marked)
	}
	replaced := harness.KubeClientFor(t, operatorConfig(t)) // with whose rights the other operator wrote
	for _, pod := range []string{"web-2", "web-3"} {
		b.podIn(pod, inWeb)
		o := b.awaitNIC(pod, "eth0", "is there", in(v1alpha1.PhasePending))
		body := fmt.Appendf(nil, `{"status":{"portID":%q}}`, id)
		harness.OK(t, replaced.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, body)))
	}
	gone := b.nicsOf("web-3")["eth0"]
	b.deletePod("web-3")
	b.awaitGone(gone.Name)
	b.ec2.Front.ClearFaults()
	harness.Eventually(t, limit, "EC2 knows whose it is", marked)
	b.schedule("web-2", "node-1")
	other := b.awaitNIC("web-2", "eth0", "has another", func(o *v1alpha1.PodNIC) error {
		if o.Status.PortID == id {
			return errors.New("it has that one")
		}
		return in(v1alpha1.PhaseActive)(o)
	})
	b.deletePod("web-2")
	b.awaitGone(other.Name)
	if o := b.nicsOf("web-1")["eth0"]; o.Status.PortID != id || in(v1alpha1.PhaseActive)(o) != nil {
		t.Errorf("web-1 has %+v, had %s", o.Status, id)
	}
	for _, e := range b.enis() {
		if e.ID == id {
			return
		}
	}
	t.Errorf("%s is gone: %+v", id, b.enis())
}

// A port that is recorded of two is left to the one that needs it more, whoever asks.
func TestPrecedes(t *testing.T) {
	at := metav1.Now()
	nic := func(uid string, edit func(*v1alpha1.PodNIC)) *v1alpha1.PodNIC {
		o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), CreationTimestamp: at}}
		edit(o)
		return o
	}
	inOrder := []*v1alpha1.PodNIC{
		nic("d", func(o *v1alpha1.PodNIC) {
			o.DeletionTimestamp = &at
			o.Status.Node = &v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, PortID: "p"}
		}),
		nic("c", func(o *v1alpha1.PodNIC) { o.CreationTimestamp = metav1.NewTime(at.Add(-time.Hour)) }),
		nic("a", func(o *v1alpha1.PodNIC) {
			o.Status.Node = &v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, PortID: "another"}
		}),
		nic("b", func(o *v1alpha1.PodNIC) {
			o.Status.Node = &v1alpha1.PodNICNode{State: v1alpha1.NodeUnplugged, PortID: "p"}
		}),
		nic("0", func(o *v1alpha1.PodNIC) {
			o.DeletionTimestamp, o.CreationTimestamp = &at, metav1.NewTime(at.Add(-2*time.Hour))
		}),
	}
	for i, a := range inOrder {
		for k, b := range inOrder {
			if got := precedes(a, b, "p"); got != (i < k) {
				t.Errorf("%s before %s: %v", a.UID, b.UID, got)
			}
		}
	}
}

// What somebody changed is given to nobody; what nobody needs goes; and pods come first where a
// node has no room.
func TestWarmBranchesThatAreNotKept(t *testing.T) {
	b := startEC2With(t, 0, 1, Options{WarmIdle: time.Second, WarmKeep: time.Second})
	b.ec2.State.AddSecurityGroup("sg-open", nil)
	o := b.starts("web-0", inWeb, "node-1")
	changed := b.awaitPool(1, "one more is made")[0]
	harness.OK(t, b.ec2.SetGroups(t.Context(), changed.ID, []string{"sg-open"}))
	harness.Eventually(t, limit, "it goes", func() error {
		for _, e := range b.enis() {
			if e.ID == changed.ID {
				return errors.New("it is there")
			}
		}
		return nil
	})
	b.awaitPool(1, "another takes its place")
	harness.OK(t, b.ec2.DeleteENI(t.Context(), b.inPool()[0].ID))
	b.awaitPool(1, "another takes the place of one that was deleted")

	// An m5.large has room for nine.
	for i := range 8 {
		b.starts(fmt.Sprint("more-", i), "", "node-1")
	}
	b.awaitPool(0, "there is no room")
	b.deletePod("more-0")
	b.awaitPool(1, "there is room again")

	for i := range 8 {
		if i > 0 {
			b.deletePod(fmt.Sprint("more-", i))
		}
	}
	b.deletePod("web-0")
	b.awaitGone(o.Name)
	b.awaitPool(0, "nobody needs them")
	if e := b.enis(); len(e) != 0 {
		t.Errorf("left are %+v", e)
	}
}

// The pool gives its addresses to pods that lack them.
func TestWarmBranchesInAFullSubnet(t *testing.T) {
	b := startEC2With(t, 0, 2, Options{})
	b.ec2.State.SetFree("subnet-a", 4)
	b.starts("web-0", inWeb, "node-1")
	b.awaitPool(2, "two more are made")
	b.starts("plain-0", "", "node-1") // in another group: the last address
	b.starts("plain-1", "", "node-1")
	b.awaitPool(0, "pods have the addresses")
}

// A port that is marked as of the pool of a VPC object that is no more is collected.
func TestWarmBranchesOfNobody(t *testing.T) {
	b := startEC2With(t, 0, 1, Options{})
	b.starts("web-0", inWeb, "node-1")
	warm := b.awaitPool(1, "one more is made")[0]
	left, err := b.ec2.CreateENI(t.Context(), cloud.CreateENI{
		SubnetID: "subnet-a", Groups: []string{"sg-web"}, Description: "berth/warm/gone",
		Tags: map[string]string{eni.TagCluster: cluster, eni.TagOwner: "berth-nic", eni.TagNIC: vpcport.WarmDevice(cluster, "no-such-uid", "1")},
	})
	harness.OK(t, err)
	harness.Eventually(t, limit, "it goes", func() error {
		for _, e := range b.enis() {
			if e.ID == left.ID {
				return errors.New("it is there")
			}
		}
		return nil
	})
	if list := b.awaitPool(1, "the other stays"); list[0].ID != warm.ID {
		t.Errorf("%s became %s", warm.ID, list[0].ID)
	}
}
