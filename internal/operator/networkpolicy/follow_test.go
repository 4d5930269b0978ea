package networkpolicy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	discoveryfake "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/resolve"
)

func read[T any](t *testing.T, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.Unmarshal([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// newFollower follows a cluster in which ClusterNetworkPolicies are the given objects.
func newFollower(t *testing.T, cluster ...runtime.Object) (*follower, *events.FakeRecorder) {
	t.Helper()
	recorder := events.NewFakeRecorder(100)
	f := &follower{feed: feed.New(), events: recorder, clock: clock.Real{}, policies: map[policy.Ref]*followed{}, nodes: newNodeAddresses(), log: slog.New(slog.DiscardHandler),
		namespaces: map[string]bool{}, held: map[string]map[string]resolve.Pod{}}
	f.optional = &watched.Optional{
		API:       dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{clusterPolicies: kindClusterPolicy + "List"}, cluster...),
		Discovery: &discoveryfake.FakeDiscovery{Fake: &clienttesting.Fake{}},
		Resource:  clusterPolicies, Kind: kindClusterPolicy, Handler: f.clusterHandler(), Changed: f.clusterChanged, Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler),
	}
	return f, recorder
}

func recorded(r *events.FakeRecorder) (all []string) {
	for {
		select {
		case e := <-r.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// policiesOf are the names of the policies that the node of a pod is sent.
func policiesOf(f *follower, node string) (names []string) {
	s := f.feed.Subscribe(node)
	defer s.Close()
	for ref := range s.Next().Policies {
		names = append(names, ref.String())
	}
	slices.Sort(names)
	return names
}

const pod = `{metadata: {name: web, namespace: shop, uid: u, labels: {app: web}}, spec: {nodeName: node-a, containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}, status: {podIPs: [{ip: 10.0.0.7}]}}`

// A port name that no pod has is an Event once the pods have had time to start, and again only after it was right in
// between.
func TestUnknownPortNameIsAnEvent(t *testing.T) {
	f, recorder := newFollower(t)
	f.setNamespace(read[metav1.PartialObjectMetadata](t, `{metadata: {name: shop}}`))
	f.setPod(read[corev1.Pod](t, pod))
	set := func(port string) {
		o := read[networkingv1.NetworkPolicy](t, `{metadata: {name: web, namespace: shop}, spec: {podSelector: {}, ingress: [{ports: [{port: `+port+`}]}]}}`)
		f.setPolicy(o, compile.NetworkPolicy(o))
	}
	for _, step := range []struct {
		port       string
		unresolved int
		events     int
	}{{"http", 0, 0}, {"htpp", 1, 1}, {"htpp", 1, 0}, {"http", 0, 0}, {"htpp", 1, 1}} {
		set(step.port)
		if all := recorded(recorder); len(all) > 0 {
			t.Errorf("port %s: Events %q right after the change, want none", step.port, all)
		}
		f.review()
		_, _, unresolved := f.counts()
		all := recorded(recorder)
		if unresolved != step.unresolved || len(all) != step.events {
			t.Errorf("port %s: %d unresolved policies and Events %q, want %d and %d", step.port, unresolved, all, step.unresolved, step.events)
		}
		for _, e := range all {
			if !strings.Contains(e, `no pod that a rule applies to has a container port named "htpp"`) {
				t.Errorf("Event = %q, want it to name the port", e)
			}
		}
	}
}

// What makes no sense in a policy is an Event at once.
func TestProblemOfPolicyIsAnEvent(t *testing.T) {
	f, recorder := newFollower(t)
	o := read[networkingv1.NetworkPolicy](t, `{metadata: {name: web, namespace: shop}, spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.1.0.0/24]}}]}]}}`)
	f.setPolicy(o, compile.NetworkPolicy(o))
	if all := recorded(recorder); len(all) != 1 || !strings.Contains(all[0], "Warning PolicyUnresolved spec.ingress[0].from[0].ipBlock.except[0]: 10.1.0.0/24 is not inside 10.0.0.0/24") {
		t.Errorf("Events = %q, want one that names the field", all)
	}
	f.deletePolicy(policy.Ref{Namespace: "shop", Name: "web"})
	if _, _, unresolved := f.counts(); unresolved != 0 {
		t.Errorf("%d unresolved policies after the deletion, want 0", unresolved)
	}
}

// ClusterNetworkPolicies apply while their kind is installed. Until it is known whether it is, no node is served.
func TestClusterNetworkPoliciesApplyWhileInstalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := func(text string) *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: *read[map[string]any](t, text)}
		}
		f, recorder := newFollower(t,
			of(`{apiVersion: policy.networking.k8s.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: good}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}`),
			of(`{apiVersion: policy.networking.k8s.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: odd}, spec: {priority: high}}`))
		f.setNamespace(read[metav1.PartialObjectMetadata](t, `{metadata: {name: shop}}`))
		f.setPod(read[corev1.Pod](t, pod))
		if f.serves() == nil {
			t.Error("the operator serves before it knows whether there are ClusterNetworkPolicies")
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = f.optional.Run(ctx) })
		defer running.Wait()
		defer cancel()
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		synctest.Wait()
		if err := f.serves(); err != nil {
			t.Errorf("serves() = %v, want nil", err)
		}
		if got := policiesOf(f, "node-a"); !slices.Equal(got, []string{"ClusterNetworkPolicy good"}) {
			t.Errorf("policies of the node = %q, want good", got)
		}
		if all := recorded(recorder); len(all) != 1 || !strings.Contains(all[0], "expected ClusterNetworkPolicy of policy.networking.k8s.io/v1beta1") || !strings.Contains(all[0], "the policy selects no pod") {
			t.Errorf("Events = %q, want one of the policy that cannot be read", all)
		}
		f.clusterHandler().OnUpdate(nil, of(`{metadata: {name: good}, spec: {priority: high}}`))
		if got := policiesOf(f, "node-a"); !slices.Equal(got, []string{"ClusterNetworkPolicy good"}) {
			t.Errorf("policies of the node = %q, want good as it was before it could not be read", got)
		}
		if all := recorded(recorder); len(all) != 1 || !strings.Contains(all[0], "the previous version remains in force") {
			t.Errorf("Events = %q, want one of the change that cannot be read", all)
		}
		f.optional.Settle(nil) // the kind was removed
		if got := policiesOf(f, "node-a"); len(got) != 0 {
			t.Errorf("policies of the node = %q, want none without the kind", got)
		}
	})
}

