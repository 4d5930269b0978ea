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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }

// The service accounts may do everything here, so that it is the policies that refuse.
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

// policyKinds are those of admission policies and of what they go by.
var policyKinds = []string{"ConfigMap", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}

// applyPoliciesOf applies the policies of a mode, where roles refuse nothing.
func applyPoliciesOf(t *testing.T, mode string) {
	t.Helper()
	applyPoliciesOfRelease(t, deploy.InMode(mode, "test"))
}

// applyPoliciesOfRelease is applyPoliciesOf for any release.
func applyPoliciesOfRelease(t *testing.T, r deploy.Release) {
	t.Helper()
	harness.OK(t, harness.ControlPlane.Apply(t.Context(), fstest.MapFS{"everything.yaml": {Data: []byte(everything)}}))
	objects, err := deploy.Render(r)
	harness.OK(t, err)
	harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), objects.Of(append(policyKinds, "ServiceAccount")...)))
}

// untilRefused waits until policies refuse each of the writes: the API server goes
// by them a moment after they are installed.
func untilRefused(t *testing.T, writes map[string]func() error) {
	t.Helper()
	for what, write := range writes {
		harness.Eventually(t, limit, "policies refuse "+what, func() error { return byPolicy(write()) })
	}
}

// account is a client with a token of a service account of kube-system, bound
// to a pod on a node, or to nothing without one.
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

// change makes a change to an object that is there, as read by the administrator.
func change[O client.Object](t *testing.T, as client.Client, o O, how func(O)) error {
	t.Helper()
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), client.ObjectKeyFromObject(o), o))
	how(o)
	return as.Update(t.Context(), o)
}

// changeStatus is change of an object's status.
func changeStatus[O client.Object](t *testing.T, as client.Client, o O, how func(O)) error {
	t.Helper()
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), client.ObjectKeyFromObject(o), o))
	how(o)
	return as.Status().Update(t.Context(), o)
}

// forbidden checks that a policy refused and said why.
func forbidden(t *testing.T, err error, why string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
		t.Errorf("got %v\nwant it forbidden because %s", err, why)
	}
}

// limit is for what an API server follows a moment later.
const limit = 3 * time.Minute

// byPolicy is nil when a policy refused, and not a role that the API server does
// not know yet.
func byPolicy(err error) error {
	if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
		return errors.Join(errors.New("a write that the policies forbid was not refused by one"), err)
	}
	return nil
}

// bindRoles has the service accounts do what the roles of a mode give them, and
// no more, until the test ends. Policies are applied as well if asked for.
func bindRoles(t *testing.T, mode string, policies bool) {
	t.Helper()
	bindRolesOf(t, render(t, mode), policies)
}

// bindRolesOf is bindRoles for what was rendered of any release.
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

// notBoundMore is nil once an account has lost the rights of everything.
func notBoundMore(t *testing.T, as client.Client) error {
	t.Helper()
	if err := as.List(t.Context(), &corev1.ConfigMapList{}); !apierrors.IsForbidden(err) {
		return fmt.Errorf("listing ConfigMaps: %w", errors.Join(err, errors.New("not refused yet")))
	}
	return nil
}

// applyIn applies a release's objects with a namespace for them, which goes with
// the test; so do the bindings, which are other tests' too.
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
