package webhook_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/podnics/nicpolicy"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/internal/operator/podnics/webhook/callers"
	"github.com/berthnet/berth/test/harness"
)

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
		harness.OK(t, client.IgnoreAlreadyExists(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})))
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

// labelled selects by one label.
func labelled(key, value string) *v1alpha1.LabelSelector {
	return &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}}
}

// isReady is nil once a policy says of itself what is wanted; of a reason other than Ready
// also something in the message.
func isReady(t *testing.T, c client.Client, o *v1alpha1.NICPolicy, reason, message string) {
	t.Helper()
	harness.Eventually(t, limit, "NICPolicy "+o.Name+" says "+reason, func() error {
		got := &v1alpha1.NICPolicy{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), got); err != nil {
			return err
		}
		is := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionReady)
		if is == nil || is.Reason != reason || (is.Status == metav1.ConditionTrue) != (reason == nicpolicy.ReasonReady) || !strings.Contains(is.Message, message) {
			return fmt.Errorf("its condition is %+v, want a message with %q", is, message)
		}
		return nil
	})
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

	one := policy("shop", "db", v1alpha1.NICPolicySpec{PodSelector: labelled("app", "db"), VPC: "e", SecurityGroups: []string{"sg-1", "sg-2"}})
	harness.OK(t, c.Create(t.Context(), one))
	isReady(t, c, one, nicpolicy.ReasonReady, "in VPC e")
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
		two := policy("shop", "rest", v1alpha1.NICPolicySpec{PodSelector: &v1alpha1.LabelSelector{}, VPC: "n", Subnet: "web"})
		harness.OK(t, c.Create(t.Context(), two))
		isReady(t, c, two, nicpolicy.ReasonReady, "in VPC n")
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
			p := policy("shop", app, v1alpha1.NICPolicySpec{PodSelector: labelled("app", app), VPC: "e"})
			harness.OK(t, c.Create(t.Context(), p))
			want(t, "shop", map[string]string{"app": app}, given("NICPolicy/"+app, "e", `[{"name":"eth0"}]`), "1")
			harness.OK(t, c.Delete(t.Context(), p))
		}
	})
	t.Run("by service accounts", func(t *testing.T) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "ledger", Labels: map[string]string{"tier": "data"}}}
		p := policy("bank", "data", v1alpha1.NICPolicySpec{ServiceAccountSelector: labelled("tier", "data"), PodSelector: labelled("app", "db"), SecurityGroups: []string{"sg-3"}, VPC: "e"})
		harness.OK(t, c.Create(t.Context(), account))
		harness.OK(t, c.Create(t.Context(), p))
		isReady(t, c, p, nicpolicy.ReasonReady, "")
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
		p := policy("bank", "lost", v1alpha1.NICPolicySpec{PodSelector: labelled("app", "db"), SecurityGroups: []string{"sg-3"}})
		harness.OK(t, c.Create(t.Context(), p))
		const why = "NICPolicy/lost: spec.vpc is not set, and 2 VPCs are for namespace bank"
		isReady(t, c, p, nicpolicy.ReasonVPCNotFound, why)
		harness.Eventually(t, limit, "pods that it selects are refused", func() error {
			_, err := tryPod(t, c, "bank", db)
			return refused(err, why)
		})
		want(t, "bank", nil, nothing, "0")
		harness.OK(t, c.Delete(t.Context(), p))
		eventually(t, "bank", db, none, "0")
	})
	t.Run("with what the VPC has not", func(t *testing.T) {
		p := policy("bank", "lost", v1alpha1.NICPolicySpec{PodSelector: labelled("app", "db"), Subnet: "nowhere", VPC: "n"})
		harness.OK(t, c.Create(t.Context(), p))
		isReady(t, c, p, nicpolicy.ReasonNotPossible, `spec.subnet: VPC n has no subnet "nowhere"`)
		harness.Eventually(t, limit, "pods that it selects are refused", func() error {
			_, err := tryPod(t, c, "bank", db)
			return refused(err, `NICPolicy/lost: metadata.annotations[berth.dev/nics][0].subnet: VPC n has no subnet "nowhere"`)
		})
		harness.OK(t, c.Delete(t.Context(), p))
		eventually(t, "bank", db, none, "0")
	})
	t.Run("of the operator's namespace", func(t *testing.T) {
		p := policy("kube-system", "all", v1alpha1.NICPolicySpec{PodSelector: &v1alpha1.LabelSelector{}, VPC: "e"})
		harness.OK(t, c.Create(t.Context(), p))
		isReady(t, c, p, nicpolicy.ReasonOperatorNamespace, "make the policy, and its pods, in another")
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
