package webhook_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/operator/podnics/branchcapacity"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/internal/operator/podnics/webhook/callers"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/test/harness"
)

// serveBranches is serve where nodes have trunks: with all that tells the scheduler of branch
// interfaces, and the VPCs e, of EC2, and n, of Neutron. It ends once pods are made to ask.
func serveBranches(t *testing.T) (end func(), all []prometheus.Collector) {
	t.Helper()
	harness.KubeClean(t)
	admin := harness.KubeClient(t)
	makeVPCs(t)
	r := deploy.InMode(deploy.OperatorMode, "test")
	r.Values["ports"] = map[string]any{"enabled": true}
	end, all = serveFor(t, r, webhook.Options{First: nicrequest.First{Name: "eth0", MayBePort: true}, Branches: true},
		append(branchcapacity.Watches(), watched.Namespaces, podnics.VPCs), func(mgr manager.Manager, o *webhook.Options) error {
			_, err := callers.Setup(mgr, o.Logger, []callers.Caller{{Webhook: callers.WebhookName, Namespaces: callers.ByVPC(mgr.GetClient())}})
			return errors.Join(err, branchcapacity.Setup(mgr, o.Logger))
		})
	harness.Eventually(t, limit, "the webhook is asked", func() error {
		p := pod("probe", v1alpha1.AnnotationVPC, "e")
		return asksFor(p, admin.Create(t.Context(), p, client.DryRunAll), "1")
	})
	return end, all
}

// makeVPCs makes the VPCs e, of EC2, and n, of Neutron with the subnet web, which are for all
// namespaces.
func makeVPCs(t *testing.T) {
	t.Helper()
	admin := harness.KubeClient(t)
	everybody := &v1alpha1.VPCNamespaces{Names: []string{"*"}}
	anything := []v1alpha1.VPCNamespaceLimits{{Namespaces: *everybody, SecurityGroups: []string{"*"}}}
	for name, spec := range map[string]v1alpha1.VPCSpec{
		"e": {Provider: v1alpha1.ProviderEC2, Network: "vpc-0a1b2c3d", AllowedNamespaces: everybody, NamespaceLimits: anything},
		"n": {Provider: v1alpha1.ProviderNeutron, Network: "blue", Endpoint: "http://127.0.0.1:9696", Project: "p", AllowedNamespaces: everybody},
	} {
		v := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		harness.OK(t, admin.Create(t.Context(), v))
		if name == "n" {
			v.Status.Subnets = []v1alpha1.VPCSubnet{{ID: "subnet-1", Name: "web", CIDR: "10.0.0.0/24", Gateway: "10.0.0.1"}}
			harness.OK(t, admin.Status().Update(t.Context(), v))
		}
	}
}

// asksFor is nil if the first container of a pod that was made asks for a number of branch
// interfaces, or with "" none does.
func asksFor(p *corev1.Pod, err error, want ...string) error {
	if err != nil {
		return err
	}
	var got []string
	for _, c := range p.Spec.Containers {
		text := ""
		if q, has := c.Resources.Requests[v1alpha1.ResourceBranches]; has {
			text = q.String()
		}
		if q, has := c.Resources.Limits[v1alpha1.ResourceBranches]; has && q.String() != text {
			text += "/" + q.String()
		}
		got = append(got, text)
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("the containers of pod %s ask for %q, want %q", p.Name, got, want)
	}
	return nil
}

// reviews are how often the webhook was asked which branch interfaces a pod has.
func reviews(t *testing.T, metrics []prometheus.Collector) (n float64) {
	t.Helper()
	for _, outcome := range []string{"allowed", "changed", "error"} {
		n += value(t, metrics, "berth_operator_webhook_reviews_total", outcome, "branches")
	}
	return n
}

