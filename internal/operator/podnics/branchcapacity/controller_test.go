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

// work has the controller work with the chart's rights until the end of the test.
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

// kubeletsNode is a Node as a kubelet registers it.
func kubeletsNode(name, instance string) *corev1.Node {
	n := nodeOf("aws:///zone-a/" + instance)
	n.Name = name
	n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("110")}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3900m"), corev1.ResourcePods: resource.MustParse("110")}
	return n
}

// has is nil if a Node's capacity has a number of branch interfaces, or with "" does not
// have the resource, and all else is as a kubelet wrote it.
func has(t *testing.T, name, branches string) func() error {
	return func() error {
		n := &corev1.Node{}
		if err := harness.KubeClient(t).Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
			return err
		}
		got, named := n.Status.Capacity[v1alpha1.ResourceBranches]
		if named != (branches != "") || named && got.String() != branches {
			return fmt.Errorf("%s has capacity %v, want %q branch interfaces", name, n.Status.Capacity, branches)
		}
		_, allocatable := n.Status.Allocatable[v1alpha1.ResourceBranches]
		if n.Status.Capacity.Cpu().String() != "4" || n.Status.Capacity.Pods().String() != "110" || n.Status.Allocatable.Cpu().String() != "3900m" || allocatable {
			t.Errorf("the rest of %s is capacity %v, allocatable %v", name, n.Status.Capacity, n.Status.Allocatable)
		}
		return nil
	}
}

// A Node has the resource once its instance has a trunk, keeps it when somebody resets it,
// and loses it with the trunk. Other Nodes never have it.
func TestNodesHaveBranches(t *testing.T) {
	harness.KubeClean(t)
	admin, most := harness.KubeClient(t), strconv.Itoa(limits.Branches("m5.xlarge"))
	for name, instance := range map[string]string{"node-1": "i-1", "node-2": "i-2"} {
		harness.OK(t, admin.Create(t.Context(), kubeletsNode(name, instance)))
	}
	// One whose kubelet has said nothing yet: what is allocatable the API server fills in.
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
	harness.Eventually(t, limit, "node-1 has its branches", has(t, "node-1", most))
	controllers.Await(t, client.ObjectKeyFromObject(bare), "has its branches", controllers.If(func(n *corev1.Node) bool {
		got := n.Status.Capacity[v1alpha1.ResourceBranches]
		return got.String() == most
	}))
	harness.OK(t, has(t, "node-2", "")())

	node := controllers.Named[corev1.Node]("node-1")
	for _, value := range []string{`"0"`, `"1000"`, `null`} {
		patch(node, `{"status":{"capacity":{"berth.dev/branch-interfaces":`+value+`}}}`)
		harness.Eventually(t, limit, "it is as before after it was "+value, has(t, "node-1", most))
	}
	patch(first, `{"status":{"eni":{"trunk":{"reason":"HasBranches"}}}}`)
	harness.Eventually(t, limit, "its trunk is to go", has(t, "node-1", ""))
	patch(first, `{"status":{"eni":{"trunk":{"reason":null}}}}`)
	harness.Eventually(t, limit, "it is wanted again", has(t, "node-1", most))
	patch(first, `{"status":{"eni":{"trunk":null}}}`)
	harness.Eventually(t, limit, "its trunk is gone", has(t, "node-1", ""))
	patch(first, `{"status":{"eni":{"trunk":{"id":"eni-2"}}}}`)
	harness.Eventually(t, limit, "it has another", has(t, "node-1", most))
	harness.OK(t, admin.Delete(t.Context(), first))
	harness.Eventually(t, limit, "its NodeNetwork is gone", has(t, "node-1", ""))
	harness.OK(t, has(t, "node-2", "")())
}

// trunked is the NodeNetwork of instance i-1 with a trunk.
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
		t.Fatal("the type of the test has no branches")
	}
	for name, tt := range map[string]struct {
		provider string
		edit     func(*v1alpha1.NodeNetwork)
		want     int64
	}{
		"a trunk":                 {mine, func(*v1alpha1.NodeNetwork) {}, most},
		"none wanted":             {mine, func(o *v1alpha1.NodeNetwork) { o.Status.ENI.Trunk = nil }, 0},
		"being made":              {mine, func(o *v1alpha1.NodeNetwork) { o.Status.ENI.Trunk = &v1alpha1.TrunkENI{Reason: "Pending"} }, 0},
		"on its way out":          {mine, func(o *v1alpha1.NodeNetwork) { o.Status.ENI.Trunk.Reason = "HasBranches" }, 0},
		"a type without branches": {mine, func(o *v1alpha1.NodeNetwork) { o.Spec.InstanceType = "t3.micro" }, 0},
		"another instance":        {"aws:///zone-a/i-2", func(*v1alpha1.NodeNetwork) {}, 0},
		"an unknown instance":     {"", func(*v1alpha1.NodeNetwork) {}, 0},
	} {
		o := trunked()
		tt.edit(o)
		if got := capacityOf(nodeOf(tt.provider), o); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
	harness.OK(t, controllers.Same("branches without a NodeNetwork", capacityOf(nodeOf(mine), nil), 0))
}

// A Node of no branches does not have the resource, and 0 of it is to be taken away.
func TestSays(t *testing.T) {
	for name, tt := range map[string]struct {
		has      string // empty: nothing
		capacity int64
		want     bool
	}{
		"as it should be":  {"18", 18, true},
		"in other words":   {"18000m", 18, true},
		"nothing yet":      {"", 18, false},
		"reset":            {"0", 18, false},
		"another number":   {"9", 18, false},
		"none":             {"", 0, true},
		"no more":          {"18", 0, false},
		"none, and says 0": {"0", 0, false},
	} {
		n := nodeOf("")
		if tt.has != "" {
			n.Status.Capacity = corev1.ResourceList{v1alpha1.ResourceBranches: resource.MustParse(tt.has)}
		}
		if got := says(n, tt.capacity); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// A patch names no other resource, and holds for the Node that was seen only.
func TestPatchOf(t *testing.T) {
	n := nodeOf("")
	n.ResourceVersion = "7"
	for capacity, want := range map[int64]string{18: `"18"`, 0: `null`} {
		got, err := patchOf(n, capacity)
		want = strings.ReplaceAll(`{"metadata":{"resourceVersion":"7"},"status":{"capacity":{"berth.dev/branch-interfaces":N}}}`, "N", want)
		if err != nil || string(got) != want {
			t.Errorf("%d: got %s, %v; want %s", capacity, got, err, want)
		}
	}
}
