package webhook_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/operator/podnics/branchcapacity"
	"github.com/berthnet/berth/internal/operator/podnics/nicpolicy"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/internal/operator/podnics/webhook/callers"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
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
		v := controllers.Create(t, &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
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
		plain := func(want string) func() error {
			return func() error {
				p := in(pod("a"))
				return asksFor(p, admin.Create(t.Context(), p, client.DryRunAll), want)
			}
		}
		harness.Eventually(t, limit, "pods of the namespace ask", plain("1"))
		try(t, in(pod("a", nics, "[{}, {}, {}]")), "3")
		try(t, in(pod("a", vpc, "n")), "")
		before := reviews(t, metrics)
		try(t, in(pod("a", vpc, "")), "")
		host := in(pod("a"))
		host.Spec.HostNetwork = true
		try(t, host, "")
		try(t, pod("a"), "")
		harness.OK(t, controllers.Same("reviews of pods that have no NICs", reviews(t, metrics)-before, 0))
		config := controllers.Get[admissionregistrationv1.MutatingWebhookConfiguration](t, client.ObjectKey{Name: webhook.ConfigurationName})
		asked := slices.IndexFunc(config.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == callers.WebhookName })
		if values := config.Webhooks[asked].NamespaceSelector.MatchExpressions[0].Values; !slices.Equal(values, []string{"shop"}) {
			t.Errorf("it is asked about pods of %v", values)
		}
		controllers.Merge(t, controllers.Named[corev1.Namespace]("shop"), `{"metadata":{"annotations":null}}`)
		harness.Eventually(t, limit, "they do no more", plain(""))
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
	o := controllers.Create(t, &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: v1alpha1.NodeNetworkSpec{InstanceID: "i-1", InstanceType: "m5.large"}})

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
	controllers.MergeStatus(t, admin, o, `{"status":{"eni":{"trunk":{"id":"eni-1","mac":"02:00:00:00:00:01"}}}}`)
	controllers.Await(t, client.ObjectKeyFromObject(n), "says how many branches it has", controllers.If(func(n *corev1.Node) bool {
		q := n.Status.Capacity[v1alpha1.ResourceBranches]
		return q.String() == "9"
	}))
	// As the node's kubelet does.
	controllers.MergeStatus(t, admin, n, `{"status":{"allocatable":{"berth.dev/branch-interfaces":"9"}}}`)
	harness.Eventually(t, limit, "two have the node", placed(2, insufficient))
	list := &corev1.PodList{}
	harness.OK(t, admin.List(t.Context(), list, client.InNamespace("default")))
	i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != "" })
	harness.OK(t, admin.Delete(t.Context(), &list.Items[i], client.GracePeriodSeconds(0)))
	harness.Eventually(t, limit, "the third has it too", placed(2, ""))
}

// hasty is a clock on which every wait is a moment.
type hasty struct{ clock.Real }

func (hasty) After(time.Duration) <-chan time.Time { return time.After(50 * time.Millisecond) }

// servePolicies is serve with policies, where nodes have trunks: with the VPCs e, of EC2, and
// n, of Neutron, and the namespaces shop and bank.
func servePolicies(t *testing.T) (c client.Client, end func()) {
	t.Helper()
	harness.KubeClean(t)
	c = harness.KubeClient(t)
	makeVPCs(t)
	for _, name := range []string{"shop", "bank"} {
		harness.OK(t, client.IgnoreAlreadyExists(c.Create(t.Context(), controllers.Named[corev1.Namespace](name))))
	}
	r := deploy.InMode(deploy.OperatorMode, "test")
	r.Values["ports"] = map[string]any{"enabled": true}
	end, _ = serveFor(t, r, webhook.Options{First: nicrequest.First{Name: "eth0", MayBePort: true}, Branches: true}, nicpolicy.Watches(),
		func(mgr manager.Manager, o *webhook.Options) error {
			policies, err := nicpolicy.NewPolicies(mgr, o.Namespace, hasty{}, o.Logger)
			if err != nil {
				return err
			}
			o.Policies = policies
			asks, err := callers.Setup(mgr, o.Logger, []callers.Caller{{Webhook: callers.PolicyWebhookName, Namespaces: policies.Namespaces}}, &v1alpha1.NICPolicy{})
			if err != nil {
				return err
			}
			policies.Changed(asks.Look)
			return nicpolicy.Setup(mgr, nicpolicy.Options{
				Namespace: o.Namespace, Logger: o.Logger, Changed: asks.Changed,
				Asked: func(namespace string) error { return asks.Asked(callers.PolicyWebhookName, namespace) },
			})
		})
	return c, end
}

