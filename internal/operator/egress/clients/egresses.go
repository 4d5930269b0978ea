package clients

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
)

// reconcileEgress takes in what an Egress is, has those pods looked at that a change may
// affect, and writes its slices and what its status says of its clients.
func (c *Controller) reconcileEgress(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	if err := c.begin(ctx); err != nil {
		return reconcile.Result{}, err
	}
	ref := membership.Ref(q.NamespacedName)
	o := &v1alpha1.Egress{}
	if err := c.client.Get(ctx, q.NamespacedName, o, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) || err == nil && o.DeletionTimestamp != nil {
		o = nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read Egress %s from the cache: %w", ref, err)
	}
	now, err := c.learn(ctx, ref, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	list := &v1alpha1.EgressClientSliceList{}
	if err := c.client.List(ctx, list, client.MatchingFields{byEgress: ref.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list slices of Egress %s: %w", ref, err)
	}
	for i := range list.Items {
		c.book.seen(ref, &list.Items[i])
	}
	next, err := c.writeSlices(ctx, ref, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	again, err := c.sayClients(ctx, o, now)
	return reconcile.Result{RequeueAfter: sooner(next, again)}, err
}

// sooner is the shorter of two waits; zero is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// learn takes in what an Egress is by now; nil: there is none of the name.
func (c *Controller) learn(ctx context.Context, ref membership.Ref, o *v1alpha1.Egress) (*clientplan.Egress, error) {
	now := c.book.known().Get(ref)
	if o == nil {
		now = nil
	} else if !now.Reads(o) {
		now = clientplan.NewEgress(o)
	}
	before, after := c.book.learn(ref, now)
	had := before.Get(ref)
	if changed := clientplan.Changed(before, after, ref); len(changed) > 0 {
		keys, err := c.affected(ctx, changed, before, after)
		if err != nil {
			c.book.learn(ref, had) // so that it is a change the next time too
			return nil, err
		}
		c.lookAt(keys)
		c.book.lookForConsent(changed)
		c.touch(slices.DeleteFunc(changed, func(r membership.Ref) bool { return r == ref }))
	} else if now != nil && had.Gateways != now.Gateways {
		keys := newKeys()
		if err := c.clientsOf(ctx, ref, keys); err != nil {
			return nil, err
		}
		c.lookAt(keys.list)
	}
	return now, nil
}

// keys are those of pods, each once.
type keys struct {
	list []types.NamespacedName
	has  map[types.NamespacedName]bool
}

func newKeys() *keys { return &keys{has: map[types.NamespacedName]bool{}} }

func (k *keys) add(o client.Object) {
	if at := client.ObjectKeyFromObject(o); !k.has[at] {
		k.has[at] = true
		k.list = append(k.list, at)
	}
}

// affected are the pods for which it matters that Egresses choose other clients than before: those
// that name them, in namespaces of which they may select some, and that used them or might not.
// Those are first that have no address yet.
func (c *Controller) affected(ctx context.Context, refs []membership.Ref, before, now clientplan.Egresses) ([]types.NamespacedName, error) {
	first, then := newKeys(), newKeys()
	pods := func(opts ...client.ListOption) error {
		list := &corev1.PodList{}
		if err := c.client.List(ctx, list, append(opts, client.UnsafeDisableDeepCopy)...); err != nil {
			return fmt.Errorf("list pods that Egresses %v may concern: %w", refs, err)
		}
		for i := range list.Items {
			if p := &list.Items[i]; len(p.Status.PodIPs) == 0 {
				first.add(p)
			} else {
				then.add(p)
			}
		}
		return nil
	}
	was, is := before.Selectors(), now.Selectors()
	var selecting []membership.Ref
	for _, ref := range refs {
		if err := pods(client.MatchingFields{byEgress: ref.String()}); err != nil {
			return nil, err
		}
		if was.IsActive(ref) || is.IsActive(ref) {
			selecting = append(selecting, ref)
		}
	}
	if len(selecting) > 0 {
		namespaces, err := c.namespaces(ctx)
		if err != nil {
			return nil, err
		}
		for _, n := range namespaces {
			if slices.ContainsFunc(selecting, func(r membership.Ref) bool { return was.Selects(r, n) || is.Selects(r, n) }) {
				if err := pods(client.InNamespace(n.Name)); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, ref := range refs {
		if err := c.clientsOf(ctx, ref, then); err != nil {
			return nil, err
		}
	}
	return append(first.list, then.list...), nil
}

// clientsOf adds the pods that use an Egress, or would and may not.
func (c *Controller) clientsOf(ctx context.Context, ref membership.Ref, into *keys) error {
	list := &v1alpha1.EgressClientList{}
	if err := c.client.List(ctx, list, client.MatchingFields{byEgress: ref.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list clients of Egress %s: %w", ref, err)
	}
	for i := range list.Items {
		into.add(&list.Items[i])
	}
	return nil
}
