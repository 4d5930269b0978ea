package watched

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berthnet/berth/internal/clock"
)

// A kind is unknown until the API server answers, and may be installed and removed while the operator runs. Objects
// that were read remain while the API server refuses the operator.
func TestOptionalKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resource := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
		api := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{resource: "WidgetList"},
			&unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"namespace": "a", "name": "b"}}})
		var answer atomic.Pointer[error]
		api.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			if err := answer.Load(); err != nil {
				return true, nil, *err
			}
			return false, nil, nil
		})
		set := func(err error) { answer.Store(&err) }
		var changes atomic.Int32
		var found atomic.Pointer[[]string] // versions in which discovery has the kind
		found.Store(new([]string))
		o := &Optional{API: api, Discovery: discovered{&found}, Resource: resource, Kind: "Widget", Changed: func() { changes.Add(1) }, Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler)}
		after := func(d time.Duration, objects int, unknown string) {
			t.Helper()
			time.Sleep(d) //nolint:forbidigo // virtual time
			synctest.Wait()
			store, err := o.Read()
			n := -1
			if store != nil {
				n = len(store.List())
			}
			if n != objects || unknown == "" && err != nil || unknown != "" && (!errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), unknown)) {
				t.Fatalf("Read() = %d objects, error %v; want %d objects, error containing %q", n, err, objects, unknown)
			}
		}
		read := func(objects int, unknown string) { t.Helper(); after(3*lookEvery, objects, unknown) }
		set(apierrors.NewForbidden(resource.GroupResource(), "", errors.New("no right")))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = o.Run(ctx) })
		read(-1, "no right")
		set(apierrors.NewNotFound(resource.GroupResource(), ""))
		found.Store(&[]string{"v2"}) // which is as good as none: nothing was read that could be lost
		read(-1, "")
		found.Store(new([]string))
		answer.Store(nil)
		read(1, "")
		set(apierrors.NewForbidden(resource.GroupResource(), "", errors.New("no right")))
		read(1, "")
		set(apierrors.NewNotFound(resource.GroupResource(), ""))
		after(lookEvery, 1, "") // one answer is no proof
		answer.Store(nil)
		after(lookEvery, 1, "")
		set(apierrors.NewNotFound(resource.GroupResource(), ""))
		found.Store(&[]string{"v2"})
		read(1, "") // only the version is gone
		found.Store(new([]string))
		read(-1, "")
		if n := changes.Load(); n != 4 {
			t.Errorf("Changed was called %d times, want 4: once when the kind was found missing, installed and removed, and once for its object", n)
		}
		stop()
		running.Wait()
	})
}

// discovered is what discovery finds: the group with a kind of its own, and widgets in some versions.
type discovered struct{ versions *atomic.Pointer[[]string] }

func (d discovered) ServerGroups() (*metav1.APIGroupList, error) {
	g := metav1.APIGroup{Name: "example.com", Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "example.com/v0"}}}
	for _, v := range *d.versions.Load() {
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: "example.com/" + v})
	}
	return &metav1.APIGroupList{Groups: []metav1.APIGroup{{Name: "apps"}, g}}, nil
}

func (d discovered) ServerResourcesForGroupVersion(version string) (*metav1.APIResourceList, error) {
	name := "widgets"
	if version == "example.com/v0" {
		name = "gadgets"
	}
	return &metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: name}}}, nil
}
