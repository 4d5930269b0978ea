package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
)

// cacheGrace is how long the cache may take to show an applied object.
const cacheGrace = time.Second

// noVersion is a resource version that no object has, as etcd has it before anything is written.
// Applying an object with it creates the object, or fails with a conflict if the object exists.
const noVersion = "1"

// provide brings the objects of an Egress to the desired state. problem is the first one that needs
// a person's attention; err is to be retried immediately; again is when to check again.
func (c *Controller) provide(ctx context.Context, e *v1alpha1.Egress) (again time.Duration, problem *gatewayplan.Problem, err error) {
	desired, problem := gatewayplan.Objects(e, c.o.Settings)
	for _, kind := range gatewayplan.Kinds {
		o, is := desired[kind]
		if !is {
			if kind == gatewayplan.Budget {
				err = errors.Join(err, c.remove(ctx, e, kind))
			}
			continue
		}
		wait, failed := c.ensure(ctx, e, kind, o)
		again = queue.Sooner(again, wait)
		if isCoils(e, kind, failed) {
			again = queue.Sooner(again, c.o.Retry)
			continue
		}
		if p := problemOf(kind, e.Name, failed); p != nil {
			if problem == nil {
				problem = p
			}
			again = queue.Sooner(again, c.o.Retry)
			continue
		}
		err = errors.Join(err, failed)
	}
	return again, problem, err
}

// ensure brings one object to the desired state. wait is when to check again.
func (c *Controller) ensure(ctx context.Context, e *v1alpha1.Egress, kind schema.GroupVersionKind, desired *unstructured.Unstructured) (wait time.Duration, err error) {
	key := client.ObjectKeyFromObject(e)
	there, err := c.cached(ctx, kind, key)
	if err != nil {
		return 0, err
	}
	sum := sumOf(desired)
	last, known := c.applied.of(key, kind)
	known = known && last.desired == sum
	if known && there != nil && there.GetUID() == last.uid && versionOf(there) == last.version {
		return 0, nil
	}
	if left := cacheGrace - c.now().Sub(last.at); known && left > 0 && (there == nil || there.GetUID() == last.uid) {
		return left, nil // the cache may not show it yet
	}
	if there == nil {
		// It may exist without the label that the cache selects by.
		if there, err = c.read(ctx, kind, key); err != nil {
			return 0, err
		}
	}
	if there != nil && !metav1.IsControlledBy(there, e) {
		c.applied.drop(key, kind)
		return 0, notOurs{there}
	}
	if there != nil && there.GetDeletionTimestamp() != nil {
		return 0, nil // it is recreated once it is gone
	}
	return 0, c.apply(ctx, key, desired, there, sum)
}

// cached returns an object from the cache, or nil.
func (c *Controller) cached(ctx context.Context, kind schema.GroupVersionKind, key types.NamespacedName) (client.Object, error) {
	return get(ctx, c.client, key, emptyOf(kind), kind.Kind)
}

// read returns an object from the API server, or nil if it does not exist.
func (c *Controller) read(ctx context.Context, kind schema.GroupVersionKind, key types.NamespacedName) (client.Object, error) {
	return get(ctx, c.live, key, metadata(kind), kind.Kind)
}

func get(ctx context.Context, r client.Reader, key types.NamespacedName, o client.Object, kind string) (client.Object, error) {
	if err := r.Get(ctx, key, o); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", kind, key, err)
	}
	return o, nil
}

// apply applies an object. An existing object is changed only if it still has the same UID, and a
// missing one is created only if nobody else has created it in the meantime.
func (c *Controller) apply(ctx context.Context, key types.NamespacedName, desired *unstructured.Unstructured, there client.Object, sum uint64) error {
	kind := desired.GroupVersionKind()
	if err := failpoint.Hit("operator.gateways.apply.before"); err != nil {
		return err
	}
	o := desired.DeepCopy()
	if there != nil {
		o.SetUID(there.GetUID())
	} else {
		o.SetResourceVersion(noVersion)
	}
	err := c.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(v1alpha1.OwnerOperator), client.ForceOwnership)
	c.o.Metrics.applied(kind.Kind, err)
	if err != nil {
		c.applied.drop(key, kind)
		return fmt.Errorf("apply %s %s: %w", kind.Kind, key, err)
	}
	if err := failpoint.Hit("operator.gateways.apply.after"); err != nil {
		return err
	}
	c.applied.add(key, kind, appliedObject{uid: o.GetUID(), desired: sum, version: versionOf(o), at: c.now()})
	return nil
}

// remove deletes an object that an Egress must not have, if the Egress owns it.
func (c *Controller) remove(ctx context.Context, e *v1alpha1.Egress, kind schema.GroupVersionKind) error {
	key := client.ObjectKeyFromObject(e)
	there, err := c.cached(ctx, kind, key)
	if err != nil {
		return err
	}
	if _, known := c.applied.of(key, kind); there == nil && known {
		if there, err = c.read(ctx, kind, key); err != nil { // the cache may not show it yet
			return err
		}
	}
	c.applied.drop(key, kind)
	if there == nil || !metav1.IsControlledBy(there, e) || there.GetDeletionTimestamp() != nil {
		return nil
	}
	if err := failpoint.Hit("operator.gateways.remove.before"); err != nil {
		return err
	}
	if err := objects.Delete(ctx, c.client, there); err != nil {
		return err
	}
	return failpoint.Hit("operator.gateways.remove.after")
}

