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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
)

// state is this process's state of a VPC in addition to its object.
type state struct {
	uid        types.UID
	generation int64 // generation of the spec at the last lookup
	woken      atomic.Bool

	connection *connection // nil if no provider is open
	open       bool        // whether others may use it: its network was found, without a lasting problem since
	found      lookup      // the last successful lookup
	asked      bool        // whether the last lookup called the provider
	why        *problem
	next       time.Time // time of the next lookup
	bad        int       // successive failed lookups

	reported time.Time // when the status was last written
	pin      pin       // number of PodNICs in the status
}

// stateOf returns the state of a VPC, or nil if it is unknown.
func (c *Controller) stateOf(name string) *state {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.states[name]
}

// keep returns the state of a VPC, which is reset if the VPC was recreated.
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

// forget closes the provider of a VPC and drops its state.
func (c *Controller) forget(name string) {
	c.mu.Lock()
	s := c.states[name]
	delete(c.states, name)
	c.mu.Unlock()
	c.secrets.use(name, "")
	c.networks.put(name, nil)
	c.reported.drop(name)
	if s != nil && s.connection != nil {
		s.connection.close()
	}
	if c.o.Observer != nil {
		c.o.Observer.Gone(name)
	}
}

// wake triggers an immediate lookup of a VPC.
func (c *Controller) wake(name string) { c.wakeAfter(name, 0) }

func (c *Controller) wakeAfter(name string, d time.Duration) {
	if s := c.stateOf(name); s != nil {
		s.woken.Store(true)
		c.vpcs.AddAfter(name, d)
	}
}

// worsePause is the delay between failed calls of others and the resulting lookup of the VPC, so that many failures cause only one
// lookup.
const worsePause = time.Second

// reconcile looks a VPC up when that is due, and writes its status. For a deleted VPC, it finally removes the finalizer.
func (c *Controller) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	v, err := objects.Get[v1alpha1.VPC](ctx, c.client, q.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if v == nil {
		c.forget(q.Name)
		return reconcile.Result{}, nil
	}
	s := c.keep(v)
	if v.DeletionTimestamp == nil {
		if added, err := objects.AddFinalizer(ctx, c.client, v, v1alpha1.FinalizerVPC); added || err != nil {
			return reconcile.Result{}, err // an event follows
		}
	}
	due := s.woken.Swap(false) || s.generation != v.Generation || !c.now().Before(s.next)
	if wait := s.reported.Add(reportEvery).Sub(c.now()); !due && wait > 0 && v.DeletionTimestamp == nil {
		return reconcile.Result{RequeueAfter: wait}, nil // many PodNICs may be created or deleted at the same time
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
		c.publish(v, s) // before the write, which may fail
	}
	wait, err := c.report(ctx, v, s, nics)
	c.publish(v, s)
	return reconcile.Result{RequeueAfter: queue.Sooner(wait, max(s.next.Sub(c.now()), time.Millisecond))}, err
}

// nics returns how many PodNICs a VPC has in the cache.
func (c *Controller) nics(ctx context.Context, vpc string) (int, error) {
	list, err := objects.List[v1alpha1.PodNICList](ctx, c.client, client.MatchingFields{podnics.ByVPC: vpc})
	if err != nil {
		return 0, fmt.Errorf("list PodNICs of VPC %s: %w", vpc, err)
	}
	return len(list.Items), nil
}

