package clients

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
	"github.com/berthnet/berth/internal/operator/watched"
)

// begin fills the book from the cache, before anything else is done: all of it at once, so
// that no slice is written by half of what there is. It returns at once when that was done.
func (c *Controller) begin(ctx context.Context) error {
	b := c.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		return nil
	}
	namespaces, err := c.namespaces(ctx)
	if err != nil {
		return err
	}
	egresses, clients, slices := &v1alpha1.EgressList{}, &v1alpha1.EgressClientList{}, &v1alpha1.EgressClientSliceList{}
	for _, list := range []client.ObjectList{egresses, clients, slices} {
		if err := c.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("read all clients of Egresses from the cache: %w", err)
		}
	}
	all := make([]*clientplan.Egress, len(egresses.Items))
	for i := range egresses.Items {
		all[i] = clientplan.NewEgress(&egresses.Items[i])
	}
	b.egresses = clientplan.NewEgresses(c.o.Namespace, all)
	for _, n := range namespaces {
		b.egresses = b.egresses.Granting(n.Name, n.Granted())
	}
	for _, e := range all {
		b.account(e.Ref)
	}
	b.served = map[string]bool{}
	for i := range slices.Items {
		for _, s := range slices.Items[i].Clients {
			b.served[s.UID] = true
		}
	}
	for i := range clients.Items {
		o := &clients.Items[i]
		p, err := c.pod(ctx, client.ObjectKeyFromObject(o))
		if err != nil {
			return err
		}
		s, err := c.see(ctx, p, c.namespace(ctx, o.Namespace), o, b.egresses, b.isServedLocked)
		if err != nil {
			return err
		}
		b.noteLocked(client.ObjectKeyFromObject(o), s.entry(c.now()))
	}
	for i := range slices.Items {
		b.seenLocked(refOfSlice(&slices.Items[i]), &slices.Items[i])
	}
	for _, a := range b.accounts {
		clear(a.since) // they came while others led
	}
	b.served, b.open = nil, true
	return nil
}

// pod is one as the cache has it; nil: it is gone, or has ended.
func (c *Controller) pod(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	err := c.client.Get(ctx, key, p, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read pod %s from the cache: %w", key, err)
	}
	if apierrors.IsNotFound(err) || ended(p) {
		return nil, nil
	}
	return p, nil
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// namespaces are all that are known.
func (c *Controller) namespaces(ctx context.Context) ([]membership.Namespace, error) {
	list := watched.Namespaces.List().(*metav1.PartialObjectMetadataList)
	if err := c.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("read namespaces from the cache: %w", err)
	}
	out := make([]membership.Namespace, len(list.Items))
	for i := range list.Items {
		out[i] = membership.ReadNamespace(&list.Items[i])
	}
	return out, nil
}

// namespace is one as it is known, without anything if it is not.
func (c *Controller) namespace(ctx context.Context, name string) membership.Namespace {
	ns := watched.Namespace(name)
	if err := c.client.Get(ctx, client.ObjectKey{Name: name}, ns, client.UnsafeDisableDeepCopy); err != nil {
		return membership.Namespace{Name: name}
	}
	return membership.ReadNamespace(ns)
}