// notOurs is the error for an object that the Egress does not own.
type notOurs struct{ there client.Object }

// Error implements error.
func (n notOurs) Error() string {
	owner := metav1.GetControllerOf(n.there)
	if owner == nil {
		return "it exists already, and belongs to no Egress: delete or rename it, or give the Egress another name"
	}
	if owner.Kind == "Egress" {
		return "it belongs to an earlier Egress of this name, and Kubernetes has not deleted it yet"
	}
	return fmt.Sprintf("it exists already, and belongs to %s %s: give the Egress another name", owner.Kind, owner.Name)
}

// isCoils reports whether an object is left to Coil's Egress of the same name, to whose Service tunnels of Coil's clients
// lead. The end of the migration gives the object to e (package migrate/coil/objects).
func isCoils(e *v1alpha1.Egress, kind schema.GroupVersionKind, err error) bool {
	taken, is := errors.AsType[notOurs](err)
	if !is || kind != gatewayplan.Service && kind != gatewayplan.Budget || !membership.HasCoilClients(e.Annotations) || e.Spec.TunnelTo == v1alpha1.TunnelToService {
		return false
	}
	return membership.IsCoils(taken.there, types.UID(e.Annotations[v1alpha1.AnnotationCoilEgress]))
}

// problemOf translates a failed write into a problem to report. It returns nil if nobody needs to
// act: the API server is unavailable, or the write conflicted with another one.
func problemOf(kind schema.GroupVersionKind, name string, err error) *gatewayplan.Problem {
	taken, isTaken := errors.AsType[notOurs](err)
	status, isStatus := errors.AsType[*apierrors.StatusError](err)
	switch {
	case isTaken:
		return &gatewayplan.Problem{Reason: v1alpha1.EgressNameTaken, Message: fmt.Sprintf("%s %s: %v", kind.Kind, name, taken)}
	case !isStatus || !refuses(err) || isAnothers(status):
		return nil
	}
	p := &gatewayplan.Problem{Reason: v1alpha1.EgressRefused, Message: fmt.Sprintf("%s %s: %s", kind.Kind, name, status.Status().Message)}
	details := status.Status().Details
	if !apierrors.IsInvalid(err) || details == nil || len(details.Causes) == 0 {
		return p
	}
	// Fields that a Deployment takes from an Egress have the same path in both.
	var causes []string
	for _, cause := range details.Causes {
		causes = append(causes, strings.TrimPrefix(cause.Field+": "+cause.Message, ": "))
		if kind == gatewayplan.Deployment && strings.HasPrefix(cause.Field, "spec.template.") {
			p.Reason = v1alpha1.EgressInvalidTemplate
		}
	}
	p.Message = strings.Join(causes, "; ")
	if p.Reason == v1alpha1.EgressRefused {
		p.Message = fmt.Sprintf("%s %s: %s", kind.Kind, name, p.Message)
	}
	return p
}

// isAnothers reports whether the UID was rejected: the object was replaced since it was cached.
func isAnothers(err *apierrors.StatusError) bool {
	details := err.ErrStatus.Details
	return details != nil && slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// refuses reports whether the API server rejected a write permanently.
func refuses(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// applied remembers the objects of Egresses as last applied. If neither an object nor its desired
// state has changed since then, no request is needed. An operator that starts applies every object
// once.
type applied struct {
	mu  sync.Mutex // guards all and its maps
	all map[types.NamespacedName]map[schema.GroupVersionKind]appliedObject
}

// appliedObject is an object as last applied.
type appliedObject struct {
	uid     types.UID
	desired uint64    // checksum of the desired state
	version string    // versionOf of the applied object
	at      time.Time // when it was applied
}

func newApplied() *applied {
	return &applied{all: map[types.NamespacedName]map[schema.GroupVersionKind]appliedObject{}}
}

func (b *applied) of(key types.NamespacedName, kind schema.GroupVersionKind) (appliedObject, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.all[key][kind]
	return e, ok
}

func (b *applied) add(key types.NamespacedName, kind schema.GroupVersionKind, e appliedObject) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all[key] == nil {
		b.all[key] = map[schema.GroupVersionKind]appliedObject{}
	}
	b.all[key][kind] = e
}

func (b *applied) drop(key types.NamespacedName, kind schema.GroupVersionKind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all[key], kind)
}

// forget drops all objects of a deleted Egress.
func (b *applied) forget(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, key)
}

func (b *applied) count() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, of := range b.all {
		n += len(of)
	}
	return n
}

// versionOf changes whenever an object does, except in its status. If the object has a generation,
// which counts changes of its spec, only labels and owners of the metadata count.
func versionOf(o client.Object) string {
	text := o.GetResourceVersion()
	if g := o.GetGeneration(); g != 0 {
		text = fmt.Sprint("generation ", g)
	}
	return fmt.Sprintf("%s %x", text, sumOf(o.GetLabels(), o.GetOwnerReferences()))
}

// sumOf returns a checksum of values as JSON.
func sumOf(parts ...any) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		if u, ok := p.(*unstructured.Unstructured); ok {
			p = u.Object
		}
		_ = json.NewEncoder(h).Encode(p) // maps are encoded in key order
	}
	return h.Sum64()
}
