package branchcapacity

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }

const limit = controllers.Limit

// work runs the controller with the chart's permissions until the end of the test.
func work(t *testing.T) {
	t.Helper()
	r := deploy.InMode(deploy.OperatorMode, "test")
	r.Values["ports"] = map[string]any{"enabled": true}
	kinds, err := watched.Set(Watches()...)
	harness.OK(t, err)
	mgr, err := controllers.Manager(harness.OperatorConfigOf(t, r), kinds)
	harness.OK(t, err)
	harness.OK(t, Setup(mgr, slog.New(slog.NewTextHandler(t.Output(), nil))))
	controllers.Run(t, mgr)
}

// kubeletsNode returns a Node as a kubelet registers it.
func kubeletsNode(name, instance string) *corev1.Node {
	n := nodeOf("aws:///zone-a/" + instance)
	n.Name = name
	n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("110")}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3900m"), corev1.ResourcePods: resource.MustParse("110")}
	return n
}

// has returns nil if a Node's capacity has this number of branch interfaces, or does not have the resource if
// branches is "". All other resources must be unchanged.
func has(t *testing.T, name, branches string) func() error {
	return func() error {
		n := &corev1.Node{}
		if err := harness.KubeClient(t).Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
			return err
		}
		got, named := n.Status.Capacity[v1alpha1.ResourceBranches]
		if named != (branches != "") || named && got.String() != branches {
			return fmt.Errorf("capacity of Node %s = %v, want %q branch interfaces", name, n.Status.Capacity, branches)
		}
		_, allocatable := n.Status.Allocatable[v1alpha1.ResourceBranches]
		if n.Status.Capacity.Cpu().String() != "4" || n.Status.Capacity.Pods().String() != "110" || n.Status.Allocatable.Cpu().String() != "3900m" || allocatable {
			t.Errorf("other resources of Node %s changed: capacity %v, allocatable %v", name, n.Status.Capacity, n.Status.Allocatable)
		}
		return nil
	}
}

// A Node gets the resource once its instance has a trunk, keeps it when somebody resets it, and loses it with the
// trunk. Other Nodes never have it.
func TestNodesHaveBranches(t *testing.T) {
	harness.KubeClean(t)
	admin, most := harness.KubeClient(t), strconv.Itoa(limits.Branches("m5.xlarge"))
	for name, instance := range map[string]string{"node-1": "i-1", "node-2": "i-2"} {
		harness.OK(t, admin.Create(t.Context(), kubeletsNode(name, instance)))
	}
	// A Node whose kubelet has not reported yet: the API server sets allocatable.
	bare := nodeOf("aws:///zone-a/i-3")
	bare.Name = "node-3"
	harness.OK(t, admin.Create(t.Context(), bare))
	work(t)
	patch := func(o client.Object, body string) { controllers.MergeStatus(t, admin, o, "%s", body) }
	trunk := func(name, instance string) *v1alpha1.NodeNetwork {
		o := trunked()
		o.ObjectMeta, o.Spec.InstanceID = metav1.ObjectMeta{Name: name}, instance
		harness.OK(t, admin.Create(t.Context(), o))
		patch(o, `{"status":{"eni":{"trunk":{"id":"eni-1","mac":"02:00:00:00:00:01","deviceIndex":1}}}}`)
		return o
	}
	first := trunk("node-1", "i-1")
	trunk("node-3", "i-3")
	harness.Eventually(t, limit, "node-1 has its capacity", has(t, "node-1", most))
	controllers.Await(t, client.ObjectKeyFromObject(bare), "has its capacity", controllers.If(func(n *corev1.Node) bool {
		got := n.Status.Capacity[v1alpha1.ResourceBranches]
		return got.String() == most
	}))
	harness.OK(t, has(t, "node-2", "")())

	node := controllers.Named[corev1.Node]("node-1")
	for _, value := range []string{`"0"`, `"1000"`, `null`} {
		patch(node, `{"status":{"capacity":{"berth.dev/branch-interfaces":`+value+`}}}`)
		harness.Eventually(t, limit, "capacity restored after it was set to "+value, has(t, "node-1", most))
	}
	patch(first, `{"status":{"eni":{"trunk":{"reason":"HasBranches"}}}}`)
	harness.Eventually(t, limit, "no capacity while the trunk is being removed", has(t, "node-1", ""))
	patch(first, `{"status":{"eni":{"trunk":{"reason":null}}}}`)
	harness.Eventually(t, limit, "capacity with the trunk wanted again", has(t, "node-1", most))
	patch(first, `{"status":{"eni":{"trunk":null}}}`)
	harness.Eventually(t, limit, "no capacity without a trunk", has(t, "node-1", ""))
	patch(first, `{"status":{"eni":{"trunk":{"id":"eni-2"}}}}`)
	harness.Eventually(t, limit, "capacity with another trunk", has(t, "node-1", most))
	harness.OK(t, admin.Delete(t.Context(), first))
	harness.Eventually(t, limit, "no capacity without a NodeNetwork", has(t, "node-1", ""))
	harness.OK(t, has(t, "node-2", "")())
}

