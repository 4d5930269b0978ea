package nicpolicy

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// answering is what lists SecurityGroupPolicies and gets an error; nil: none is there.
func answering(err error) *foreign {
	kinds := map[schema.GroupVersionResource]string{securityGroupPolicies: "SecurityGroupPolicyList"}
	api := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	if err != nil {
		api.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
	}
	return &foreign{api: api, log: slog.New(slog.DiscardHandler), changed: func() {}}
}

// While it is not known which there are the answer is an error, and no pod passes by it; once
// it is known, one that cannot be asked again goes by what there was.
func TestForeignThatCannotBeRead(t *testing.T) {
	gone := apierrors.NewNotFound(securityGroupPolicies.GroupResource(), "")
	forbidden := apierrors.NewForbidden(securityGroupPolicies.GroupResource(), "", errors.New("no right"))
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})

	f := answering(forbidden)
	if _, err := f.look(t.Context()); err == nil {
		t.Error("a list that is forbidden is one of no kind")
	} else {
		f.complain(err)
	}
	for _, live := range []bool{false, true} {
		if _, err := f.of(t.Context(), "shop", live); !errors.Is(err, errUnknown) || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("before it is known, live %v: %v", live, err)
		}
	}
	if _, err := f.namespaces(); !errors.Is(err, errUnknown) {
		t.Errorf("before it is known: %v", err)
	}
	f.settle(store)
	if all, err := f.of(t.Context(), "shop", false); len(all) > 0 || err != nil {
		t.Errorf("in memory: %v, %v", all, err)
	}
	if _, err := f.of(t.Context(), "shop", true); !apierrors.IsForbidden(err) {
		t.Errorf("live: %v", err)
	}

	f = answering(gone)
	if installed, err := f.look(t.Context()); installed || err != nil {
		t.Errorf("a kind that is not there: %v, %v", installed, err)
	}
	f.settle(store) // and was just removed
	if all, err := f.of(t.Context(), "shop", true); len(all) > 0 || err != nil {
		t.Errorf("a kind that was removed: %v, %v", all, err)
	}
	f.settle(nil)
	if names, err := f.namespaces(); len(names) > 0 || err != nil {
		t.Errorf("a kind that is not there: %v, %v", names, err)
	}
}

// Of SecurityGroupPolicies, whose kind is not Berth's, too many and too large ones refuse pods of their namespace, and only
// there, and take little memory.
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
		"the most":                   {policies(most, "web"), policies(most, "web"), most, ""},
		"one more":                   {policies(most+1, "web"), nil, 0, "namespace shop has more than 100 SecurityGroupPolicies"},
		"one more that is so new":    {policies(most, "web"), policies(most+1, "web"), 0, "namespace shop has more than 100 SecurityGroupPolicies"},
		"a large one":                {policies(1, strings.Repeat("x", longest)), nil, 0, "SecurityGroupPolicy shop/p0 has more than 16384 bytes"},
		"a large one that is so new": {nil, policies(1, strings.Repeat("x", longest)), 0, "SecurityGroupPolicy shop/p0 has more than 16384 bytes"},
	} {
		store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		for _, o := range tt.cached {
			kept, err := trimForeign(o)
			if err != nil || store.Add(kept) != nil {
				t.Fatal(err)
			}
			if text := fmt.Sprint(kept); len(text) > 1000 {
				t.Errorf("%s: %d bytes are kept", name, len(text))
			}
		}
		var live []runtime.Object
		for _, o := range tt.live {
			live = append(live, o)
		}
		f := &foreign{known: true, store: store, api: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{securityGroupPolicies: "SecurityGroupPolicyList"}, live...)}
		all, err := f.of(t.Context(), "shop", len(tt.live) > 0)
		if tt.refused == "" && (err != nil || len(all) != tt.want) || tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)) {
			t.Errorf("%s: %d policies, %v; want %d, %q", name, len(all), err, tt.want, tt.refused)
		}
		if all, err := f.of(t.Context(), "other", len(tt.live) > 0); err != nil || len(all) != 0 {
			t.Errorf("%s: another namespace: %d policies, %v", name, len(all), err)
		}
	}
}
