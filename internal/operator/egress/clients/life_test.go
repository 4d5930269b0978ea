package clients

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// A pod from its annotation to the gateways' slice, and until it is gone.
func TestClient(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	p := w.pod("web", "nat")
	o := w.await(p, "names it", uses([]string{"nat"}))
	if o.Spec.NodeName != "node-a" || o.Spec.PodUID != string(p.UID) || len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != p.UID {
		t.Errorf("got %+v", o)
	}
	w.await(p, "waits", ready(reasonWaiting, "node-a"))
	w.setUp(p, "10.1.0.5", "2001:db8::5")
	w.awaitServed("nat", "web 10.1.0.5,2001:db8::5")
	w.await(p, "is ready", ready(reasonSetUp))
	w.awaitCounts("nat", 1, 0, reasonServed)
	w.status(p, corev1.PodRunning, "10.1.0.5", "2001:db8::5")
	w.deletePod(p)
	w.awaitServed("nat")
	w.awaitNone(p)
	w.awaitCounts("nat", 0, 0, reasonServed)
	harness.OK(t, controllers.Same("slices that are left", len(w.slices("nat")), 0))
}

func labelled(key, value string) *v1alpha1.LabelSelector {
	return &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}}
}

// change edits an Egress.
func (w *world) change(name string, how func(*v1alpha1.EgressSpec)) {
	w.t.Helper()
	controllers.Edit(w.t, client.ObjectKey{Namespace: "internet", Name: name}, func(e *v1alpha1.Egress) { how(&e.Spec) })
}

// A pod that may not use what it names learns why, once, and uses it once it may.
func TestRefusals(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{})
	p := w.pod("web", "nat,dc")
	w.await(p, "is refused", uses(nil, "dc NotFound", "nat NotAllowed"))
	w.await(p, "says so", ready(v1alpha1.EgressNotFound, "there is no Egress internet/dc", "Egress internet/nat does not allow pods of namespace shop"))
	controllers.AwaitEvent(t, p, "EgressNotFound", "there is no Egress internet/dc")
	controllers.AwaitEvent(t, p, "EgressNotAllowed", "internet/nat does not allow")
	w.awaitCounts("nat", 0, 1, reasonServed) // a stranger's pod is counted, and hides nothing
	w.edit(p, `{"metadata":{"labels":{"a":"b"}}}`)
	w.change("nat", func(s *v1alpha1.EgressSpec) {
		s.AllowedNamespaces = &v1alpha1.VPCNamespaces{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}}}
	})
	w.await(p, "may use one", uses([]string{"nat"}, "dc NotFound"))
	w.awaitCounts("nat", 0, 0, reasonServed)
	w.setUp(p, "10.1.0.5")
	w.awaitServed("nat", "web 10.1.0.5")
	w.egress("dc", v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/24"}, AllowedNamespaces: open()})
	w.await(p, "may use both", uses([]string{"dc", "nat"}))
	w.awaitServed("dc", "web 10.1.0.5") // before the node has set it up
	w.await(p, "waits for the node", ready(reasonWaiting, "Egress internet/dc"))
	w.setUp(p, "10.1.0.5")
	w.await(p, "is ready", ready(reasonSetUp))
	w.egress("dc2", v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/25"}, AllowedNamespaces: open()})
	w.edit(p, `{"metadata":{"annotations":{"egress.berth.dev/internet":"nat,dc,dc2"}}}`)
	w.await(p, "has two that overlap", uses([]string{"dc", "nat"}, "dc2 Overlaps"))
	controllers.AwaitEvent(t, p, "EgressOverlaps", "203.0.113.0/25")
	w.change("dc2", func(s *v1alpha1.EgressSpec) { s.Destinations = []string{"198.51.100.0/24"} })
	w.await(p, "has none any more", uses([]string{"dc", "dc2", "nat"}))
	w.namespace("shop", nil)
	w.await(p, "is in another kind of namespace", uses([]string{"dc", "dc2"}, "nat NotAllowed"))
	w.awaitServed("nat")
	w.edit(p, `{"metadata":{"annotations":{"egress.berth.dev/internet":""}}}`)
	w.await(p, "names nothing", uses(nil, " Invalid"))
	controllers.AwaitEvent(t, p, "EgressInvalid", "metadata.annotations[egress.berth.dev/internet]")
	w.awaitServed("dc")
	w.edit(p, `{"metadata":{"annotations":null}}`)
	w.awaitNone(p)
	counts := map[string]int{}
	for _, e := range controllers.Events(t, p) {
		counts[e]++
	}
	for e, n := range counts {
		if n > 1 && !strings.Contains(e, "NotAllowed") { // which it was twice
			t.Errorf("said %d times: %s", n, e)
		}
	}
}

// An Egress selects pods by labels; the others of their namespace get an EgressClient that
// says that they use none.
func TestSelected(t *testing.T) {
	w := start(t, Options{})
	w.namespace("shop", nil)
	w.consents("shop", "internet")
	web, db, hosts, gateway := w.pod("web", ""), newPod("db", ""), newPod("hosts", ""), newPod("gateway", "")
	posing := newPod("posing", "")
	db.Labels["app"], hosts.Spec.HostNetwork = "db", true
	gateway.Labels[v1alpha1.LabelEgress], posing.Labels[v1alpha1.LabelEgress] = "another", "another"
	gateway.OwnerReferences = []metav1.OwnerReference{w.madeBy("another")}
	posing.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "another-5d9f", UID: "of-nobody", Controller: new(true)}}
	for _, p := range []*corev1.Pod{db, hosts, gateway, posing} {
		w.make(p, "node-b")
	}
	w.egress("nat", v1alpha1.EgressSpec{Clients: &v1alpha1.EgressClientSelector{NamespaceSelector: labelled("team", "shop"), PodSelector: labelled("app", "web")}})
	w.namespace("shop", map[string]string{"team": "shop"})
	w.await(web, "is selected", uses([]string{"nat"}))
	w.await(db, "is not", uses(nil))
	w.await(gateway, "is a gateway", uses(nil))
	w.await(posing, "has a gateway's label, and is none", uses([]string{"nat"}))
	if o := w.object(hosts); o != nil {
		t.Errorf("of the node's network: %+v", o)
	}
	harness.OK(t, controllers.Same("conditions of a pod that uses none", len(w.object(db).Status.Conditions), 0))
	w.setUp(web, "10.1.0.5")
	w.awaitServed("nat", "web 10.1.0.5")
	w.edit(web, `{"metadata":{"labels":{"app":"db"}}}`)
	w.edit(db, `{"metadata":{"labels":{"app":"web"}}}`)
	w.await(web, "is not any more", uses(nil))
	w.await(db, "is selected", uses([]string{"nat"}))
	w.awaitServed("nat")
	w.change("nat", func(s *v1alpha1.EgressSpec) { s.Clients.PodSelector = nil })
	w.await(web, "is again", uses([]string{"nat"}))
	w.awaitServed("nat", "web 10.1.0.5")
	w.namespace("shop", nil)
	w.awaitNone(web)
	w.awaitNone(db)
	w.awaitNone(gateway)
	w.awaitServed("nat")
}

