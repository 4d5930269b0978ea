package nicpolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/watched"
)

// having is a reader with this many NICPolicies in each namespace, which counts its calls.
type having struct {
	client.Reader
	policies int
	asked    *int
}

func (h having) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	*h.asked++
	list.(*v1alpha1.NICPolicyList).Items = make([]v1alpha1.NICPolicy, h.policies)
	return nil
}

// decoding is a reader that decodes JSON into the given list, as clients of the API server do.
type decoding struct {
	client.Reader
	body string
}

func (d decoding) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	return json.Unmarshal([]byte(d.body), list)
}

// A policy read from the API server has no fields left over from the cached one.
func TestLivePolicies(t *testing.T) {
	of := func(name, spec string) decoding {
		return decoding{body: `{"items":[{"metadata":{"name":"` + name + `"},"spec":{` + spec + `}}]}`}
	}
	p := &Policies{
		cached:  of("old", `"vpc":"a","subnet":"s","podSelector":{"matchLabels":{"app":"web"}},"serviceAccountSelector":{"matchLabels":{"team":"shop"}},"securityGroups":["g-1","g-2"]`),
		live:    of("new", `"securityGroups":["g-3"]`),
		foreign: none(t),
	}
	got, err := p.Of(t.Context(), "shop", true)
	if want := []nicrequest.Policy{{Kind: nicrequest.KindNICPolicy, Name: "new", SecurityGroups: []string{"g-3"}}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Of() = %+v, %v, want %+v", got, err, want)
	}
}

// Pods of a namespace with too many policies are rejected, without reading all of them from the API server.
func TestTooManyPolicies(t *testing.T) {
	for name, tt := range map[string]struct {
		cached, live int
		asks         int
		refused      string
	}{
		"few":               {1, 2, 1, ""},
		"maximum":           {most, most, 1, ""},
		"above the maximum": {most + 1, most + 1, 0, "namespace shop has 101 NICPolicies, expected 100 at most: delete some"},
		"above the maximum, not in the cache yet": {most, most + 1, 1, "namespace shop has 101 NICPolicies"},
	} {
		cached, live := 0, 0
		p := &Policies{cached: having{policies: tt.cached, asked: &cached}, live: having{policies: tt.live, asked: &live}, foreign: none(t)}
		all, err := p.Of(t.Context(), "shop", true)
		switch {
		case live != tt.asks:
			t.Errorf("%s: %d calls to the API server, want %d", name, live, tt.asks)
		case tt.refused == "" && (err != nil || len(all) != tt.live):
			t.Errorf("%s: Of() = %d policies, %v, want %d", name, len(all), err, tt.live)
		case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)):
			t.Errorf("%s: Of() error = %v, want it to contain %q", name, err, tt.refused)
		}
	}
}

// answering returns a foreign whose lists fail with err, or are empty if err is nil.
func answering(err error) foreign {
	kinds := map[schema.GroupVersionResource]string{securityGroupPolicies: "SecurityGroupPolicyList"}
	api := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	if err != nil {
		api.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
	}
	return foreign{&watched.Optional{API: api, Resource: securityGroupPolicies, Kind: string(nicrequest.KindSecurityGroupPolicy), Log: slog.New(slog.DiscardHandler), Changed: func() {}}}
}

// none is a cluster without the kind.
func none(t *testing.T) foreign {
	t.Helper()
	f := answering(nil)
	f.Settle(nil)
	return f
}

// As long as the SecurityGroupPolicies are unknown, reading them is an error, so that no pod is admitted without its policy. Once
// they are known, the cached ones are used if the API server is unavailable.
func TestUnreadableSecurityGroupPolicies(t *testing.T) {
	gone := apierrors.NewNotFound(securityGroupPolicies.GroupResource(), "")
	forbidden := apierrors.NewForbidden(securityGroupPolicies.GroupResource(), "", errors.New("no right"))
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})

	f := answering(forbidden)
	for _, live := range []bool{false, true} {
		if _, err := f.of(t.Context(), "shop", live); !errors.Is(err, watched.ErrUnknown) {
			t.Errorf("of(live = %v) before the first list: error = %v, want %v", live, err, watched.ErrUnknown)
		}
	}
	if _, err := f.namespaces(); !errors.Is(err, watched.ErrUnknown) {
		t.Errorf("namespaces() before the first list: error = %v, want %v", err, watched.ErrUnknown)
	}
	f.Settle(store)
	if all, err := f.of(t.Context(), "shop", false); len(all) > 0 || err != nil {
		t.Errorf("of() from the cache = %v, %v, want none", all, err)
	}
	if _, err := f.of(t.Context(), "shop", true); !apierrors.IsForbidden(err) {
		t.Errorf("of() from the API server: error = %v, want Forbidden", err)
	}

	f = answering(gone)
	f.Settle(store) // the CRD was just removed
	if all, err := f.of(t.Context(), "shop", true); len(all) > 0 || err != nil {
		t.Errorf("of() of a removed kind = %v, %v, want none", all, err)
	}
	f.Settle(nil)
	if names, err := f.namespaces(); len(names) > 0 || err != nil {
		t.Errorf("namespaces() without the kind = %v, %v, want none", names, err)
	}
}

