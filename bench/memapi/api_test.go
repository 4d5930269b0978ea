package memapi

import (
	"fmt"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newAPI(t *testing.T) *API {
	t.Helper()
	api, err := New(Kind{Object: &v1alpha1.PodNIC{}, Status: true})
	ok(t, err)
	return api
}

func newNIC(name string) *v1alpha1.PodNIC {
	return &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: v1alpha1.PodNICSpec{VPC: "tenant-a"}}
}

func mergePatch(body string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(body)) }

// A merge patch changes only what it names, null removes a field, and a patch of the status changes only the status.
func TestMergePatches(t *testing.T) {
	api, o := newAPI(t), newNIC("web")
	o.Labels = map[string]string{"app": "web", "old": "yes"}
	o.Status = v1alpha1.PodNICStatus{PortID: "port-1", Pod: &v1alpha1.PodReference{Name: "web", UID: "uid-1"}}
	ok(t, api.Create(t.Context(), o))
	ok(t, api.Patch(t.Context(), o, mergePatch(`{"metadata":{"labels":{"old":null,"new":"yes"}},"spec":{"vpc":"tenant-b"},"status":{"portID":"port-2"}}`)))
	if diff := cmp.Diff(map[string]string{"app": "web", "new": "yes"}, o.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if o.Spec.VPC != "tenant-b" || o.Generation != 2 || o.Status.PortID != "port-1" {
		t.Errorf("VPC %s, generation %d, port %s; want tenant-b, 2, and the status as it was", o.Spec.VPC, o.Generation, o.Status.PortID)
	}
	before := o.DeepCopy()
	ok(t, api.Status().Patch(t.Context(), o, mergePatch(`{"spec":{"vpc":"tenant-c"},"status":{"portID":null,"pod":{"uid":"uid-2"},"addresses":[{"cidr":"10.0.0.1/24"}]}}`)))
	want := v1alpha1.PodNICStatus{Pod: &v1alpha1.PodReference{Name: "web", UID: "uid-2"}, Addresses: o.Status.Addresses}
	if diff := cmp.Diff(want, o.Status); diff != "" || len(o.Status.Addresses) != 1 || o.Spec.VPC != "tenant-b" || o.Generation != 2 {
		t.Errorf("spec %+v, generation %d, status (-want +got):\n%s", o.Spec, o.Generation, diff)
	}
	if before.Status.Pod.UID != "uid-1" {
		t.Error("the patch modified an earlier version")
	}
}

// A change for another version or another object of that name is a conflict, and one that changes nothing makes no new version.
func TestConflicts(t *testing.T) {
	api, o := newAPI(t), newNIC("web")
	ok(t, api.Create(t.Context(), o))
	stale := o.DeepCopy()
	o.Spec.VPC = "tenant-b"
	ok(t, api.Update(t.Context(), o))
	version := o.ResourceVersion
	ok(t, api.Update(t.Context(), o))
	if version == stale.ResourceVersion || o.ResourceVersion != version {
		t.Errorf("resource versions %s, %s, %s: want a new one for the change only", stale.ResourceVersion, version, o.ResourceVersion)
	}
	other := o.DeepCopy()
	other.UID = "other"
	for name, err := range map[string]error{
		"update":      api.Update(t.Context(), stale),
		"another UID": api.Update(t.Context(), other),
		"patch":       api.Patch(t.Context(), stale, mergePatch(fmt.Sprintf(`{"metadata":{"resourceVersion":%q}}`, stale.ResourceVersion))),
		"deletion":    api.Delete(t.Context(), o, client.Preconditions{UID: &other.UID}),
	} {
		if !apierrors.IsConflict(err) {
			t.Errorf("%s: error = %v, want a conflict", name, err)
		}
	}
	if err := api.Create(t.Context(), newNIC("web")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second creation: error = %v, want that it exists", err)
	}
}

// A deleted object disappears with its last finalizer.
func TestFinalizers(t *testing.T) {
	api, o := newAPI(t), newNIC("web")
	o.Finalizers = []string{v1alpha1.FinalizerPort}
	ok(t, api.Create(t.Context(), o))
	ok(t, api.Delete(t.Context(), o))
	ok(t, api.Get(t.Context(), client.ObjectKeyFromObject(o), o))
	if o.DeletionTimestamp == nil {
		t.Error("the deleted object has no deletion timestamp")
	}
	ok(t, api.Patch(t.Context(), o, mergePatch(`{"metadata":{"finalizers":null}}`)))
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
		t.Errorf("Get() error = %v, want not found", err)
	}
}

// A watch delivers all changes of its namespace in order to a reader that begins late.
func TestSlowWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		api := newAPI(t)
		w, err := api.Watch(t.Context(), &v1alpha1.PodNICList{}, client.InNamespace("shop"))
		ok(t, err)
		for i := range n {
			o, other := newNIC(fmt.Sprint(i)), newNIC(fmt.Sprint(i))
			other.Namespace = "other"
			ok(t, api.Create(t.Context(), o))
			ok(t, api.Create(t.Context(), other))
			ok(t, api.Delete(t.Context(), o))
		}
		for i := range 2 * n {
			e := <-w.ResultChan()
			o, want := e.Object.(*v1alpha1.PodNIC), []watch.EventType{watch.Added, watch.Deleted}[i%2]
			if e.Type != want || o.Namespace != "shop" || o.Name != fmt.Sprint(i/2) {
				t.Fatalf("event %d: %s %s/%s, want %s shop/%d", i, e.Type, o.Namespace, o.Name, want, i/2)
			}
		}
		w.Stop()
		synctest.Wait()
		if _, open := <-w.ResultChan(); open {
			t.Error("a stopped watch delivers an event")
		}
	})
}

// A copy for a reader shares no memory with the object.
func TestDecodedCopies(t *testing.T) {
	o := newNIC("web")
	o.Labels, o.Status.Pod = map[string]string{"app": "web"}, &v1alpha1.PodReference{Name: "web", UID: "uid-1"}
	o.Status.Addresses = []v1alpha1.PortAddress{{CIDR: "10.0.0.1/24"}}
	got := decoded(o).(*v1alpha1.PodNIC)
	if diff := cmp.Diff(o, got); diff != "" {
		t.Errorf("copy (-want +got):\n%s", diff)
	}
	for i, pair := range [][2]string{{o.Name, got.Name}, {o.Spec.VPC, got.Spec.VPC}, {o.Status.Pod.UID, got.Status.Pod.UID}, {o.Status.Addresses[0].CIDR, got.Status.Addresses[0].CIDR}} {
		if unsafe.StringData(pair[0]) == unsafe.StringData(pair[1]) {
			t.Errorf("string %d is shared", i)
		}
	}
}