// A policy whose subject makes no sense remains in force as it was. If it never made sense, an Event says that it selects no pod.
func TestInvalidSubjectChangesNothing(t *testing.T) {
	f, recorder := newFollower(t)
	f.setNamespace(read[metav1.PartialObjectMetadata](t, `{metadata: {name: shop}}`))
	f.setPod(read[corev1.Pod](t, pod))
	for i, step := range []struct {
		name, subject string
		inForce       []string
		event         string
	}{
		{"new", `{namespaces: {matchExpressions: [{key: app, operator: Sometimes}]}}`, nil, "spec.subject.namespaces: \"Sometimes\" is not a valid label selector operator; this operator has not read a valid version before, so the policy selects no pods"},
		{"good", `{namespaces: {}}`, []string{"ClusterNetworkPolicy good"}, ""},
		{"good", `{namespaces: {matchLabels: {app: "?"}}}`, []string{"ClusterNetworkPolicy good"}, "; the previous version remains in force"},
		{"good", `{}`, []string{"ClusterNetworkPolicy good"}, "spec.subject has no field that is supported: expected namespaces or pods; the previous version remains in force"},
		{"good", `{namespaces: {matchLabels: {no: pods}}}`, nil, ""},
		{"new", `{namespaces: {}}`, []string{"ClusterNetworkPolicy new"}, ""},
	} {
		f.clusterHandler().OnUpdate(nil, &unstructured.Unstructured{Object: *read[map[string]any](t,
			`{metadata: {name: `+step.name+`}, spec: {tier: Admin, priority: 1, subject: `+step.subject+`, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}`)})
		if got := policiesOf(f, "node-a"); !slices.Equal(got, step.inForce) {
			t.Errorf("step %d: policies of the node = %q, want %q", i, got, step.inForce)
		}
		if all := recorded(recorder); len(all) > 1 || (len(all) == 1) != (step.event != "") || len(all) == 1 && !strings.Contains(all[0], step.event) {
			t.Errorf("step %d: Events = %q, want %q", i, all, step.event)
		}
	}
}

