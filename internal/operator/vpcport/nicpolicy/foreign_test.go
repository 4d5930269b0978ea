package nicpolicy

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