// Pods ask for as many branch interfaces as they have NICs in a VPC of EC2, and others are
// as they were made.
func TestPodsAskForBranches(t *testing.T) {
	end, metrics := serveBranches(t)
	admin := harness.KubeClient(t)
	const vpc, nics = v1alpha1.AnnotationVPC, v1alpha1.AnnotationNICs
	try := func(t *testing.T, p *corev1.Pod, want ...string) {
		t.Helper()
		harness.OK(t, asksFor(p, admin.Create(t.Context(), p, client.DryRunAll), want...))
	}
	t.Run("by annotations", func(t *testing.T) {
		try(t, pod("a", vpc, "e", nics, "[{}, {name: backup}]"), "2")
		try(t, pod("a", vpc, "e", nics, "[{nic: db-0}]"), "1")
		try(t, pod("a", vpc, "e", nics, "[{name: eth0}, {}]"), "2")
		try(t, pod("a", vpc, "n", nics, "[{}]"), "")
		err := admin.Create(t.Context(), pod("a", vpc, "n", nics, "[{name: eth0}]"), client.DryRunAll)
		harness.OK(t, refused(err, "eth0 is the name of the pod's first interface, which is no port here"))
		try(t, pod("a", vpc, ""), "")
		try(t, pod("a"), "")
		two := pod("a", vpc, "e")
		two.Spec.Containers = append(two.Spec.Containers, corev1.Container{Name: "b", Image: "b"})
		try(t, two, "1", "")
	})
	t.Run("with what they ask for already", func(t *testing.T) {
		p := pod("a", vpc, "e")
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}, Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
		}
		try(t, p, "1")
		if r := p.Spec.Containers[0].Resources; r.Requests.Cpu().String() != "100m" || r.Limits.Memory().String() != "1Gi" {
			t.Errorf("resources %+v", r)
		}
		some := corev1.ResourceList{v1alpha1.ResourceBranches: resource.MustParse("5")}
		p = pod("a", vpc, "e")
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "b", Image: "b", Resources: corev1.ResourceRequirements{Requests: some, Limits: some}})
		try(t, p, "", "5")
		p = pod("a", vpc, "e", nics, "[{}, {}]") // fewer would be none of the namespace's quota
		few := corev1.ResourceList{v1alpha1.ResourceBranches: resource.MustParse("0")}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: few, Limits: few}
		try(t, p, "2")
	})
	t.Run("by their namespace", func(t *testing.T) {
		harness.OK(t, admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{vpc: "e"}}}))
		in := func(p *corev1.Pod) *corev1.Pod { p.Namespace = "shop"; return p }
		plain := func() error {
			p := in(pod("a"))
			return asksFor(p, admin.Create(t.Context(), p, client.DryRunAll), "1")
		}
		harness.Eventually(t, limit, "pods of the namespace ask", plain)
		try(t, in(pod("a", nics, "[{}, {}, {}]")), "3")
		try(t, in(pod("a", vpc, "n")), "")
		before := reviews(t, metrics)
		try(t, in(pod("a", vpc, "")), "")
		host := in(pod("a"))
		host.Spec.HostNetwork = true
		try(t, host, "")
		try(t, pod("a"), "")
		if n := reviews(t, metrics) - before; n != 0 {
			t.Errorf("the webhook was asked about %v pods that have no NICs", n)
		}
		config := &admissionregistrationv1.MutatingWebhookConfiguration{}
		harness.OK(t, admin.Get(t.Context(), client.ObjectKey{Name: webhook.ConfigurationName}, config))
		asked := slices.IndexFunc(config.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == callers.WebhookName })
		if values := config.Webhooks[asked].NamespaceSelector.MatchExpressions[0].Values; !slices.Equal(values, []string{"shop"}) {
			t.Errorf("it is asked about pods of %v", values)
		}
		shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
		harness.OK(t, admin.Patch(t.Context(), shop, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`))))
		harness.Eventually(t, limit, "they do no more", func() error {
			p := in(pod("a"))
			return asksFor(p, admin.Create(t.Context(), p, client.DryRunAll), "")
		})
		harness.Eventually(t, limit, "and nobody is asked", func() error {
			harness.OK(t, admin.Get(t.Context(), client.ObjectKey{Name: webhook.ConfigurationName}, config))
			if w := config.Webhooks[asked]; len(w.Rules) > 0 {
				return fmt.Errorf("it has rules %+v", w.Rules)
			}
			return nil
		})
	})
	t.Run("metrics", func(t *testing.T) {
		harness.CheckMetrics(t, metrics, webhook.Families, map[string]string{
			`berth_operator_webhook_reviews_total{outcome="error",resource="branches"}`: "0",
		})
		if n := value(t, metrics, "berth_operator_webhook_reviews_total", "changed", "branches"); n < 7 {
			t.Errorf("%v pods were changed", n)
		}
		if n := value(t, metrics, "berth_operator_webhook_reviews_total", "allowed", "branches"); n < 2 {
			t.Errorf("%v pods were left as they were", n)
		}
	})
	t.Run("without an operator", func(t *testing.T) {
		end()
		try(t, pod("a", vpc, "e"), "")
	})
}

// The scheduler gives a node no more pods than it has branch interfaces for, and the rest
// once some are given back.
func TestNoPodWhereNoBranchIsLeft(t *testing.T) {
	serveBranches(t)
	admin := harness.KubeClient(t)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: corev1.NodeSpec{ProviderID: "aws:///zone-a/i-1"}}
	n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("110")}
	n.Status.Allocatable = n.Status.Capacity
	harness.OK(t, admin.Create(t.Context(), n))
	n.Spec.Taints = nil
	harness.OK(t, admin.Update(t.Context(), n))
	o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: v1alpha1.NodeNetworkSpec{InstanceID: "i-1", InstanceType: "m5.large"}}
	harness.OK(t, admin.Create(t.Context(), o))

	// m5.large has 9 branches: two pods of four, and one that waits.
	for i := range 3 {
		p := pod(fmt.Sprint("four-", i), v1alpha1.AnnotationVPC, "e", v1alpha1.AnnotationNICs, "[{}, {}, {}, {}]")
		p.Spec.SchedulerName = ""
		harness.OK(t, asksFor(p, admin.Create(t.Context(), p), "4"))
	}
	placed := func(want int, waits string) func() error {
		return func() error {
			list := &corev1.PodList{}
			if err := admin.List(t.Context(), list, client.InNamespace("default")); err != nil {
				return err
			}
			placed, said := 0, ""
			for _, p := range list.Items {
				if p.Spec.NodeName != "" {
					placed++
				}
				for _, c := range p.Status.Conditions {
					if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
						said = c.Message
					}
				}
			}
			if placed != want || (said != "") != (waits != "") || !strings.Contains(said, waits) {
				return fmt.Errorf("%d pods have a node, one waits: %q", placed, said)
			}
			return nil
		}
	}
	const insufficient = "Insufficient berth.dev/branch-interfaces"
	harness.Eventually(t, limit, "a node without a trunk gets none", placed(0, insufficient))
	trunk := []byte(`{"status":{"eni":{"trunk":{"id":"eni-1","mac":"02:00:00:00:00:01"}}}}`)
	harness.OK(t, admin.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, trunk)))
	harness.Eventually(t, limit, "the node says how many branches it has", func() error {
		harness.OK(t, admin.Get(t.Context(), client.ObjectKeyFromObject(n), n))
		if q := n.Status.Capacity[v1alpha1.ResourceBranches]; q.String() != "9" {
			return fmt.Errorf("capacity %v", n.Status.Capacity)
		}
		return nil
	})
	// As the node's kubelet does.
	harness.OK(t, admin.Status().Patch(t.Context(), n, client.RawPatch(types.MergePatchType, []byte(`{"status":{"allocatable":{"berth.dev/branch-interfaces":"9"}}}`))))
	harness.Eventually(t, limit, "two have the node", placed(2, insufficient))
	list := &corev1.PodList{}
	harness.OK(t, admin.List(t.Context(), list, client.InNamespace("default")))
	i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != "" })
	harness.OK(t, admin.Delete(t.Context(), &list.Items[i], client.GracePeriodSeconds(0)))
	harness.Eventually(t, limit, "the third has it too", placed(2, ""))
}