// stored is a cache whose watches follow nothing. Its objects change by hand.
type stored struct {
	cache.Cache
	stores map[string]toolscache.Indexer
}

func (s stored) GetInformer(_ context.Context, o client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	name := fmt.Sprintf("%T", o)
	if s.stores[name] == nil {
		s.stores[name] = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, nil)
	}
	return informer{store: s.stores[name]}, nil
}

type informer struct {
	toolscache.SharedIndexInformer
	store toolscache.Store
}

func (i informer) GetStore() toolscache.Store { return i.store }
func (i informer) HasSynced() bool            { return true }

func (i informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	for _, o := range i.store.List() {
		h.OnAdd(o, true)
	}
	return i, nil
}

// noObjects is an API server whose objects were all deleted.
type noObjects struct{ client.Reader }

func (noObjects) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.SetResourceVersion("100")
	return nil
}

// An operator whose watch broke while it was waiting to lead does not serve what it read back then, and says why.
func TestOldStateIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFollower(t)
		f.optional.Settle(nil)
		f.unsynced = errReading
		policies := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, nil)
		old := read[networkingv1.NetworkPolicy](t, `{metadata: {name: web, namespace: shop, resourceVersion: "7"}, spec: {podSelector: {}, ingress: [{}]}}`)
		if err := policies.Add(old); err != nil {
			t.Fatal(err)
		}
		var started sync.WaitGroup
		defer started.Wait()
		started.Go(func() {
			c := stored{stores: map[string]toolscache.Indexer{"*v1.NetworkPolicy": policies}}
			if err := f.start(t.Context(), c, watched.API{Reader: noObjects{}, Scheme: scheme.Scheme}); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(2 * freshWithin) //nolint:forbidigo // virtual time
		synctest.Wait()
		namespaced, _, _ := f.counts()
		if err := f.serves(); err == nil || !strings.Contains(err.Error(), "the operator's cache of NetworkPolicies may be stale: the watch is behind") || namespaced > 0 {
			t.Errorf("serves() = %v with %d policies, want an error that says which watch is behind, and none", err, namespaced)
		}
		if err := policies.Delete(old); err != nil { // the watch works again
			t.Fatal(err)
		}
		time.Sleep(freshWithin) //nolint:forbidigo // virtual time
		synctest.Wait()
		if err := f.serves(); err != nil {
			t.Errorf("serves() = %v once the cache is as the API server, want nil", err)
		}
	})
}

