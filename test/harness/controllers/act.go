package controllers

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/test/harness"
)

// Named is an object with a name and nothing else.
func Named[T any, P kind[T]](name string) P {
	o := P(new(T))
	o.SetName(name)
	return o
}

// Create makes an object as a person does.
func Create[O client.Object](t *testing.T, o O) O {
	t.Helper()
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), o))
	return o
}

// Get reads an object.
func Get[T any, P kind[T]](t *testing.T, key client.ObjectKey) P {
	t.Helper()
	o := P(new(T))
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), key, o))
	return o
}

// Edit reads an object, and writes what edit changes of it.
func Edit[T any, P kind[T]](t *testing.T, key client.ObjectKey, edit func(P)) {
	t.Helper()
	o := Get[T, P](t, key)
	before := o.DeepCopyObject().(client.Object)
	edit(o)
	harness.OK(t, harness.KubeClient(t).Patch(t.Context(), o, client.MergeFrom(before)))
}

// kind is a pointer to a T that is an object.
type kind[T any] interface {
	*T
	client.Object
}

// Merge changes an object by a JSON merge patch, as a person does. O itself stays as it is.
func Merge(t *testing.T, o client.Object, format string, args ...any) {
	t.Helper()
	o = o.DeepCopyObject().(client.Object)
	harness.OK(t, harness.KubeClient(t).Patch(t.Context(), o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...)), client.FieldOwner("a-person")))
}

// MergeStatus is Merge for the status, as c.
func MergeStatus(t *testing.T, c client.Client, o client.Object, format string, args ...any) {
	t.Helper()
	o = o.DeepCopyObject().(client.Object)
	harness.OK(t, c.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))))
}

// DropFinalizers removes the finalizers of an object.
func DropFinalizers(t *testing.T, o client.Object) {
	t.Helper()
	Merge(t, o, `{"metadata":{"finalizers":null}}`)
}

// Bind binds a pod to a node, as the scheduler does.
func Bind(t *testing.T, pod client.ObjectKey, node string) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	b := &corev1.Binding{ObjectMeta: p.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	harness.OK(t, harness.KubeClient(t).SubResource("binding").Create(t.Context(), p, b))
}

// DeletePod removes a pod without a grace period.
func DeletePod(t *testing.T, pod client.ObjectKey) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	harness.OK(t, harness.KubeClient(t).Delete(t.Context(), p, client.GracePeriodSeconds(0)))
}

// Daemons are clients with the access of nodes' daemons, by node.
type Daemons map[string]client.Client

// Of is the client of a node's daemon.
func (d Daemons) Of(t *testing.T, node string) client.Client {
	t.Helper()
	if d[node] == nil {
		token, err := harness.ControlPlane.NodeToken(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: "berthd"}, node)
		harness.OK(t, err)
		d[node] = harness.KubeClientFor(t, harness.ControlPlane.ConfigWithToken(token))
	}
	return d[node]
}