// madeBy is that an Egress of namespace shop has made a pod, by a Deployment and a ReplicaSet.
func (w *world) madeBy(egress string) metav1.OwnerReference {
	w.t.Helper()
	yes, labels := true, map[string]string{v1alpha1.LabelEgress: egress}
	o := controllers.Create(w.t, &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: egress}, Spec: v1alpha1.EgressSpec{Destinations: []string{"192.0.2.0/24"}}})
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: egress, Labels: labels, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Egress", Name: egress, UID: o.UID, Controller: &yes},
		}},
		// The policies let nobody but the operator make one whose pods have the label.
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "nat"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "nat"}}, Spec: template.Spec},
		},
	}
	harness.OK(w.t, w.client().Create(w.t.Context(), d))
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: egress + "-5d9f", Labels: labels, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "Deployment", Name: egress, UID: d.UID, Controller: &yes},
		}},
		Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template},
	}
	harness.OK(w.t, w.controller().Create(w.t.Context(), set))
	w.t.Cleanup(func() {
		for _, o := range []client.Object{set, d} {
			_ = w.client().Delete(context.WithoutCancel(w.t.Context()), o)
		}
	})
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set.Name, UID: set.UID, Controller: &yes}
}

// An Egress that is deleted leaves no slice, and one of its name serves pods anew.
func TestEgressMadeAnew(t *testing.T) {
	w := start(t, Options{})
	first := w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	p := w.pod("web", "nat")
	w.setUp(p, "10.1.0.5")
	w.awaitServed("nat", "web 10.1.0.5")
	harness.OK(t, w.client().Delete(t.Context(), first))
	w.await(p, "is refused", uses(nil, "nat NotFound"))
	w.awaitServed("nat")
	second := w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	o := w.await(p, "uses the new one", uses([]string{"nat"}))
	harness.OK(t, controllers.Same("the UID of the Egress", o.Spec.Egresses[0].UID, string(second.UID)))
	w.awaitServed("nat", "web 10.1.0.5")
	for _, s := range w.slices("nat") {
		if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != second.UID {
			t.Errorf("slice %s is of %+v", s.Name, s.OwnerReferences)
		}
	}
	w.gateways(second, 0)
	w.setUp(p, "10.1.0.5")
	w.await(p, "has no gateway", ready(reasonNoGateway, "internet/nat"))
	w.gateways(second, 2)
	w.await(p, "has one", ready(reasonSetUp))
}

// A pod of the same name is another client, and what the last one's node said counts for
// nothing.
func TestPodMadeAnew(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	p := w.pod("web-0", "nat")
	w.setUp(p, "10.1.0.5")
	w.awaitServed("nat", "web-0 10.1.0.5")
	w.deletePod(p)
	next := w.make(newPod("web-0", "nat"), "node-b")
	w.await(next, "is the new one's", controllers.If(func(o *v1alpha1.EgressClient) bool {
		return o.Spec.PodUID == string(next.UID) && o.Spec.NodeName == "node-b" && o.Status.Node == nil
	}))
	w.awaitServed("nat")
	w.setUp(next, "10.1.0.6")
	w.awaitServed("nat", "web-0 10.1.0.6")
}