// The kind SecurityGroupPolicy is not Berth's and has no limits: too many or too large objects cause pods of their namespace, and
// only these, to be rejected, and take little memory.
func TestTooManySecurityGroupPolicies(t *testing.T) {
	policies := func(n int, value string) (out []*unstructured.Unstructured) {
		for i := range n {
			out = append(out, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "vpcresources.k8s.aws/v1beta1", "kind": "SecurityGroupPolicy",
				"metadata": map[string]any{"namespace": "shop", "name": fmt.Sprintf("p%d", i), "annotations": map[string]any{"large": strings.Repeat("x", 1<<20)}},
				"spec": map[string]any{
					"podSelector":    map[string]any{"matchLabels": map[string]any{"app": value}},
					"securityGroups": map[string]any{"groupIds": []any{"sg-1"}},
				},
			}})
		}
		return out
	}
	for name, tt := range map[string]struct {
		cached, live []*unstructured.Unstructured
		want         int
		refused      string
	}{
		"maximum":           {policies(most, "web"), policies(most, "web"), most, ""},
		"above the maximum": {policies(most+1, "web"), nil, 0, "namespace shop has more than 100 SecurityGroupPolicies"},
		"above the maximum, not in the cache yet": {policies(most, "web"), policies(most+1, "web"), 0, "namespace shop has more than 100 SecurityGroupPolicies"},
		"too large":                       {policies(1, strings.Repeat("x", longest)), nil, 0, "SecurityGroupPolicy shop/p0 has more than 16384 bytes"},
		"too large, not in the cache yet": {nil, policies(1, strings.Repeat("x", longest)), 0, "SecurityGroupPolicy shop/p0 has more than 16384 bytes"},
	} {
		store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		for _, o := range tt.cached {
			kept, err := trimForeign(o)
			if err != nil || store.Add(kept) != nil {
				t.Fatal(err)
			}
			if text := fmt.Sprint(kept); len(text) > 1000 {
				t.Errorf("%s: trimForeign() keeps %d bytes, want at most 1000", name, len(text))
			}
		}
		var live []runtime.Object
		for _, o := range tt.live {
			live = append(live, o)
		}
		f := answering(nil)
		f.API = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{securityGroupPolicies: "SecurityGroupPolicyList"}, live...)
		f.Settle(store)
		all, err := f.of(t.Context(), "shop", len(tt.live) > 0)
		if tt.refused == "" && (err != nil || len(all) != tt.want) || tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)) {
			t.Errorf("%s: of() = %d policies, %v, want %d and error %q", name, len(all), err, tt.want, tt.refused)
		}
		if all, err := f.of(t.Context(), "other", len(tt.live) > 0); err != nil || len(all) != 0 {
			t.Errorf("%s: of() for another namespace = %d policies, %v, want none", name, len(all), err)
		}
	}
}

