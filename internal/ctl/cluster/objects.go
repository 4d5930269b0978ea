package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/diagnose"
)

// page is how many objects a request asks for.
const page = 500

// api reads objects. What may not be read, or not now, is noted and missing from
// what is shown; all else goes on.
type api struct {
	client.WithWatch
	unread []string
}

func (p *program) connect() (*api, error) {
	cfg, err := p.config()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme, Mapper: mapper()})
	if err != nil {
		return nil, fmt.Errorf("make a client of the Kubernetes API: %w", err)
	}
	return &api{WithWatch: c}, nil
}

// mapper knows the kinds that are read, so that no request is spent to find out.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Node", "Namespace"} {
		m.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	for _, kind := range []string{"Pod", "Event"} {
		m.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	m.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	for _, kind := range []string{"NodeNetwork", "AddressPool", "AddressBlock", "BlockRequest"} {
		m.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	return m
}

// all lists every object of a kind, by pages. None is also what a cluster has that
// lacks the kind, as one in node mode does.
func all[T any, L client.ObjectList](ctx context.Context, a *api, what string, list L, items func(L) []T, opts ...client.ListOption) (out []T) {
	token, again := "", true
	for {
		err := a.List(ctx, list, append(slices.Clone(opts), client.Limit(page), client.Continue(token))...)
		switch {
		case err == nil:
		case apierrors.IsResourceExpired(err) && again: // the list took minutes: once more, from its start
			token, again, out = "", false, nil
			continue
		case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
			return nil
		default:
			a.note(what, err)
			return out
		}
		out = append(out, items(list)...)
		if token = list.GetContinue(); token == "" {
			return out
		}
	}
}

// one reads an object that may not be there.
func one[T any, O interface {
	*T
	client.Object
}](ctx context.Context, a *api, what string, key client.ObjectKey) diagnose.Fact[T] {
	var v T
	switch err := a.Get(ctx, key, O(&v)); {
	case err == nil:
		return diagnose.Of(v)
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return diagnose.Fact[T]{}
	default:
		return diagnose.Unread[T](a.note(what, err))
	}
}

// note keeps why something could not be read.
func (a *api) note(what string, err error) string {
	why := fmt.Sprintf("%s: %v", what, err)
	if !slices.Contains(a.unread, why) {
		a.unread = append(a.unread, why)
	}
	return why
}

// reach is nil if the API server answers: a table of what could not be read
// is no answer.
func (a *api) reach(ctx context.Context) error {
	err := a.Get(ctx, client.ObjectKey{Name: "default"}, &corev1.Namespace{})
	if status := apierrors.APIStatus(nil); err == nil || errors.As(err, &status) && !apierrors.IsUnauthorized(err) {
		return nil
	}
	return fmt.Errorf("ask the Kubernetes API: %w", err)
}

func (a *api) nodes(ctx context.Context) []corev1.Node {
	return all(ctx, a, "Nodes", &corev1.NodeList{}, func(l *corev1.NodeList) []corev1.Node { return l.Items })
}

func (a *api) pods(ctx context.Context, what string, opts ...client.ListOption) []corev1.Pod {
	return all(ctx, a, what, &corev1.PodList{}, func(l *corev1.PodList) []corev1.Pod { return l.Items }, opts...)
}

func (a *api) nodeNetworks(ctx context.Context) []v1alpha1.NodeNetwork {
	return all(ctx, a, "NodeNetworks", &v1alpha1.NodeNetworkList{}, func(l *v1alpha1.NodeNetworkList) []v1alpha1.NodeNetwork { return l.Items })
}

func (a *api) pools(ctx context.Context) []v1alpha1.AddressPool {
	return all(ctx, a, "AddressPools", &v1alpha1.AddressPoolList{}, func(l *v1alpha1.AddressPoolList) []v1alpha1.AddressPool { return l.Items })
}

func (a *api) blocks(ctx context.Context, opts ...client.ListOption) []v1alpha1.AddressBlock {
	return all(ctx, a, "AddressBlocks", &v1alpha1.AddressBlockList{}, func(l *v1alpha1.AddressBlockList) []v1alpha1.AddressBlock { return l.Items }, opts...)
}

func (a *api) requests(ctx context.Context, opts ...client.ListOption) []v1alpha1.BlockRequest {
	return all(ctx, a, "BlockRequests", &v1alpha1.BlockRequestList{}, func(l *v1alpha1.BlockRequestList) []v1alpha1.BlockRequest { return l.Items }, opts...)
}

func (a *api) events(ctx context.Context, opts ...client.ListOption) []corev1.Event {
	return all(ctx, a, "Events", &corev1.EventList{}, func(l *corev1.EventList) []corev1.Event { return l.Items }, opts...)
}
