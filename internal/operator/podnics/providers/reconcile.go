package providers

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
)

// state is what is known of a VPC, besides its object.
type state struct {
	uid        types.UID
	generation int64 // of the spec that was looked at
	woken      atomic.Bool

	tended *tended // nil: no provider is opened
	open   bool    // others may use it: its network was found, and nothing lasting came since
	found  sight   // the last good look
	asked  bool    // the provider was asked in the last look
	why    *problem
	next   time.Time // of the next look
	bad    int       // looks in a row that failed

	reported time.Time // when the status was last written
	pin      pin       // what is in the status for sure
}

// stateOf is what is known of a VPC; nil: nothing.
func (c *Controller) stateOf(name string) *state {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.states[name]
}

// keep is what is known of a VPC, from now on at least. What was of another of its name
// goes.
func (c *Controller) keep(v *v1alpha1.VPC) *state {
	if s := c.stateOf(v.Name); s != nil {
		if s.uid == v.UID {
			return s
		}
		c.forget(v.Name)
	}
	s := &state{uid: v.UID}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states[v.Name] = s
	return s
}

// forget ends all work for a VPC.
func (c *Controller) forget(name string) {
	c.mu.Lock()
	s := c.states[name]
	delete(c.states, name)
	c.mu.Unlock()
	c.secrets.use(name, "")
	c.book.put(name, nil)
	c.reported.drop(name)
	if s != nil && s.tended != nil {
		s.tended.close()
	}
	if c.o.Observer != nil {
		c.o.Observer.Gone(name)
	}
}

// wake has a VPC looked at.
func (c *Controller) wake(name string) { c.wakeAfter(name, 0) }

func (c *Controller) wakeAfter(name string, d time.Duration) {
	if s := c.stateOf(name); s != nil {
		s.woken.Store(true)
		c.vpcs.AddAfter(name, d)
	}
}

// worsePause is between calls of others that went badly and the look at the VPC that they
// cause, so that many cause one.
const worsePause = time.Second