// release removes the finalizer of a VPC that is being deleted, unless the API server has a PodNIC that the cache does not show yet.
func (c *Controller) release(ctx context.Context, v *v1alpha1.VPC, s *state) (gone bool, wait time.Duration, err error) {
	next := ""
	for {
		list := &v1alpha1.PodNICList{} // decoding into a reused list would keep fields that new items lack
		if err := c.live.List(ctx, list, client.Limit(objects.PageSize), client.Continue(next)); err != nil {
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
	if _, err := objects.RemoveFinalizer(ctx, c.client, v, v1alpha1.FinalizerVPC); err != nil {
		return false, 0, err
	}
	c.forget(v.Name)
	return true, 0, nil
}

// look opens the provider of a VPC if its access has changed, and looks up the network.
func (c *Controller) look(ctx context.Context, v *v1alpha1.VPC, s *state, nics int) {
	s.generation = v.Generation
	var seen lookup
	seen.why = c.connect(ctx, v, s)
	asked := seen.why == nil
	if asked {
		if seen = look(ctx, v.Spec, s.connection.provider); seen.why == nil {
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
		if s.open && !why.lasting() && asked && !s.connection.health.away() {
			return // a single failed call changes nothing
		}
		s.open = s.open && !why.lasting()
	}
	s.why, s.asked = why, asked
}

// pause returns the delay after a number of failed lookups. A problem that the operator finds itself is treated like rejected
// credentials.
func pause(class vpcport.Class, failures int) time.Duration {
	if class == vpcport.Unknown {
		class = vpcport.Unauthorized
	}
	p := vpcport.PolicyOf(class)
	return retry.Jitter(retry.Delay(p.First, p.Last, failures))
}

// connect opens the provider described by the spec and the Secret. It stays open until that description changes.
func (c *Controller) connect(ctx context.Context, v *v1alpha1.VPC, s *state) *problem {
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
	if s.connection != nil && reflect.DeepEqual(s.connection.access, to) {
		return nil
	}
	t, err := c.opener.open(v.Name, to, func() { c.wakeAfter(v.Name, worsePause) })
	if err != nil {
		return &problem{ofEndpoint, ReasonInvalidEndpoint, fmt.Sprintf("spec.%v", err)}
	}
	if s.connection != nil {
		s.connection.close()
	}
	s.connection, s.open, s.bad = t, false, 0
	return nil
}

// publish opens or closes a VPC for other controllers. A VPC opens once its status records the network and project of its ports, so
// that the next operator knows them too.
func (c *Controller) publish(v *v1alpha1.VPC, s *state) {
	switch {
	case s.open && s.pin != s.found.pin():
		return // the status write is retried first
	case s.open:
		c.networks.put(v.Name, &answer{opened: podnics.Opened{UID: string(v.UID), Provider: s.connection.provider, Network: s.found.network, Spec: v.Spec}})
	default:
		c.networks.put(v.Name, &answer{why: &NotReady{s.why.reason, fmt.Sprintf("VPC %s: %s", v.Name, s.why.message)}})
	}
}

// drain deletes the warm ports of a VPC that is being deleted, because nobody looks for them afterwards. The listing may miss ports
// created just before the deletion: drain returns how long to wait before listing again, or 0 if none is left. Ports being created
// are deleted by the pool itself.
func (c *Controller) drain(ctx context.Context, v *v1alpha1.VPC, s *state) (wait time.Duration, err error) {
	if c.o.EC2 == nil || v.Spec.Provider != v1alpha1.ProviderEC2 {
		return 0, nil
	}
	settle := cmp.Or(c.o.EC2.Settle, branch.Settle)
	if err := c.deleteWarm(ctx, v, s); err != nil {
		return 0, err
	}
	return max(0, v.DeletionTimestamp.Add(settle+time.Second).Sub(c.now())), nil // the API server's times have a resolution of one second
}

// deleteWarm deletes the warm ports in a listing.
func (c *Controller) deleteWarm(ctx context.Context, v *v1alpha1.VPC, s *state) error {
	if s.connection == nil {
		if why := c.connect(ctx, v, s); why != nil {
			return fmt.Errorf("open VPC %s to delete its warm pool: %s", v.Name, why.message)
		}
	}
	p := s.connection.provider
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
			c.o.Logger.Info("deleted a warm port", "vpc", v.Name, "port", o.ID, "host", o.Host)
			return nil
		})
	}
	return deletions.Wait()
}

// atOnce is the maximum number of deletions in flight.
const atOnce = 8
