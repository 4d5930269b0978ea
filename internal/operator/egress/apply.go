package egress

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
)

// cacheGrace is how long the cache may take to have what was applied.
const cacheGrace = time.Second

// noVersion is a resource version that no object has, as it is etcd's before anything is
// written: an object with it is made if there is none, and else it is a conflict.
const noVersion = "1"

// provide has an Egress have its objects. The problem is the first that a person has to
// see to; the error one that is tried again at once. again is when to look once more.
func (c *Controller) provide(ctx context.Context, e *v1alpha1.Egress) (again time.Duration, problem *gatewayplan.Problem, err error) {
	wanted, problem := gatewayplan.Objects(e, c.o.Settings)
	sooner := func(d time.Duration) {
		if d > 0 && (again == 0 || d < again) {
			again = d
		}
	}
	for _, kind := range gatewayplan.Kinds {
		o, want := wanted[kind]
		if !want {
			if kind == gatewayplan.Budget {
				err = errors.Join(err, c.remove(ctx, e, kind))
			}
			continue
		}
		wait, failed := c.ensure(ctx, e, kind, o)
		sooner(wait)
		if p := problemOf(kind, e.Name, failed); p != nil {
			if problem == nil {
				problem = p
			}
			sooner(c.o.Retry)
			continue
		}
		err = errors.Join(err, failed)
	}
	return again, problem, err
}

// ensure has one object be as it is wanted. wait is when to look again.
func (c *Controller) ensure(ctx context.Context, e *v1alpha1.Egress, kind schema.GroupVersionKind, wanted *unstructured.Unstructured) (wait time.Duration, err error) {
	key := client.ObjectKeyFromObject(e)
	there, err := c.there(ctx, kind, key)
	if err != nil {
		return 0, err
	}
	sum := sumOf(wanted)
	last, known := c.book.of(key, kind)
	known = known && last.wanted == sum
	if known && there != nil && there.GetUID() == last.uid && versionOf(there) == last.version {
		return 0, nil
	}
	if left := cacheGrace - c.now().Sub(last.at); known && left > 0 && (there == nil || there.GetUID() == last.uid) {
		return left, nil // the cache may not have seen it yet
	}
	if there == nil {
		// It may be there without the label by which the cache knows it.
		if there, err = c.look(ctx, kind, key); err != nil {
			return 0, err
		}
	}
	if there != nil && !metav1.IsControlledBy(there, e) {
		c.book.drop(key, kind)
		return 0, notOurs{there}
	}
	if there != nil && there.GetDeletionTimestamp() != nil {
		return 0, nil // its end has it made anew
	}
	return 0, c.apply(ctx, key, wanted, there, sum)
}

// there is an object as the cache has it; nil: it has none.
func (c *Controller) there(ctx context.Context, kind schema.GroupVersionKind, key types.NamespacedName) (client.Object, error) {
	o := cached(kind)
	if err := c.client.Get(ctx, key, o); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", kind.Kind, key, err)
	}
	return o, nil
}

// look is an object as the API server has it; nil: there is none.
func (c *Controller) look(ctx context.Context, kind schema.GroupVersionKind, key types.NamespacedName) (client.Object, error) {
	o := metadata(kind)
	if err := c.live.Get(ctx, key, o); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look for %s %s: %w", kind.Kind, key, err)
	}
	return o, nil
}

// apply applies an object. What is there is changed only if it is the same still, and what
// is not there made only if nobody else has made it meanwhile.
func (c *Controller) apply(ctx context.Context, key types.NamespacedName, wanted *unstructured.Unstructured, there client.Object, sum uint64) error {
	kind := wanted.GroupVersionKind()
	if err := failpoint.Hit("operator.gateways.apply.before"); err != nil {
		return err
	}
	o := wanted.DeepCopy()
	if there != nil {
		o.SetUID(there.GetUID())
	} else {
		o.SetResourceVersion(noVersion)
	}
	err := c.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(v1alpha1.OwnerOperator), client.ForceOwnership)
	c.o.Metrics.applied(kind.Kind, err)
	if err != nil {
		c.book.drop(key, kind)
		return fmt.Errorf("apply %s %s: %w", kind.Kind, key, err)
	}
	if err := failpoint.Hit("operator.gateways.apply.after"); err != nil {
		return err
	}
	c.book.note(key, kind, entry{uid: o.GetUID(), wanted: sum, version: versionOf(o), at: c.now()})
	return nil
}

// remove deletes an object that an Egress is not to have, if it is the Egress's.
func (c *Controller) remove(ctx context.Context, e *v1alpha1.Egress, kind schema.GroupVersionKind) error {
	key := client.ObjectKeyFromObject(e)
	there, err := c.there(ctx, kind, key)
	if err != nil {
		return err
	}
	if _, known := c.book.of(key, kind); there == nil && known {
		if there, err = c.look(ctx, kind, key); err != nil { // the cache may not have seen it yet
			return err
		}
	}
	c.book.drop(key, kind)
	if there == nil || !metav1.IsControlledBy(there, e) || there.GetDeletionTimestamp() != nil {
		return nil
	}
	if err := failpoint.Hit("operator.gateways.remove.before"); err != nil {
		return err
	}
	err = c.client.Delete(ctx, there, client.Preconditions{UID: new(there.GetUID())})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s %s: %w", kind.Kind, key, err)
	}
	return failpoint.Hit("operator.gateways.remove.after")
}

// notOurs is the error of an object that is not the Egress's.
type notOurs struct{ there client.Object }

// Error implements error.
func (n notOurs) Error() string {
	owner := metav1.GetControllerOf(n.there)
	if owner == nil {
		return "it is there already, and belongs to no Egress: delete or rename it, or name the Egress otherwise"
	}
	if owner.Kind == "Egress" {
		return "it is that of an earlier Egress of this name, and Kubernetes has not removed it yet"
	}
	return fmt.Sprintf("it is there already, and belongs to %s %s: name the Egress otherwise", owner.Kind, owner.Name)
}
