package addresspool

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
)

// deleteInterval is how often a pool being deleted is reconciled, in addition to the reconciles
// triggered by its blocks.
const deleteInterval = 10 * time.Second

// pools reconciles AddressPools. It has a single worker and therefore no lock.
type pools struct {
	api         *api
	queues      *queues
	allocator   *allocator
	quotas      *quotas
	withholding *withholding
	acceptance  *acceptance

	reported map[string]time.Time // when a pool's status was last written
}

// reconcile accepts a pool's subnets, passes them to the allocator and writes the pool's status,
// or drains a pool that is being deleted.
func (p *pools) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	o, err := objects.Get[v1alpha1.AddressPool](ctx, p.api.cached, q.NamespacedName)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case o == nil:
		return reconcile.Result{}, p.gone(ctx, q.Name)
	case o.DeletionTimestamp != nil:
		return p.drain(ctx, o)
	}
	if added, err := objects.AddFinalizer(ctx, p.api.cached, o, v1alpha1.FinalizerPool); err != nil {
		return reconcile.Result{}, err
	} else if added {
		return reconcile.Result{}, failpoint.Hit("operator.pool.finalizer.after") // the update event queues the pool again
	}
	if err := p.withholding.observePool(ctx, o.Name, reservedRanges(o)); err != nil {
		return reconcile.Result{}, err
	}
	o, s, err := p.acceptance.accept(ctx, o)
	if err != nil || o == nil {
		return reconcile.Result{}, err
	}
	p.open(o, s)
	wait, err := p.report(ctx, o, s.why)
	if s.why != nil {
		wait = queue.Sooner(wait, max(s.until.Sub(p.api.clock.Now()), time.Millisecond))
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// open passes the usable subnets of a pool to the allocator. No block is allocated while there
// are none.
func (p *pools) open(o *v1alpha1.AddressPool, s *poolState) {
	l, err := layout(o, s.verified)
	if err != nil { // the status was written by somebody else
		s.refuse(o, &refusal{v1alpha1.ReasonPoolInvalid, "spec." + err.Error()}, p.api.clock.Now().Add(recheckRefused))
	}
	var closed *refusal
	if l.Blocks() == 0 {
		closed = s.why
	}
	p.queues.requests.Add(p.allocator.setPool(o, l, closed)...)
	if s.seen != o.Generation { // the spec determines quotas
		s.seen = o.Generation
		p.queues.requests.Add(p.quotas.refusedFor(func(_, pool string) bool { return pool == o.Name })...)
	}
}

// drain closes a pool and deletes its blocks, which nodes then drain. The pool's finalizer is
// removed after the last block.
func (p *pools) drain(ctx context.Context, o *v1alpha1.AddressPool) (reconcile.Result, error) {
	why := &refusal{v1alpha1.ReasonPoolDeleted, fmt.Sprintf("AddressPool %s is being deleted", o.Name)}
	s := p.acceptance.stateOf(o)
	s.verified = accepted(o)
	s.refuse(o, why, time.Time{})
	l, _ := layout(o, s.verified) // only for the counts
	p.queues.requests.Add(p.allocator.setPool(o, l, why)...)

	// From here on no further block is created. One whose creation has started is either listed below
	// or counted as in creation.
	making := p.allocator.counts(o.Name).making
	left, err := p.deleteBlocks(ctx, o.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if making == 0 && left == 0 {
		cut, err := p.acceptance.hasBlocks(ctx, o.Name, 0)
		if err != nil {
			return reconcile.Result{}, err
		}
		if !cut {
			return reconcile.Result{}, p.removeFinalizer(ctx, o)
		}
	}
	wait, err := p.report(ctx, o, why)
	return reconcile.Result{RequeueAfter: queue.Sooner(wait, deleteInterval)}, err
}

func (p *pools) removeFinalizer(ctx context.Context, o *v1alpha1.AddressPool) error {
	if err := failpoint.Hit("operator.pool.end.before"); err != nil {
		return err
	}
	_, err := objects.RemoveFinalizer(ctx, p.api.cached, o, v1alpha1.FinalizerPool)
	return err
}

// deleteBlocks deletes all blocks of a pool, and returns how many still exist.
func (p *pools) deleteBlocks(ctx context.Context, name string) (left int, err error) {
	blocks, err := objects.List[v1alpha1.AddressBlockList](ctx, p.api.cached, client.MatchingFields{byPool: name})
	if err != nil {
		return 0, err
	}
	var group errgroup.Group
	group.SetLimit(requestWorkers)
	for i := range blocks.Items {
		if b := &blocks.Items[i]; b.DeletionTimestamp == nil {
			group.Go(func() error { return objects.Delete(ctx, p.api.cached, b) })
		}
	}
	return len(blocks.Items), group.Wait()
}

// gone forgets a deleted pool. Blocks outlive it only if its finalizer was removed by hand: they
// are deleted, and nodes drain them.
func (p *pools) gone(ctx context.Context, name string) error {
	p.queues.requests.Add(p.allocator.removePool(name)...)
	if p.acceptance.forget(name) {
		delete(p.reported, name)
	}
	if err := p.withholding.observePool(ctx, name, nil); err != nil {
		return err
	}
	blocks, err := objects.List[v1alpha1.AddressBlockList](ctx, p.api.cached, client.MatchingFields{byPool: name}, client.Limit(1))
	if err != nil || len(blocks.Items) == 0 {
		return err
	}
	o, err := objects.Get[v1alpha1.AddressPool](ctx, p.api.live, client.ObjectKey{Name: name})
	if err != nil || o != nil {
		return err // it was recreated, and an event follows
	}
	_, err = p.deleteBlocks(ctx, name)
	return err
}