// reconcile looks at a VPC when it is time, and writes its status; or follows its
// deletion.
func (c *Controller) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	v := &v1alpha1.VPC{}
	err := c.client.Get(ctx, q.NamespacedName, v)
	if apierrors.IsNotFound(err) {
		c.forget(q.Name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read VPC %s from the cache: %w", q.Name, err)
	}
	s := c.keep(v)
	before := v.DeepCopy()
	if v.DeletionTimestamp == nil && controllerutil.AddFinalizer(v, v1alpha1.FinalizerVPC) {
		return reconcile.Result{}, c.writeFinalizers(ctx, v, before) // the change brings it back here
	}
	due := s.woken.Swap(false) || s.generation != v.Generation || !c.now().Before(s.next)
	if wait := s.reported.Add(reportEvery).Sub(c.now()); !due && wait > 0 && v.DeletionTimestamp == nil {
		return reconcile.Result{RequeueAfter: wait}, nil // many PodNICs come and go at once
	}
	nics, err := c.nics(ctx, v.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if v.DeletionTimestamp != nil && nics == 0 {
		gone, wait, err := c.release(ctx, v, s)
		if gone || wait > 0 || err != nil {
			return reconcile.Result{RequeueAfter: wait}, err
		}
	}
	if due {
		c.look(ctx, v, s, nics)
	}
	if !s.open {
		c.publish(v, s) // before anything that may fail
	}
	wait, err := c.report(ctx, v, s, nics)
	c.publish(v, s)
	if until := max(s.next.Sub(c.now()), time.Millisecond); wait == 0 || until < wait {
		wait = until
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// nics is how many PodNICs a VPC has.
func (c *Controller) nics(ctx context.Context, vpc string) (int, error) {
	list := &v1alpha1.PodNICList{}
	if err := c.client.List(ctx, list, client.MatchingFields{podnics.ByVPC: vpc}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list PodNICs of VPC %s: %w", vpc, err)
	}
	return len(list.Items), nil
}

// release lets a VPC go that is being deleted, unless there is a PodNIC after all that the
// cache does not show yet.
func (c *Controller) release(ctx context.Context, v *v1alpha1.VPC, s *state) (gone bool, wait time.Duration, err error) {
	next := ""
	for {
		list := &v1alpha1.PodNICList{} // in a used one, objects keep fields that the new page leaves out
		if err := c.live.List(ctx, list, client.Limit(500), client.Continue(next)); err != nil {
			return false, 0, fmt.Errorf("list PodNICs: %w", err)
		}
		for i := range list.Items {
			if list.Items[i].Spec.VPC == v.Name {
				return false, 0, nil
			}
		}
		if next = list.Continue; next == "" {
			break
		}
	}
	if wait, err = c.drain(ctx, v, s); wait > 0 || err != nil {
		return false, wait, err
	}
	before := v.DeepCopy()
	if controllerutil.RemoveFinalizer(v, v1alpha1.FinalizerVPC) {
		if err := client.IgnoreNotFound(c.writeFinalizers(ctx, v, before)); err != nil {
			return false, 0, err
		}
	}
	c.forget(v.Name)
	return true, 0, nil
}

// writeFinalizers writes a VPC's finalizers, unless somebody wrote to it since it was as
// before.
func (c *Controller) writeFinalizers(ctx context.Context, v, before *v1alpha1.VPC) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.client.Patch(ctx, v, patch, client.FieldOwner(v1alpha1.OwnerOperator)); err != nil {
		return fmt.Errorf("write the finalizers of VPC %s: %w", v.Name, err)
	}
	return nil
}

// look opens the provider of a VPC, if that changed, and asks it for the network.
func (c *Controller) look(ctx context.Context, v *v1alpha1.VPC, s *state, nics int) {
	s.generation = v.Generation
	var seen sight
	seen.why = c.tend(ctx, v, s)
	asked := seen.why == nil
	if asked {
		if seen = look(ctx, v.Spec, s.tended.provider); seen.why == nil {
			seen.why = s.pinOf(v).holds(v.Spec, nics, seen)
		}
	}
	why := seen.why
	if why == nil {
		s.found, s.open, s.bad = seen, true, 0
		s.next = c.now().Add(retry.Jitter(c.o.Interval))
	} else {
		s.next = c.now().Add(max(seen.after, pause(seen.class, s.bad)))
		s.bad++
		if s.open && !why.lasting() && asked && !s.tended.health.away() {
			return // one call that failed is no news
		}
		s.open = s.open && !why.lasting()
	}
	s.why, s.asked = why, asked
}

// pause is how long after some looks that failed the next one is; of what the operator
// finds out itself as after credentials that were refused.
func pause(class vpcport.Class, failures int) time.Duration {
	if class == vpcport.Unknown {
		class = vpcport.Unauthorized
	}
	p := vpcport.PolicyOf(class)
	return retry.Jitter(retry.Delay(p.First, p.Last, failures))
}

// tend has the provider opened that the spec and the Secret tell; it stays while they
// tell the same.
func (c *Controller) tend(ctx context.Context, v *v1alpha1.VPC, s *state) *problem {
	var secret *corev1.Secret
	name := ""
	if v.Spec.Credentials != nil {
		name = v.Spec.Credentials.SecretName
	}
	c.secrets.use(v.Name, name)
	if name != "" {
		var why *problem
		if secret, why = c.secrets.read(ctx, v.Name, name); why != nil {
			return why
		}
	}
	to, why := accessOf(c.o, v.Spec, secret)
	if why != nil {
		return why
	}
	if s.tended != nil && reflect.DeepEqual(s.tended.access, to) {
		return nil
	}
	t, err := c.opener.open(v.Name, to, func() { c.wakeAfter(v.Name, worsePause) })
	if err != nil {
		return &problem{ofEndpoint, ReasonInvalidEndpoint, fmt.Sprintf("spec.%v", err)}
	}
	if s.tended != nil {
		s.tended.close()
	}
	s.tended, s.open, s.bad = t, false, 0
	return nil
}

// publish tells others what is open. It is not before the status says whose the ports
// are, so that an operator that comes after this one knows it too.
func (c *Controller) publish(v *v1alpha1.VPC, s *state) {
	switch {
	case s.open && s.pin != s.found.pin():
		return // the status is written at the next try
	case s.open:
		c.book.put(v.Name, &answer{opened: podnics.Opened{UID: string(v.UID), Provider: s.tended.provider, Network: s.found.network, Spec: v.Spec}})
	default:
		c.book.put(v.Name, &answer{why: &NotReady{s.why.reason, fmt.Sprintf("VPC %s: %s", v.Name, s.why.message)}})
	}
}

// drain deletes the ports of the warm pool of a VPC that is being deleted: once it is gone nobody
// looks for them. What it lists may trail what was made before the deletion; what is being made then, the pool
// deletes itself. It returns how long to wait until it is to be looked at again; 0: none is left.
func (c *Controller) drain(ctx context.Context, v *v1alpha1.VPC, s *state) (wait time.Duration, err error) {
	if c.o.EC2 == nil || v.Spec.Provider != v1alpha1.ProviderEC2 {
		return 0, nil
	}
	settle := cmp.Or(c.o.EC2.Settle, branch.Settle)
	if err := c.deleteWarm(ctx, v, s); err != nil {
		return 0, err
	}
	return max(0, v.DeletionTimestamp.Add(settle+time.Second).Sub(c.now())), nil // of a second the API server keeps no parts
}

// deleteWarm deletes those that a listing shows.
func (c *Controller) deleteWarm(ctx context.Context, v *v1alpha1.VPC, s *state) error {
	if s.tended == nil {
		if why := c.tend(ctx, v, s); why != nil {
			return fmt.Errorf("open VPC %s to delete its warm pool: %s", v.Name, why.message)
		}
	}
	p := s.tended.provider
	list, err := p.Ports(ctx, vpcport.Filter{NetworkID: v.Spec.Network, Owner: vpcport.Owner})
	if err != nil {
		return fmt.Errorf("list the warm pool of VPC %s, which is being deleted: %w", v.Name, err)
	}
	deletions, ctx := errgroup.WithContext(ctx)
	deletions.SetLimit(atOnce)
	for _, o := range list {
		if uid, warm := o.WarmVPC(c.o.EC2.Cluster); !warm || uid != string(v.UID) {
			continue
		}
		deletions.Go(func() error {
			if err := p.Delete(ctx, o.ID); err != nil {
				return fmt.Errorf("delete a port of the warm pool of VPC %s, which is being deleted: %w", v.Name, err)
			}
			c.o.Logger.Info("port of the warm pool deleted", "vpc", v.Name, "port", o.ID, "host", o.Host)
			return nil
		})
	}
	return deletions.Wait()
}

// atOnce is how many deletions are under way at once.
const atOnce = 8