func TestVerdictOf(t *testing.T) {
	vpcs := []v1alpha1.VPC{{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"shop"}}}}}
	bad := &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelRequirement{{Key: "a", Operator: "Near"}}}
	for _, tt := range []struct {
		name, namespace string
		spec            v1alpha1.NICPolicySpec
		unasked         error
		reason, message string
		status          metav1.ConditionStatus
	}{
		{"in force", "shop", v1alpha1.NICPolicySpec{VPC: "v"}, nil, ReasonReady, "in VPC v", metav1.ConditionTrue},
		{"the only VPC", "shop", v1alpha1.NICPolicySpec{}, nil, ReasonReady, "in VPC v", metav1.ConditionTrue},
		{"webhook not called yet", "shop", v1alpha1.NICPolicySpec{VPC: "v"}, errors.New("not yet"), ReasonStarting, "not yet", metav1.ConditionUnknown},
		{"missing VPC", "shop", v1alpha1.NICPolicySpec{VPC: "w"}, errors.New("not yet"), ReasonVPCNotFound, "there is no VPC w", metav1.ConditionFalse},
		{"VPC not for the namespace", "bank", v1alpha1.NICPolicySpec{VPC: "v"}, nil, ReasonNotPossible, "is not for namespace bank", metav1.ConditionFalse},
		{"operator's namespace", "own", v1alpha1.NICPolicySpec{VPC: "v"}, nil, ReasonOperatorNamespace, "in another", metav1.ConditionFalse},
		{"more groups than EC2 allows", "shop", v1alpha1.NICPolicySpec{VPC: "v", SecurityGroups: []string{"1", "2", "3", "4", "5", "6"}}, errors.New("not yet"), ReasonNotPossible, "has 6 groups", metav1.ConditionFalse},
		{"group not for the namespace", "shop", v1alpha1.NICPolicySpec{VPC: "v", SecurityGroups: []string{"1"}}, nil, ReasonNotPossible, "spec.securityGroups[0]: 1 is not for namespace shop in VPC v", metav1.ConditionFalse},
		{"invalid service account selector", "shop", v1alpha1.NICPolicySpec{VPC: "v", ServiceAccountSelector: bad}, nil, ReasonNotPossible, "NICPolicy/p: spec.serviceAccountSelector: ", metav1.ConditionFalse},
		{"invalid pod selector", "shop", v1alpha1.NICPolicySpec{VPC: "v", PodSelector: bad}, nil, ReasonNotPossible, "NICPolicy/p: spec.podSelector: ", metav1.ConditionFalse},
	} {
		o := &v1alpha1.NICPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: tt.namespace, Name: "p"}, Spec: tt.spec}
		got := verdictOf(o, nicrequest.Namespace{Name: tt.namespace}, vpcs, "own", tt.unasked)
		if got.reason != tt.reason || !strings.Contains(got.message, tt.message) || got.status() != tt.status {
			t.Errorf("%s: verdictOf() = %+v, %s, want reason %s, message containing %q, %s", tt.name, got, got.status(), tt.reason, tt.message, tt.status)
		}
	}
}

// A SecurityGroupPolicy has the same meaning as in the Amazon VPC CNI; an invalid one selects nothing there either.
func TestFromForeign(t *testing.T) {
	of := func(spec string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte("metadata: {name: a, namespace: shop, creationTimestamp: '2026-11-27T07:00:00Z'}\nspec: "+spec), &o.Object); err != nil {
			t.Fatal(err)
		}
		return o
	}
	db, data := labels.Set{"app": "db"}, labels.Set{"tier": "data"}
	for _, tt := range []struct {
		spec     string
		ok       bool
		selects  bool // pod db with an account of tier data
		elsewise bool // pod db with another account
	}{
		{"{podSelector: {matchLabels: {app: db}}, securityGroups: {groupIds: [sg-1]}}", true, true, true},
		{"{podSelector: {}, securityGroups: {groupIds: [sg-1]}}", true, true, true},
		{"{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [db]}]}, securityGroups: {groupIds: [sg-1]}}", true, false, false},
		{"{serviceAccountSelector: {matchLabels: {tier: data}}, securityGroups: {groupIds: [sg-1]}}", true, true, false},
		{"{podSelector: {matchLabels: {app: db}}, serviceAccountSelector: {matchLabels: {tier: data}}, securityGroups: {groupIds: [sg-1]}}", true, true, false},
		{"{securityGroups: {groupIds: [sg-1]}}", false, false, false},
		{"{podSelector: {}}", false, false, false},
		{"{podSelector: {}, securityGroups: {groupIds: []}}", false, false, false},
		{"{podSelector: {matchExpressions: [{key: app, operator: Near}]}, securityGroups: {groupIds: [sg-1]}}", false, false, false},
		{"{podSelector: {}, serviceAccountSelector: {matchExpressions: [{key: tier, operator: In}]}, securityGroups: {groupIds: [sg-1]}}", false, false, false},
		{"{podSelector: [], securityGroups: {groupIds: [sg-1]}}", false, false, false},
		{"{podSelector: {}, securityGroups: {groupIds: sg-1}}", false, false, false},
	} {
		p, ok := fromForeign(of(tt.spec))
		if ok != tt.ok {
			t.Errorf("fromForeign(%s) = %+v, %v, want %v", tt.spec, p, ok, tt.ok)
		}
		if !ok {
			continue
		}
		if p.String() != "SecurityGroupPolicy/a" || p.Created.Year() != 2026 || len(p.SecurityGroups) != 1 {
			t.Errorf("fromForeign(%s) = %+v, want the name, creation time and one group", tt.spec, p)
		}
		for account, want := range map[string]bool{"data": tt.selects, "other": tt.elsewise} {
			with := data
			if account == "other" {
				with = nil
			}
			if got := len(nicrequest.Choose([]nicrequest.Policy{p}, db, with).Counts) > 0; got != want {
				t.Errorf("policy %s selects a pod with account %s: %v, want %v", tt.spec, account, got, want)
			}
		}
	}
}