// policy is one of a namespace.
func policy(namespace, name string, spec v1alpha1.NICPolicySpec) *v1alpha1.NICPolicy {
	return &v1alpha1.NICPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
}

func labelled(key, value string) *v1alpha1.LabelSelector {
	return &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}}
}

// isReady is nil once a policy says of itself what is wanted; of a reason other than Ready
// also something in the message.
func isReady(t *testing.T, o *v1alpha1.NICPolicy, reason, message string) {
	t.Helper()
	status := metav1.ConditionFalse
	if reason == nicpolicy.ReasonReady {
		status = metav1.ConditionTrue
	}
	controllers.Await(t, client.ObjectKeyFromObject(o), "says "+reason, controllers.Has[*v1alpha1.NICPolicy](v1alpha1.ConditionReady, status, reason, message))
}

// made is a pod with labels as the API server makes it, without the annotations that say nothing.
type made struct {
	*corev1.Pod
	annotations map[string]string
	branches    string
}

func tryPod(t *testing.T, c client.Client, namespace string, labels map[string]string, more ...func(*corev1.Pod)) (made, error) {
	t.Helper()
	p := pod("a")
	p.Namespace, p.Labels = namespace, labels
	for _, f := range more {
		f(p)
	}
	err := c.Create(t.Context(), p, client.DryRunAll)
	q := p.Spec.Containers[0].Resources.Requests[v1alpha1.ResourceBranches]
	return made{p, p.Annotations, q.String()}, err
}

// given are the annotations of a pod with the NIC of a policy.
func given(by, vpc, nics string) map[string]string {
	return map[string]string{v1alpha1.AnnotationNICPolicy: by, v1alpha1.AnnotationVPC: vpc, v1alpha1.AnnotationNICs: nics}
}

// asks is nil if a pod was made with annotations and branch interfaces.
func (m made) asks(annotations map[string]string, branches string) error {
	if !maps.Equal(m.annotations, annotations) || m.branches != branches {
		return fmt.Errorf("the pod has the annotations %v and asks for %s branch interfaces, want %v and %s", m.annotations, m.branches, annotations, branches)
	}
	return nil
}

