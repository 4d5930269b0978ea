package addresspool

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

// nodeEvents passes on changes of Nodes, which are updated often, only where reconcile
// uses what changed.
func nodeEvents() builder.ForOption {
	type state struct {
		ready     corev1.ConditionStatus
		fenced    bool
		addresses string
	}
	return watched.NodeChanges(func(n *corev1.Node) state {
		s := state{fenced: watched.OutOfService(n), addresses: fmt.Sprint(nodeAddresses(n))}
		if c := watched.Readiness(n); c != nil {
			s.ready = c.Status
		}
		return s
	})
}

// nodes releases the blocks and requests of nodes that have given them up (Coil's design,
// "Garbage Collection").
type nodes struct {
	api         *api
	withholding *withholding
	// grace and downAfter are as in Options.
	grace, downAfter time.Duration

	mu       sync.Mutex           // guards liveness
	liveness map[string]*liveness // of nodes that have blocks and no Node
}

// reconcile keeps a node's addresses from pods, and releases what the node has given
// up. Its work does not grow with the cluster.
func (c *nodes) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	wait, err := c.withholding.observeNode(ctx, q.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	left, err := c.releaseAbandoned(ctx, q.Name)
	return reconcile.Result{RequeueAfter: queue.Sooner(wait, left)}, err
}

// releaseAbandoned releases what a node has if the node has given it up. Else it returns when
// to look again; zero: when something changes.
func (c *nodes) releaseAbandoned(ctx context.Context, name string) (wait time.Duration, err error) {
	n, err := objects.Get[corev1.Node](ctx, c.api.cached, client.ObjectKey{Name: name}, objects.Shared)
	if err != nil {
		return 0, err
	}
	if n != nil {
		if _, down := fenced(n, c.api.clock.Now(), c.downAfter); !down {
			c.forget(name)
			return 0, nil // nearly all nodes
		}
	}
	blocks, err := BlocksOf(ctx, c.api.cached, name)
	if err != nil {
		return 0, err
	}
	requests, err := c.api.requestsOf(ctx, name)
	if err != nil {
		return 0, err
	}
	if len(blocks)+len(requests) == 0 {
		c.forget(name)
		return 0, nil
	}
	if left := c.left(name, n, blocks, requests); left > 0 {
		return left, nil
	}
	if sure, err := c.confirm(ctx, name, n == nil); !sure || err != nil {
		return c.grace, err
	}
	return 0, c.release(ctx, n == nil, blocks, requests)
}

func (c *nodes) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.liveness, name)
}

// left is how long it is until a node has given up, or lost, its blocks. n is its Node; nil: it
// is missing.
func (c *nodes) left(name string, n *corev1.Node, blocks []v1alpha1.AddressBlock, requests []v1alpha1.BlockRequest) time.Duration {
	now := c.api.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if n != nil {
		delete(c.liveness, name)
		left, _ := fenced(n, now, c.downAfter)
		return left
	}
	s := c.liveness[name]
	if s == nil {
		s = &liveness{}
		c.liveness[name] = s
	}
	s.observe(now, blocks, requests)
	return s.left(now, c.grace)
}

// confirm asks the API server whether a node really is gone, or down: a release cannot be
// undone.
func (c *nodes) confirm(ctx context.Context, name string, gone bool) (bool, error) {
	n, err := objects.Get[corev1.Node](ctx, c.api.live, client.ObjectKey{Name: name})
	switch {
	case err != nil:
		return false, err
	case n == nil:
		return gone, nil
	case gone:
		return false, nil
	}
	left, down := fenced(n, c.api.clock.Now(), c.downAfter)
	return down && left <= 0, nil
}

// release releases a node's blocks, each only as it was read: a block stays if the node's daemon
// renews it at this moment.
func (c *nodes) release(ctx context.Context, gone bool, blocks []v1alpha1.AddressBlock, requests []v1alpha1.BlockRequest) error {
	why := "the Node is out of service"
	if gone {
		why = "the Node is gone, and its daemon is silent"
	}
	for i := range requests {
		if err := objects.Delete(ctx, c.api.cached, &requests[i]); err != nil {
			return err
		}
	}
	for i := range blocks {
		if err := c.releaseBlock(ctx, &blocks[i], why); err != nil {
			return err
		}
	}
	return nil
}

// releaseBlock takes one of two steps: a block is deleted, whose event brings its node back
// here, and then its finalizer is removed.
func (c *nodes) releaseBlock(ctx context.Context, b *v1alpha1.AddressBlock, why string) error {
	if b.DeletionTimestamp == nil {
		if err := objects.DeleteUnchanged(ctx, c.api.cached, b); err != nil {
			return err
		}
		return failpoint.Hit("operator.pool.release.deleted")
	}
	removed, err := objects.RemoveFinalizer(ctx, c.api.cached, b, v1alpha1.FinalizerBlock)
	if err != nil || !removed {
		return err
	}
	c.api.log.Warn("block released", "block", b.Name, "node", b.NodeName, "because", why)
	return failpoint.Hit("operator.pool.release.after")
}

// liveness is what this operator has seen of a node whose Node is missing. Of a time that another
// clock wrote only a change counts, since clocks differ.
type liveness struct {
	gone    time.Time            // since when the Node is missing
	alive   time.Time            // when the daemon was last seen to renew a block or make a request
	renewed map[string]time.Time // RenewTime by block, as last seen; nil: nothing was seen yet
	asked   map[types.UID]bool   // requests, as last seen
}

// observe takes a node's blocks and requests at now.
func (s *liveness) observe(now time.Time, blocks []v1alpha1.AddressBlock, requests []v1alpha1.BlockRequest) {
	first := s.renewed == nil
	if first {
		s.gone = now
	}
	renewed := make(map[string]time.Time, len(blocks))
	for i := range blocks {
		b := &blocks[i]
		var at time.Time
		if b.Status.RenewTime != nil {
			at = b.Status.RenewTime.Time
		}
		renewed[b.Name] = at
		was, known := s.renewed[b.Name]
		if !first && (!known && !at.IsZero() || known && !was.Equal(at)) {
			s.alive = now
		}
	}
	asked := make(map[types.UID]bool, len(requests))
	for i := range requests {
		uid := requests[i].UID
		asked[uid] = true
		if !first && !s.asked[uid] {
			s.alive = now
		}
	}
	s.renewed, s.asked = renewed, asked
}

// left is how long it is until the node has given up its blocks: it has once, for the grace
// period, the Node was missing and the daemon neither renewed a block nor made a request. Not
// above 0: it has.
func (s *liveness) left(now time.Time, grace time.Duration) time.Duration {
	since := s.gone
	if s.alive.After(since) {
		since = s.alive
	}
	return since.Add(grace).Sub(now)
}

// fenced is how long it is until a node that exists and is down loses its blocks, if the policy
// says so after some time; not known: it does not lose them. The node must have the taint by which
// an administrator confirms that it is shut down (Kubernetes documentation, "Non-graceful node
// shutdown handling").
func fenced(n *corev1.Node, now time.Time, after time.Duration) (left time.Duration, known bool) {
	if after <= 0 || !watched.OutOfService(n) {
		return 0, false
	}
	c := watched.Readiness(n)
	if c == nil || c.Status == corev1.ConditionTrue {
		return 0, false
	}
	return c.LastTransitionTime.Add(after).Sub(now), true
}
