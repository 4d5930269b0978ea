package objects

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/apifake"
)

const finalizer = "berth.dev/test"

var vpcKind = v1alpha1.GroupVersion.WithKind("VPC")

// newClient is a client of an API server of its own with the VPC blue, and that as it was read.
func newClient(t *testing.T) (client.Client, *v1alpha1.VPC) {
	t.Helper()
	server := apifake.New(apifake.Kind{GroupVersionKind: vpcKind, Resource: "vpcs", Cluster: true, Status: true})
	transport := &apifake.Transport{}
	_, err := transport.Kubeconfig(t.TempDir(), "server", server, func(ctx context.Context, call func(context.Context) error) error { return call(ctx) })
	harness.OK(t, err)
	scheme := runtime.NewScheme()
	harness.OK(t, v1alpha1.AddToScheme(scheme))
	c, err := client.New(&rest.Config{Host: "http://server", Transport: transport}, client.Options{Scheme: scheme})
	harness.OK(t, err)
	harness.OK(t, c.Create(t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}))
	return c, read(t, c)
}

// read is the VPC blue; nil: it is gone.
func read(t *testing.T, c client.Client) *v1alpha1.VPC {
	t.Helper()
	v, err := Get[v1alpha1.VPC](t.Context(), c, client.ObjectKey{Name: "blue"})
	harness.OK(t, err)
	return v
}

// touch changes the VPC blue as somebody else does.
func touch(t *testing.T, c client.Client) {
	t.Helper()
	v := read(t, c)
	before := v.DeepCopy()
	v.Spec.Network += "x"
	harness.OK(t, c.Patch(t.Context(), v, client.MergeFrom(before)))
}

// replace deletes the VPC blue, and makes another of its name.
func replace(t *testing.T, c client.Client) {
	t.Helper()
	harness.OK(t, c.Delete(t.Context(), read(t, c)))
	harness.OK(t, c.Create(t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}))
}

func remove(t *testing.T, c client.Client) {
	t.Helper()
	harness.OK(t, c.Delete(t.Context(), read(t, c)))
}

func TestGetAndList(t *testing.T) {
	c, _ := newClient(t)
	if none, err := Get[v1alpha1.VPC](t.Context(), c, client.ObjectKey{Name: "green"}); none != nil || err != nil {
		t.Errorf("an object that does not exist: %v, %v", none, err)
	}
	if list, err := List[v1alpha1.VPCList](t.Context(), c); err != nil || len(list.Items) != 1 {
		t.Errorf("got %v, %v; want one VPC", list, err)
	}
	if _, err := Get[v1alpha1.PodNIC](t.Context(), c, client.ObjectKey{Namespace: "shop", Name: "a"}); err == nil || err.Error()[:21] != "read PodNIC shop/a: n" {
		t.Errorf("a kind that is not served: %v", err)
	}
}

// Each write takes place on the object that was read, is refused with a conflict, or is not
// needed any more.
func TestWrites(t *testing.T) {
	writes := map[string]func(*testing.T, client.Client, *v1alpha1.VPC) error{
		"Patch": func(t *testing.T, c client.Client, v *v1alpha1.VPC) error {
			after := v.DeepCopy()
			after.Spec.Project = "p"
			return Patch(t.Context(), c, v, after)
		},
		"AddFinalizer": func(t *testing.T, c client.Client, v *v1alpha1.VPC) error {
			_, err := AddFinalizer(t.Context(), c, v, finalizer)
			return err
		},
		"Delete":          func(t *testing.T, c client.Client, v *v1alpha1.VPC) error { return Delete(t.Context(), c, v) },
		"DeleteUnchanged": func(t *testing.T, c client.Client, v *v1alpha1.VPC) error { return DeleteUnchanged(t.Context(), c, v) },
		"PatchStatus": func(t *testing.T, c client.Client, v *v1alpha1.VPC) error {
			after := v.DeepCopy()
			after.Status.Conditions = []metav1.Condition{{Type: "Ready"}}
			return PatchStatus(t.Context(), c, after, IfUnchanged(v))
		},
		"ApplyStatus": func(t *testing.T, c client.Client, v *v1alpha1.VPC) error {
			version, err := ApplyStatus(t.Context(), c, v, vpcKind, v1alpha1.OwnerOperator, map[string]any{"conditions": []any{map[string]any{"type": "Ready"}}})
			if now := read(t, c); err == nil && now != nil && version != now.ResourceVersion {
				t.Errorf("version %q, want %q", version, now.ResourceVersion)
			}
			return err
		},
	}
	const none, conflict, notFound = "no error", "a conflict", "NotFound"
	for name, want := range map[string]struct{ unchanged, touched, replaced, gone string }{
		"Patch":           {none, conflict, conflict, notFound},
		"AddFinalizer":    {none, conflict, conflict, notFound},
		"Delete":          {none, none, none, none},
		"DeleteUnchanged": {none, conflict, conflict, none},
		"PatchStatus":     {none, conflict, conflict, none},
		"ApplyStatus":     {none, conflict, conflict, none},
	} {
		t.Run(name, func(t *testing.T) {
			for _, tt := range []struct {
				meanwhile func(*testing.T, client.Client)
				want      string
			}{{func(*testing.T, client.Client) {}, want.unchanged}, {touch, want.touched}, {replace, want.replaced}, {remove, want.gone}} {
				c, v := newClient(t)
				tt.meanwhile(t, c)
				before := read(t, c)
				kept := v.DeepCopy()
				got, err := none, writes[name](t, c, v)
				switch {
				case apierrors.IsConflict(err):
					got = conflict
				case apierrors.IsNotFound(err):
					got = notFound
				case err != nil:
					t.Errorf("got %v", err)
				}
				if got != tt.want {
					t.Errorf("got %s (%v), want %s", got, err, tt.want)
				}
				after := read(t, c)
				changed := before != nil && (after == nil || after.ResourceVersion != before.ResourceVersion)
				isOther := before != nil && before.UID != kept.UID
				if wrote := err == nil && before != nil && !isOther; changed != wrote {
					t.Errorf("%s: changed %t, want %t", got, changed, wrote)
				}
				if v.ResourceVersion != kept.ResourceVersion || len(v.Finalizers) != 0 {
					t.Error("the object that was read was changed")
				}
			}
		})
	}
}

func TestFinalizers(t *testing.T) {
	c, v := newClient(t)
	for _, want := range []bool{true, false} {
		if added, err := AddFinalizer(t.Context(), c, v, finalizer); err != nil || added != want {
			t.Errorf("added %t, %v; want %t", added, err, want)
		}
		v = read(t, c)
	}
	stale := v.DeepCopy()
	touch(t, c)
	if removed, err := RemoveFinalizer(t.Context(), c, stale, finalizer); removed || !apierrors.IsConflict(err) {
		t.Errorf("of an object that changed: removed %t, %v", removed, err)
	}
	v = read(t, c)
	if removed, err := RemoveFinalizer(t.Context(), c, v, finalizer); err != nil || !removed || len(read(t, c).Finalizers) != 0 {
		t.Errorf("removed %t, %v; finalizers %v", removed, err, read(t, c).Finalizers)
	}
	remove(t, c)
	if removed, err := RemoveFinalizer(t.Context(), c, v, finalizer); err != nil || !removed {
		t.Errorf("of an object that is gone: removed %t, %v", removed, err)
	}
	if removed, err := RemoveFinalizer(t.Context(), c, &v1alpha1.VPC{}, finalizer); err != nil || removed {
		t.Errorf("of an object without it: removed %t, %v", removed, err)
	}
}