// Pods ask for the NIC of the policy that selects them, and others for none.
func TestPolicies(t *testing.T) {
	c, end := servePolicies(t)
	db := map[string]string{"app": "db"}
	nothing, none := map[string]string{v1alpha1.AnnotationNICPolicy: ""}, map[string]string(nil)
	refuses := func(t *testing.T, why string) {
		t.Helper()
		harness.Eventually(t, limit, "pods that it selects are refused", func() error {
			_, err := tryPod(t, c, "bank", db)
			return refused(err, why)
		})
	}
	want := func(t *testing.T, namespace string, labels, annotations map[string]string, branches string, more ...func(*corev1.Pod)) {
		t.Helper()
		m, err := tryPod(t, c, namespace, labels, more...)
		harness.OK(t, errors.Join(err, m.asks(annotations, branches)))
	}
	// The API server may learn of the webhook's namespaces a moment after they were written.
	eventually := func(t *testing.T, namespace string, labels, annotations map[string]string, branches string) {
		t.Helper()
		harness.Eventually(t, limit, fmt.Sprintf("pods of %s with labels %v have %v", namespace, labels, annotations), func() error {
			m, err := tryPod(t, c, namespace, labels)
			return errors.Join(err, m.asks(annotations, branches))
		})
	}
	want(t, "shop", db, none, "0")

	one := controllers.Create(t, policy("shop", "db", v1alpha1.NICPolicySpec{PodSelector: labelled("app", "db"), VPC: "e", SecurityGroups: []string{"sg-1", "sg-2"}}))
	isReady(t, one, nicpolicy.ReasonReady, "in VPC e")
	byOne := given("NICPolicy/db", "e", `[{"name":"eth0","securityGroups":["sg-1","sg-2"]}]`)
	eventually(t, "shop", db, byOne, "1")

	t.Run("others", func(t *testing.T) {
		want(t, "shop", map[string]string{"app": "web"}, nothing, "0")
		want(t, "shop", nil, nothing, "0")
		want(t, "bank", db, none, "0")
		want(t, "shop", db, none, "0", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	})
	t.Run("annotations count first", func(t *testing.T) {
		for _, own := range []map[string]string{
			{v1alpha1.AnnotationVPC: ""},
			{v1alpha1.AnnotationVPC: "n"},
			{v1alpha1.AnnotationVPC: "n", v1alpha1.AnnotationNICs: "[{}]"},
		} {
			want(t, "shop", db, own, "0", func(p *corev1.Pod) { p.Annotations = maps.Clone(own) })
		}
	})
	t.Run("a pod that says it was looked at", func(t *testing.T) {
		want(t, "shop", db, byOne, "1", func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationNICPolicy] = "" })
	})
	t.Run("the oldest", func(t *testing.T) {
		// By its name it comes after the other also where both are of one second.
		two := controllers.Create(t, policy("shop", "rest", v1alpha1.NICPolicySpec{PodSelector: &v1alpha1.LabelSelector{}, VPC: "n", Subnet: "web"}))
		isReady(t, two, nicpolicy.ReasonReady, "in VPC n")
		both := maps.Clone(byOne)
		both[v1alpha1.AnnotationNICPolicyOverlap] = "NICPolicy/rest"
		eventually(t, "shop", db, both, "1")
		want(t, "shop", nil, given("NICPolicy/rest", "n", `[{"subnet":"web"}]`), "0")
		harness.OK(t, c.Delete(t.Context(), two))
		eventually(t, "shop", nil, nothing, "0")
	})
	t.Run("of a policy that was made with the pod", func(t *testing.T) {
		for i := range 10 {
			app := fmt.Sprint("new-", i)
			p := controllers.Create(t, policy("shop", app, v1alpha1.NICPolicySpec{PodSelector: labelled("app", app), VPC: "e"}))
			want(t, "shop", map[string]string{"app": app}, given("NICPolicy/"+app, "e", `[{"name":"eth0"}]`), "1")
			harness.OK(t, c.Delete(t.Context(), p))
		}
	})
	t.Run("by service accounts", func(t *testing.T) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "ledger", Labels: map[string]string{"tier": "data"}}}
		p := policy("bank", "data", v1alpha1.NICPolicySpec{ServiceAccountSelector: labelled("tier", "data"), PodSelector: labelled("app", "db"), SecurityGroups: []string{"sg-3"}, VPC: "e"})
		harness.OK(t, c.Create(t.Context(), account))
		harness.OK(t, c.Create(t.Context(), p))
		isReady(t, p, nicpolicy.ReasonReady, "")
		as := func(p *corev1.Pod) { p.Spec.ServiceAccountName = "ledger" }
		harness.Eventually(t, limit, "pods of the account have the NIC", func() error {
			m, err := tryPod(t, c, "bank", db, as)
			return errors.Join(err, m.asks(given("NICPolicy/data", "e", `[{"name":"eth0","securityGroups":["sg-3"]}]`), "1"))
		})
		want(t, "bank", db, nothing, "0")
		want(t, "bank", nil, nothing, "0", as)
		harness.OK(t, c.Delete(t.Context(), p))
		eventually(t, "bank", db, none, "0")
	})
	t.Run("in no VPC", func(t *testing.T) {
		p := controllers.Create(t, policy("bank", "lost", v1alpha1.NICPolicySpec{PodSelector: labelled("app", "db"), SecurityGroups: []string{"sg-3"}}))
		const why = "NICPolicy/lost: spec.vpc is not set, and 2 VPCs are for namespace bank"
		isReady(t, p, nicpolicy.ReasonVPCNotFound, why)
		refuses(t, why)
		want(t, "bank", nil, nothing, "0")
		harness.OK(t, c.Delete(t.Context(), p))
		eventually(t, "bank", db, none, "0")
	})
	t.Run("with what the VPC has not", func(t *testing.T) {
		p := controllers.Create(t, policy("bank", "lost", v1alpha1.NICPolicySpec{PodSelector: labelled("app", "db"), Subnet: "nowhere", VPC: "n"}))
		isReady(t, p, nicpolicy.ReasonNotPossible, `spec.subnet: VPC n has no subnet "nowhere"`)
		refuses(t, `NICPolicy/lost: metadata.annotations[berth.dev/nics][0].subnet: VPC n has no subnet "nowhere"`)
		harness.OK(t, c.Delete(t.Context(), p))
		eventually(t, "bank", db, none, "0")
	})
	t.Run("of the operator's namespace", func(t *testing.T) {
		p := controllers.Create(t, policy("kube-system", "all", v1alpha1.NICPolicySpec{PodSelector: &v1alpha1.LabelSelector{}, VPC: "e"}))
		isReady(t, p, nicpolicy.ReasonOperatorNamespace, "make the policy, and its pods, in another")
		want(t, "kube-system", nil, none, "0")
	})
	t.Run("of the Amazon VPC CNI", func(t *testing.T) { securityGroupPolicies(t, c, want, eventually) })
	t.Run("without an operator", func(t *testing.T) {
		end()
		_, err := tryPod(t, c, "shop", nil)
		if err == nil || !strings.Contains(err.Error(), callers.PolicyWebhookName) {
			t.Errorf("a pod that a policy may select is made: %v", err)
		}
		want(t, "shop", db, none, "0", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
		want(t, "bank", db, none, "0")
		want(t, "kube-system", nil, none, "0") // or no operator could come again
		own := map[string]string{v1alpha1.AnnotationVPC: ""}
		want(t, "shop", db, own, "0", func(p *corev1.Pod) { p.Annotations = maps.Clone(own) })
	})
}

