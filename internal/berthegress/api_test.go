package berthegress

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }

const (
	space    = "gateways"
	patience = 5 * time.Minute
)

// account makes an Egress with the RBAC objects that the operator would create, and returns a client with its gateways'
// credentials.
func account(t *testing.T, admin client.Client, e *v1alpha1.Egress) *kubeapi.Client {
	t.Helper()
	harness.OK(t, admin.Create(t.Context(), e))
	objects, problem := gatewayplan.Objects(e, gatewayplan.Settings{Image: "berth-egress", Port: 5555})
	if problem != nil {
		t.Fatal(problem)
	}
	for _, kind := range gatewayplan.Kinds[:3] {
		harness.OK(t, client.IgnoreAlreadyExists(admin.Create(t.Context(), objects[kind])))
	}
	token, err := harness.ControlPlane.Token(t.Context(), types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, nil)
	harness.OK(t, err)
	api, err := kubeapi.New(harness.ControlPlane.ConfigWithToken(token))
	harness.OK(t, err)
	return api.In(e.Namespace)
}

func newEgress(name string) *v1alpha1.Egress {
	return &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name}, Spec: v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/24"}}}
}

func newSlice(of, name string, clients ...v1alpha1.ServedClient) *v1alpha1.EgressClientSlice {
	return &v1alpha1.EgressClientSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name, Labels: map[string]string{v1alpha1.LabelEgress: of}}, Clients: clients,
	}
}

// A gateway with its RBAC rights follows its own Egress and clients, even after an outage of the API server.
func TestGatewayFollowsItsEgress(t *testing.T) {
	harness.KubeClean(t)
	admin := harness.KubeClient(t)
	harness.OK(t, client.IgnoreAlreadyExists(admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}})))
	own := newEgress("nat")
	api := account(t, admin, own)
	account(t, admin, newEgress("other"))
	harness.OK(t, admin.Create(t.Context(), newSlice("other", "other-1", v1alpha1.ServedClient{UID: "x", Addresses: []string{"10.1.0.66"}})))
	slice := newSlice("nat", "nat-1", v1alpha1.ServedClient{UID: "a", Addresses: []string{"10.1.0.1"}})
	harness.OK(t, admin.Create(t.Context(), slice))

	k := &fakeKernel{}
	a, _ := newTestAgent(t, k)
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() { a.follow(ctx, api) })
	working.Go(func() { a.reconcile(ctx) })
	defer working.Wait()
	defer cancel()
	eventually := func(what string, clients, destinations int) {
		t.Helper()
		harness.Eventually(t, patience, what, func() error {
			if s, _, _ := k.last(); len(s.Clients) != clients || len(s.Destinations) != destinations {
				return errors.New("not applied yet")
			}
			return nil
		})
	}
	eventually("the client", 1, 1)
	if _, err := a.ready(); err != nil {
		t.Error(err)
	}
	harness.OK(t, admin.Create(t.Context(), newSlice("nat", "nat-2", v1alpha1.ServedClient{UID: "b", Addresses: []string{"10.1.0.2"}})))
	eventually("the second client", 2, 1)
	own.Spec.Destinations = append(own.Spec.Destinations, "2001:db8::/32")
	harness.OK(t, admin.Update(t.Context(), own))
	eventually("the second destination", 2, 2)

	back := harness.WithoutAPIServer(t)
	harness.Eventually(t, patience, "the outage of the API server is noticed", func() error {
		a.cache.mu.Lock()
		defer a.cache.mu.Unlock()
		if a.cache.apiErr == nil {
			return errors.New("not noticed yet")
		}
		return nil
	})
	if _, err := a.ready(); err != nil {
		t.Errorf("ready() without the API server: %v", err)
	}
	back()
	slice.Clients = nil
	harness.OK(t, admin.Update(t.Context(), slice))
	eventually("the change after the outage", 1, 2)
	harness.OK(t, admin.Delete(t.Context(), own))
	harness.Eventually(t, patience, "the deletion of the Egress is noticed", func() error {
		if err := a.cache.complete(); !errors.Is(err, errNoEgress) {
			return errors.New("the Egress is still cached")
		}
		return nil
	})
	eventually("the state from before the Egress was deleted", 1, 2)
	if _, err := a.ready(); err != nil {
		t.Errorf("ready() without its Egress: %v", err)
	}
}

// A gateway may read its own Egress and the slices of its namespace, and nothing else.
func TestRights(t *testing.T) {
	harness.KubeClean(t)
	admin := harness.KubeClient(t)
	harness.OK(t, client.IgnoreAlreadyExists(admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}})))
	api := account(t, admin, newEgress("nat"))
	account(t, admin, newEgress("other"))
	harness.OK(t, api.Get(t.Context(), egresses, "nat", &v1alpha1.Egress{}))
	for what, err := range map[string]error{
		"another Egress":              api.Get(t.Context(), egresses, "other", &v1alpha1.Egress{}),
		"all Egresses":                list(t, api.Objects(egresses, "", func() runtime.Object { return &v1alpha1.EgressList{} })),
		"slices in another namespace": list(t, api.In("default").Objects(clientSlices, "", func() runtime.Object { return &v1alpha1.EgressClientSliceList{} })),
		"clients":                     list(t, api.Objects("egressclients", "", func() runtime.Object { return &v1alpha1.EgressClientList{} })),
		"writing the Egress's spec":   api.Patch(t.Context(), types.MergePatchType, egresses, "nat", "", []byte(`{"spec":{"destinations":["0.0.0.0/0"]}}`), nil),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: error = %v, want Forbidden", what, err)
		}
	}
}

func list(t *testing.T, l kubeapi.Lister) error {
	t.Helper()
	_, err := l.List(t.Context(), metav1.ListOptions{})
	return err
}
