package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }

// The service accounts have all rights here, so that only policies reject requests.
const everything = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-everything}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects:
  - {kind: ServiceAccount, name: berthd, namespace: kube-system}
  - {kind: ServiceAccount, name: berth-operator, namespace: kube-system}
  - {kind: ServiceAccount, name: another, namespace: kube-system}
`

// policyKinds are the kinds of admission policies and their parameters.
var policyKinds = []string{"ConfigMap", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}

// applyPoliciesOf applies the policies of a mode, with roles that allow everything.
func applyPoliciesOf(t *testing.T, mode string) {
	t.Helper()
	applyPoliciesOfRelease(t, deploy.InMode(mode, "test"))
}

// applyPoliciesOfRelease applies the policies of a release, with roles that allow everything.
func applyPoliciesOfRelease(t *testing.T, r deploy.Release) {
	t.Helper()
	harness.OK(t, harness.ControlPlane.Apply(t.Context(), fstest.MapFS{"everything.yaml": {Data: []byte(everything)}}))
	objects, err := deploy.Render(r)
	harness.OK(t, err)
	harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), objects.Of(append(policyKinds, "ServiceAccount")...)))
}

// untilRefused waits until policies reject each of the writes: the API server applies policies with
// a delay.
func untilRefused(t *testing.T, writes map[string]func() error) {
	t.Helper()
	for what, write := range writes {
		harness.Eventually(t, limit, "policies refuse "+what, func() error { return byPolicy(write()) })
	}
}

// account returns a client with a token of a service account of kube-system. The token is bound to
// a pod on the node, or to nothing if node is empty.
func account(t *testing.T, name, node string) client.Client {
	t.Helper()
	id := types.NamespacedName{Namespace: "kube-system", Name: name}
	var token string
	var err error
	if node == "" {
		token, err = harness.ControlPlane.Token(t.Context(), id, nil)
	} else {
		token, err = harness.ControlPlane.NodeToken(t.Context(), id, node)
	}
	harness.OK(t, err)
	return harness.KubeClientFor(t, harness.ControlPlane.ConfigWithToken(token))
}

// apply applies an object as the operator does.
func apply(t *testing.T, operator client.Client, o *unstructured.Unstructured) error {
	t.Helper()
	return operator.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner(v1alpha1.OwnerOperator), client.ForceOwnership)
}

// change updates an existing object, as read by the administrator.
func change[O client.Object](t *testing.T, as client.Client, o O, how func(O)) error {
	t.Helper()
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), client.ObjectKeyFromObject(o), o))
	how(o)
	return as.Update(t.Context(), o)
}

// changeStatus updates the status of an existing object.
func changeStatus[O client.Object](t *testing.T, as client.Client, o O, how func(O)) error {
	t.Helper()
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), client.ObjectKeyFromObject(o), o))
	how(o)
	return as.Status().Update(t.Context(), o)
}

// forbidden checks that a policy rejected a request with the given message.
func forbidden(t *testing.T, err error, why string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
		t.Errorf("got %v\nwant it forbidden because %s", err, why)
	}
}

// limit bounds the wait for changes that the API server applies with a delay.
const limit = 3 * time.Minute

// byPolicy returns nil if a policy rejected the request. A rejection by RBAC, whose roles may not
// be in effect yet, is an error.
func byPolicy(err error) error {
	if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
		return errors.Join(errors.New("a write that the policies forbid was not refused by one"), err)
	}
	return nil
}

// bindRoles gives the service accounts only the rights of a mode's roles until the test ends. It
// also applies the policies if asked to.
func bindRoles(t *testing.T, mode string, policies bool) {
	t.Helper()
	bindRolesOf(t, render(t, mode), policies)
}

// bindRolesOf does the same for rendered objects.
func bindRolesOf(t *testing.T, objects deploy.Objects, policies bool) {
	t.Helper()
	unbind := func(ctx context.Context, names ...string) {
		for _, name := range names {
			binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
			harness.OK(t, client.IgnoreNotFound(harness.KubeClient(t).Delete(ctx, binding)))
		}
	}
	unbind(t.Context(), "test-everything")
	objects = objects.Access()
	if !policies {
		objects = objects.Except(policyKinds...)
	}
	harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), objects))
	t.Cleanup(func() {
		for _, o := range objects.Of("ClusterRoleBinding") {
			unbind(context.Background(), o.GetName())
		}
	})
}

// notBoundMore returns nil once an account has lost its unlimited rights.
func notBoundMore(t *testing.T, as client.Client) error {
	t.Helper()
	if err := as.List(t.Context(), &corev1.ConfigMapList{}); !apierrors.IsForbidden(err) {
		return fmt.Errorf("listing ConfigMaps: %w", errors.Join(err, errors.New("not refused yet")))
	}
	return nil
}

// applyIn applies objects of a release in a new namespace. It deletes the namespace and the
// bindings, which other tests share, when the test ends.
func applyIn(t *testing.T, namespace string, objects deploy.Objects) error {
	t.Helper()
	admin := harness.KubeClient(t)
	if err := admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); !apierrors.IsAlreadyExists(err) {
		harness.OK(t, err)
	}
	t.Cleanup(func() {
		for _, o := range objects.Of("ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding") {
			harness.OK(t, client.IgnoreNotFound(admin.Delete(context.Background(), o)))
		}
	})
	return harness.ControlPlane.ApplyObjects(t.Context(), objects)
}