// Policies that exist when an operator begins to lead come into force in the order of their creation, and after the pods, so that the same ones
// exceed the budget of their namespace each time. An Event says so.
func TestOlderPoliciesAreInForceFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, recorder := newFollower(t)
		c := stored{stores: map[string]toolscache.Indexer{}}
		add := func(o client.Object) {
			t.Helper()
			o.SetResourceVersion("101") // since the list
			if _, err := c.GetInformer(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if err := c.stores[fmt.Sprintf("%T", o)].Add(o); err != nil {
				t.Fatal(err)
			}
		}
		add(read[metav1.PartialObjectMetadata](t, `{metadata: {name: shop}}`))
		for i := range 10 {
			p := read[corev1.Pod](t, `{metadata: {namespace: shop}, status: {podIPs: [{ip: 10.0.0.1}]}}`)
			p.Name = fmt.Sprint(i)
			add(p)
		}
		f.feed = feed.NewLimited(30) // while the operator starts, up to 60
		const policies = 5           // of 11 members each
		for i := range policies + 2 {
			o := read[networkingv1.NetworkPolicy](t, `{metadata: {namespace: shop}, spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchExpressions: [{key: key, operator: DoesNotExist}]}}]}]}}`)
			o.Name = fmt.Sprintf("p%02d", (i*3)%(policies+2)) // whatever the order of names
			o.CreationTimestamp = metav1.NewTime(time.Unix(int64(i), 0))
			o.Spec.Ingress[0].From[0].PodSelector.MatchExpressions[0].Key = o.Name
			add(o)
		}
		if err := f.start(t.Context(), c, watched.API{Reader: noObjects{}, Scheme: scheme.Scheme}); err != nil {
			t.Fatal(err)
		}
		all := recorded(recorder)
		for i := range 2 {
			name := fmt.Sprintf("p%02d", ((policies+i)*3)%(policies+2))
			if refused := f.feed.Refused(policy.Ref{Namespace: "shop", Name: name}); len(refused) != 1 || !slices.ContainsFunc(all, func(e string) bool {
				return strings.Contains(e, "rules that select pods of other namespaces match nothing")
			}) {
				t.Errorf("problems of %s, which is one of the latest, are %q, Events are %q", name, refused, all)
			}
		}
		if _, _, unresolved := f.counts(); unresolved != 2 || len(all) != 2 {
			t.Errorf("%d policies are unresolved and there are %d Events, want 2", unresolved, len(all))
		}
	})
}

// A node is not sent a pod before the labels of its namespace are known, by which ClusterNetworkPolicies select it.
func TestPodsWaitForTheirNamespace(t *testing.T) {
	f, _ := newFollower(t)
	s := f.feed.Subscribe("node-a")
	defer s.Close()
	f.setPod(read[corev1.Pod](t, pod))
	if told := s.Next().Pods; len(told) > 0 {
		t.Errorf("pods = %v before their namespace is known", told)
	}
	f.setNamespace(read[metav1.PartialObjectMetadata](t, `{metadata: {name: shop}}`))
	if told := s.Next().Pods; len(told) != 1 {
		t.Errorf("%d pods once their namespace is known, want 1", len(told))
	}
	f.deletePod(read[corev1.Pod](t, pod))
	f.deleteNamespace(read[metav1.PartialObjectMetadata](t, `{metadata: {name: shop}}`))
	f.setPod(read[corev1.Pod](t, pod))
	f.deletePod(read[corev1.Pod](t, pod))
	f.setNamespace(read[metav1.PartialObjectMetadata](t, `{metadata: {name: shop}}`))
	s.Next()
	if _, known := f.feed.Assign("node-a", types.NamespacedName{Namespace: "shop", Name: "web"}, "u", nil, false); known == nil {
		t.Error("a pod that was deleted while it waited for its namespace is known")
	}
}

// A policy with thousands of problems is a few Events.
func TestEventsOfAPolicyAreBounded(t *testing.T) {
	f, recorder := newFollower(t)
	peers := strings.Repeat("{ipBlock: {cidr: x}}, ", 99)
	o := read[networkingv1.NetworkPolicy](t, `{metadata: {name: web, namespace: shop}, spec: {podSelector: {}, ingress: [{from: [`+peers+`]}]}}`)
	f.setPolicy(o, compile.NetworkPolicy(o))
	f.review()
	if n := len(recorded(recorder)); n != maxProblems {
		t.Errorf("%d Events, want %d", n, maxProblems)
	}
}

// An address stays a node's as long as any node has it.
func TestNodeAddresses(t *testing.T) {
	n, a, b := newNodeAddresses(), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for i, step := range []struct {
		node  string
		addrs []netip.Addr
		a, b  bool
	}{
		{"one", []netip.Addr{a}, true, false}, {"two", []netip.Addr{a, b}, true, true}, {"one", []netip.Addr{b}, true, true},
		{"two", nil, false, true}, {"one", nil, false, false},
	} {
		if n.set(step.node, step.addrs); n.has(a) != step.a || n.has(b) != step.b {
			t.Errorf("step %d: has(%s) = %v, has(%s) = %v, want %v and %v", i, a, n.has(a), b, n.has(b), step.a, step.b)
		}
	}
}