// securityGroupPolicies has their kind come, policies of it give pods branch interfaces with the
// groups of all that select them, and the kind go.
func securityGroupPolicies(t *testing.T, c client.Client, want func(*testing.T, string, map[string]string, map[string]string, string, ...func(*corev1.Pod)), eventually func(*testing.T, string, map[string]string, map[string]string, string)) {
	kind := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "securitygrouppolicies.vpcresources.k8s.aws"}}
	kind.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "vpcresources.k8s.aws", Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "securitygrouppolicies", Singular: "securitygrouppolicy", Kind: "SecurityGroupPolicy", ListKind: "SecurityGroupPolicyList"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: "v1beta1", Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}},
		}},
	}
	scheme := c.Scheme()
	harness.OK(t, apiextensionsv1.AddToScheme(scheme))
	harness.OK(t, c.Create(t.Context(), kind))
	db := map[string]string{"app": "db"}
	foreign := func(name string, app string, groups ...string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"podSelector": map[string]any{"matchLabels": map[string]any{"app": app}}, "securityGroups": map[string]any{"groupIds": anyOf(groups)},
		}}}
		u.SetAPIVersion("vpcresources.k8s.aws/v1beta1")
		u.SetKind("SecurityGroupPolicy")
		u.SetNamespace("bank")
		u.SetName(name)
		return u
	}
	harness.Eventually(t, limit, "a SecurityGroupPolicy is made", func() error { return c.Create(t.Context(), foreign("a", "db", "sg-4")) })
	eventually(t, "bank", db, given("SecurityGroupPolicy/a", "e", `[{"name":"eth0","securityGroups":["sg-4"]}]`), "1")
	want(t, "bank", nil, map[string]string{v1alpha1.AnnotationNICPolicy: ""}, "0")
	harness.OK(t, c.Create(t.Context(), foreign("b", "db", "sg-5", "sg-4")))
	eventually(t, "bank", db, given("SecurityGroupPolicy/a,SecurityGroupPolicy/b", "e", `[{"name":"eth0","securityGroups":["sg-4","sg-5"]}]`), "1")
	harness.OK(t, c.Delete(t.Context(), kind))
	eventually(t, "bank", db, nil, "0")
}

func anyOf(texts []string) (out []any) {
	for _, text := range texts {
		out = append(out, text)
	}
	return out
}