// trunked returns a NodeNetwork of instance i-1 with a trunk.
func trunked() *v1alpha1.NodeNetwork {
	o := &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: "i-1", InstanceType: "m5.xlarge"}}
	o.Status.ENI.Trunk = &v1alpha1.TrunkENI{ID: "eni-1", MAC: "02:00:00:00:00:01", DeviceIndex: 1}
	return o
}

func nodeOf(provider string) *corev1.Node {
	return &corev1.Node{Spec: corev1.NodeSpec{ProviderID: provider}}
}

func TestCapacityOf(t *testing.T) {
	const mine = "aws:///zone-a/i-1"
	most := int64(limits.Branches("m5.xlarge"))
	if most == 0 {
		t.Fatal("m5.xlarge has no branches")
	}
	for name, tt := range map[string]struct {
		provider string
		edit     func(*v1alpha1.NodeNetwork)
		want     int64
	}{
		"trunk":                          {mine, func(*v1alpha1.NodeNetwork) {}, most},
		"no trunk":                       {mine, func(o *v1alpha1.NodeNetwork) { o.Status.ENI.Trunk = nil }, 0},
		"trunk being created":            {mine, func(o *v1alpha1.NodeNetwork) { o.Status.ENI.Trunk = &v1alpha1.TrunkENI{Reason: "Pending"} }, 0},
		"trunk being removed":            {mine, func(o *v1alpha1.NodeNetwork) { o.Status.ENI.Trunk.Reason = "HasBranches" }, 0},
		"instance type without branches": {mine, func(o *v1alpha1.NodeNetwork) { o.Spec.InstanceType = "t3.micro" }, 0},
		"other instance":                 {"aws:///zone-a/i-2", func(*v1alpha1.NodeNetwork) {}, 0},
		"unknown instance":               {"", func(*v1alpha1.NodeNetwork) {}, 0},
	} {
		o := trunked()
		tt.edit(o)
		if got := capacityOf(nodeOf(tt.provider), o); got != tt.want {
			t.Errorf("%s: capacityOf() = %d, want %d", name, got, tt.want)
		}
	}
	harness.OK(t, controllers.Same("capacity without a NodeNetwork", capacityOf(nodeOf(mine), nil), 0))
}

// A Node without branches must not have the resource; a value of 0 is to be removed.
func TestCapacityIsUpToDate(t *testing.T) {
	for name, tt := range map[string]struct {
		has      string // "" if the resource is missing
		capacity int64
		want     bool
	}{
		"same value":                     {"18", 18, true},
		"same value in another notation": {"18000m", 18, true},
		"missing":                        {"", 18, false},
		"reset to 0":                     {"0", 18, false},
		"other value":                    {"9", 18, false},
		"no branches":                    {"", 0, true},
		"branches gone":                  {"18", 0, false},
		"no branches but value 0":        {"0", 0, false},
	} {
		n := nodeOf("")
		if tt.has != "" {
			n.Status.Capacity = corev1.ResourceList{v1alpha1.ResourceBranches: resource.MustParse(tt.has)}
		}
		if got := says(n, tt.capacity); got != tt.want {
			t.Errorf("%s: says() = %v, want %v", name, got, tt.want)
		}
	}
}

// A patch names no other resource, and applies only to the version of the Node that was read.
func TestPatchOf(t *testing.T) {
	n := nodeOf("")
	n.ResourceVersion = "7"
	for capacity, want := range map[int64]string{18: `"18"`, 0: `null`} {
		got, err := patchOf(n, capacity)
		want = strings.ReplaceAll(`{"metadata":{"resourceVersion":"7"},"status":{"capacity":{"berth.dev/branch-interfaces":N}}}`, "N", want)
		if err != nil || string(got) != want {
			t.Errorf("patchOf(%d) = %s, %v, want %s", capacity, got, err, want)
		}
	}
}
