package addresspool

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// Who has stolen a node's token, and may make pods, binds them to the node by
// hand: more than it can run, some with the host's network, one for a moment.
// The node counts as one that is full, and not as more.
func TestPodsThatAreBoundByHand(t *testing.T) {
	harness.KubeClean(t)
	admin := harness.KubeClient(t)
	makeNode(t, "thief")
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "thief"}}
	harness.OK(t, admin.Get(t.Context(), client.ObjectKeyFromObject(n), n))
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("5")}
	harness.OK(t, admin.Status().Update(t.Context(), n))
	makeNamespace(t, "brief", "passing")
	makeNamespace(t, "host", "reserved")
	for i := range 20 {
		p := bind(t, "default", fmt.Sprint("pod-", i), "thief")
		p.Status.Phase = []corev1.PodPhase{corev1.PodPending, corev1.PodFailed, corev1.PodSucceeded}[i%3]
		harness.OK(t, admin.Status().Update(t.Context(), p))
	}
	no := false
	for i := range 5 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "host", Name: fmt.Sprint("pod-", i)}, Spec: corev1.PodSpec{
			NodeName: "thief", HostNetwork: true, AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "a", Image: "a"}},
		}}
		harness.Eventually(t, limit, "a pod with the host's network", func() error { return admin.Create(t.Context(), p) })
	}
	passing := bind(t, "brief", "pod", "thief")
	for i, name := range []string{v1alpha1.DefaultPool, "reserved", "passing"} {
		makePool(t, name, 0, fmt.Sprintf("10.%d.0.0/24", 2+i))
	}
	start(t, Options{MaxPods: 110})
	token, err := harness.ControlPlane.NodeToken(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: "berthd"}, "thief")
	harness.OK(t, err)
	thief := harness.KubeClientFor(t, harness.ControlPlane.ConfigWithToken(token))
	asks := func(pool string, from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			r := &v1alpha1.BlockRequest{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%03d", pool, i)}, Spec: v1alpha1.BlockRequestSpec{NodeName: "thief", PoolName: pool},
			}
			harness.Eventually(t, limit, "a request", func() error { return thief.Create(t.Context(), r) })
		}
	}
	has := func(pool string, want int, reason string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d blocks of %s", want, pool), func(c client.Client) error {
			blocks, requests := &v1alpha1.AddressBlockList{}, &v1alpha1.BlockRequestList{}
			if err := c.List(t.Context(), blocks); err != nil {
				return err
			}
			if err := c.List(t.Context(), requests); err != nil {
				return err
			}
			have, refused := 0, false
			for _, b := range blocks.Items {
				if b.PoolName == pool {
					have++
				}
			}
			for _, r := range requests.Items {
				f := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionFailed)
				if r.Spec.PoolName != pool || meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete) {
					continue
				}
				if f == nil || f.Status != metav1.ConditionTrue {
					return fmt.Errorf("%s has no answer", r.Name)
				}
				refused = refused || f.Reason == reason
			}
			if have != want || !refused {
				return fmt.Errorf("%d blocks, refused for %s: %v", have, reason, refused)
			}
			return nil
		})
	}
	asks("reserved", 0, 3)
	has("reserved", 0, v1alpha1.ReasonNoPods)
	asks("passing", 0, 5)
	has("passing", 3, v1alpha1.ReasonNodeQuota)
	harness.OK(t, admin.Delete(t.Context(), passing, client.GracePeriodSeconds(0)))
	asks("passing", 5, 8)
	has("passing", 3, v1alpha1.ReasonNoPods)
	asks(v1alpha1.DefaultPool, 0, 40)
	has(v1alpha1.DefaultPool, 11, v1alpha1.ReasonNodeQuota)
}
