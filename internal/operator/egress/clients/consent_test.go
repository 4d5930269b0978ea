package clients

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// tenants has an Egress of namespace tenant select pods, as one who may write Egresses there alone makes it.
func (w *world) tenants(name string, clients v1alpha1.EgressClientSelector) *v1alpha1.Egress {
	w.t.Helper()
	o := &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: name},
		Spec:       v1alpha1.EgressSpec{Destinations: []string{"0.0.0.0/1", "128.0.0.0/1"}, Clients: &clients},
	}
	harness.Eventually(w.t, controllers.Limit, "the API server knows the namespace's label", func() error { return client.IgnoreAlreadyExists(w.client().Create(w.t.Context(), o)) })
	return o
}

// clientsReady wants the condition ClientsReady of an Egress to have a reason and words.
func (w *world) clientsReady(o *v1alpha1.Egress, reason string, words ...string) {
	w.t.Helper()
	harness.Eventually(w.t, controllers.Limit, o.Name+" says "+reason, func() error {
		if err := w.client().Get(w.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionClientsReady)
		if c == nil || c.Reason != reason || (c.Status == metav1.ConditionTrue) != (reason == reasonServed) {
			return fmt.Errorf("it says %+v", c)
		}
		for _, word := range words {
			if !strings.Contains(c.Message, word) {
				return fmt.Errorf("message %q, want %q in it", c.Message, word)
			}
		}
		return nil
	})
}

// An Egress selects pods of other namespaces as an administrator grants or as these consent, never the
// system's, and takes nothing from one that a pod names; all of that while pods run.
func TestConsent(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	granted := map[string]string{v1alpha1.LabelEgressMaySelect: "true"}
	w.namespace("tenant", granted)
	web, naming, dns := w.pod("web", ""), w.pod("naming", "nat"), newPod("dns", "")
	dns.Namespace = metav1.NamespaceSystem
	w.make(dns, "node-a")
	e := w.tenants("all", v1alpha1.EgressClientSelector{NamespaceSelector: &v1alpha1.LabelSelector{}})
	selected := func(names []string, selected ...string) func(*v1alpha1.EgressClient) error {
		return func(o *v1alpha1.EgressClient) error {
			if got := strings.Join(o.Spec.Selected, " "); got != strings.Join(selected, " ") {
				return fmt.Errorf("selected by %q", got)
			}
			return uses(names)(o)
		}
	}
	w.await(web, "is selected", selected([]string{"all"}, "tenant/all"))
	w.await(naming, "uses what it names", uses([]string{"nat"}, "all Overlaps"))
	w.setUp(naming, "10.1.0.5")
	w.setUp(web, "10.1.0.6")
	w.clientsReady(e, reasonRefused, "pod shop/naming")

	w.namespace("tenant", nil)
	w.awaitNone(web)
	controllers.AwaitEvent(t, web, "EgressNotSelected", "Egress tenant/all does not select the pod any more: namespace shop does not let Egresses of namespace tenant")
	w.await(naming, "is refused nothing", selected([]string{"nat"}))
	w.clientsReady(e, reasonConsent, "annotates each with berth.dev/egress-selectable-from=tenant, or labels namespace tenant berth.dev/egress-may-select=true")
	harness.Eventually(t, controllers.Limit, "gateways are told", func() error {
		list := &v1alpha1.EgressClientSliceList{}
		if err := w.client().List(t.Context(), list, client.InNamespace("tenant")); err != nil || len(list.Items) > 0 {
			return errors.Join(err, fmt.Errorf("slices %+v", list.Items))
		}
		return nil
	})
	w.awaitServed("nat", "naming 10.1.0.5")

	w.consents("shop", "dmz, tenant")
	w.await(web, "consents", selected([]string{"all"}, "tenant/all"))
	byTeam := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"clients":{"namespaceSelector":{"matchLabels":{"team":"shop"}}}}}`))
	harness.OK(t, w.client().Patch(t.Context(), e.DeepCopy(), byTeam))
	w.setUp(web, "10.1.0.6")
	w.edit(naming, `{"metadata":{"annotations":null}}`)
	w.await(naming, "does not name one any more", selected([]string{"all"}, "tenant/all"))
	w.setUp(naming, "10.1.0.5")
	w.clientsReady(e, reasonServed)
	w.edit(naming, `{"metadata":{"annotations":{"egress.berth.dev/tenant":"all"}}}`)
	w.await(naming, "names it", selected([]string{"all"}))
	w.consents("shop", "dmz")
	w.awaitNone(web)
	w.clientsReady(e, reasonConsent, "kubectl get namespaces -l 'team=shop'")
	w.await(naming, "names it still", selected([]string{"all"}))
	if o := w.object(dns); o != nil {
		t.Errorf("of the cluster's DNS: %+v", o.Spec)
	}

	// A namespace that comes counts for a selector of all that have no certain name.
	there := &corev1.NamespaceList{}
	harness.OK(t, w.client().List(t.Context(), there))
	others := v1alpha1.LabelRequirement{Key: corev1.LabelMetadataName, Operator: "NotIn"}
	for _, ns := range there.Items {
		others.Values = append(others.Values, v1alpha1.LabelValue(ns.Name))
	}
	w.namespace("tenant", granted) // so that the policy takes it
	rest := w.tenants("rest", v1alpha1.EgressClientSelector{NamespaceSelector: &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelRequirement{others}}})
	w.namespace("tenant", nil)
	w.clientsReady(rest, reasonServed)
	w.namespace("late", nil)
	w.clientsReady(rest, reasonConsent)
	harness.OK(t, w.client().Delete(t.Context(), rest))

	own := v1alpha1.EgressClientSelector{PodSelector: labelled("app", "none")}
	var last *v1alpha1.Egress
	for i := range membership.MaxSelecting {
		last = w.tenants(fmt.Sprintf("own-%02d", i), own)
	}
	w.clientsReady(last, reasonTooMany, "namespace tenant has 32 older Egresses")
	harness.OK(t, w.client().Delete(t.Context(), e))
	w.clientsReady(last, reasonServed)
}