// What a node says of a client, and what has become of its pod, decides whether gateways
// serve it.
func TestServedWhileItLives(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	p := w.pod("web", "nat")
	o := w.await(p, "is there", uses([]string{"nat"}))
	set := v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, ContainerID: "c", Addresses: []string{"10.1.0.5"}, Egresses: o.Spec.Egresses}
	failed := set
	failed.State, failed.Reason, failed.Message = v1alpha1.EgressClientFailed, "NoFoU", "the kernel lacks module fou"
	failedAll := failed
	failedAll.Egresses = nil
	w.says(o, failedAll)
	w.await(p, "says what failed", ready(reasonFailed, "node-a", "module fou"))
	w.awaitCounts("nat", 0, 0, reasonWaits, "pod shop/web is not served (SetUpFailed)")
	w.says(w.object(p), set)
	w.awaitServed("nat", "web 10.1.0.5")
	w.says(w.object(p), failed)
	w.await(p, "failed later", ready(reasonFailed))
	w.awaitServed("nat", "web 10.1.0.5")
	w.says(w.object(p), v1alpha1.EgressClientNode{State: v1alpha1.EgressClientGone})
	w.awaitServed("nat")
	set.ContainerID, set.Addresses = "d", []string{"10.1.0.6"}
	w.says(w.object(p), set)
	w.awaitServed("nat", "web 10.1.0.6")
	w.status(p, corev1.PodSucceeded, "10.1.0.6")
	w.awaitServed("nat")
	w.awaitNone(p)
}

// The address of a pod that lives is nobody else's, whatever a node says; that of one that
// has ended is.
func TestAddressesOfOthers(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	plain, mine, theirs := w.pod("plain", ""), w.pod("mine", "nat"), w.pod("theirs", "nat")
	w.status(plain, corev1.PodRunning, "10.1.0.4")
	w.setUp(mine, "10.1.0.5")
	w.awaitServed("nat", "mine 10.1.0.5")
	w.setUp(theirs, "10.1.0.4")
	w.await(theirs, "has another's", ready(reasonConflict, "10.1.0.4", "pod shop/plain"))
	w.awaitCounts("nat", 1, 0, reasonWaits, "AddressConflict")
	w.says(w.object(theirs), v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, Addresses: []string{"10.1.0.5"}, Egresses: w.object(theirs).Spec.Egresses})
	w.await(theirs, "has another's", ready(reasonConflict, "10.1.0.5", "pod shop/mine"))
	w.awaitServed("nat", "mine 10.1.0.5")
	w.status(theirs, corev1.PodRunning, "10.1.0.5") // its own status says so too: then it is
	w.awaitServed("nat", "theirs 10.1.0.5")
	w.await(mine, "has lost it", ready(reasonConflict, "pod shop/theirs"))
	w.says(w.object(mine), v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, Addresses: []string{"10.1.0.5", "2001:db8::9"}, Egresses: w.object(mine).Spec.Egresses})
	w.status(mine, corev1.PodRunning, "10.1.0.5") // both: who is served stays so
	w.status(theirs, corev1.PodFailed, "10.1.0.5")
	w.awaitServed("nat", "mine 10.1.0.5")
	w.await(mine, "is no server", ready(reasonConflict, "2001:db8::9", "not among", "10.1.0.5"))
	w.setUp(mine, "203.0.113.9")
	w.awaitServed("nat")
	w.setUp(mine, "10.1.0.5")
	w.awaitServed("nat", "mine 10.1.0.5")
	w.await(mine, "has it again", ready(reasonSetUp))
	w.deletePod(mine)
	w.awaitServed("nat")
}

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
	status := metav1.ConditionFalse
	if reason == reasonServed {
		status = metav1.ConditionTrue
	}
	controllers.Await(w.t, client.ObjectKeyFromObject(o), "says "+reason, controllers.Has[*v1alpha1.Egress](v1alpha1.ConditionClientsReady, status, reason, words...))
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
	harness.Eventually(t, controllers.Limit, "gateways have it", func() error {
		list := &v1alpha1.EgressClientSliceList{}
		if err := w.client().List(t.Context(), list, client.InNamespace("tenant")); err != nil || len(list.Items) > 0 {
			return errors.Join(err, fmt.Errorf("slices %+v", list.Items))
		}
		return nil
	})
	w.awaitServed("nat", "naming 10.1.0.5")

	w.consents("shop", "dmz, tenant")
	w.await(web, "consents", selected([]string{"all"}, "tenant/all"))
	controllers.Merge(t, e, `{"spec":{"clients":{"namespaceSelector":{"matchLabels":{"team":"shop"}}}}}`)
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
