package pool

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/retry"
)

// housekeeping bounds the requests in flight other than those for blocks.
const housekeeping = 4

// actionKey tells actions apart.
type actionKey struct {
	kind, name string
	uid        types.UID
}

func (a action) key() actionKey { return actionKey{a.kind, a.name, a.uid} }

// outcome is an action that was done.
type outcome struct {
	action
	err error
}

// requester asks the API server for what the holdings plan, each request beside the others. Its fields belong to
// the goroutine of run.
type requester struct {
	state    *guarded
	api      *kubeapi.Client
	nodeName string
	observer Observer
	log      *slog.Logger
	actions  retry.InFlight[actionKey, struct{}]
	done     chan outcome
}

func newRequester(state *guarded, api *kubeapi.Client, cfg Config) *requester {
	return &requester{
		state: state, api: api, nodeName: cfg.NodeName, observer: cfg.Observer, log: cfg.Logger,
		actions: retry.NewInFlight[actionKey, struct{}](), done: make(chan outcome),
	}
}

// run works until ctx ends. What pods wait for is requested at once.
func (r *requester) run(ctx context.Context) {
	for ctx.Err() == nil {
		todo, next := r.pass()
		var due <-chan time.Time
		if next = retry.Earliest(time.Time{}, next, r.start(ctx, todo)); !next.IsZero() {
			due = r.state.clock.After(next.Sub(r.state.clock.Now()))
		}
		select {
		case <-ctx.Done():
		case <-r.state.wake:
		case <-due:
		case o := <-r.done:
			r.end(o)
		}
	}
	for running := r.actions.Running(nil); running > 0; running-- {
		<-r.done
	}
}

// pass lets time go by in the holdings, and plans.
func (r *requester) pass() (todo []action, next time.Time) {
	var latencies []latency
	r.state.with(func(n *holdings, now time.Time) {
		n.expire(now)
		n.review(now)
		todo, next = n.plan(r.nodeName, now)
		n.serveAll(now)
		n.forget()
		next = retry.Earliest(time.Time{}, next, n.pools.nextExpiry())
		if n.blocks.uncommitted() {
			r.state.commit.Set()
		}
		latencies, n.requests.latencies = n.requests.latencies, nil
	})
	for _, t := range latencies {
		r.observer.Supplied(t.pool, t.time)
	}
	return todo, next
}

// start starts the actions that are not in flight and do not back off. It returns when the next may be started.
func (r *requester) start(ctx context.Context, todo []action) (next time.Time) {
	desired := map[actionKey]bool{}
	for _, a := range todo {
		desired[a.key()] = true
	}
	r.actions.Retain(func(k actionKey) bool { return desired[k] })
	now, busy := r.state.clock.Now(), r.actions.Running(func(k actionKey) bool { return k.kind != createRequest })
	for _, a := range todo {
		limited := a.kind != createRequest
		if limited && busy >= housekeeping && !r.actions.Of(a.key()).Until.After(now) {
			continue // until another has ended
		}
		started, at := r.actions.Start(a.key(), now)
		if started == nil {
			next = retry.Earliest(time.Time{}, next, at)
			continue
		}
		if limited {
			busy++
		}
		go func() { r.done <- outcome{a, r.act(ctx, a)} }()
	}
	return next
}

// end notes the outcome of an action.
func (r *requester) end(o outcome) {
	w, now := r.actions.End(o.key()), r.state.clock.Now()
	switch {
	case o.err == nil:
		w.Backoff = retry.Backoff{Until: now.Add(kubeapi.WatchDelay)}
	case !kubeapi.Cancelled(o.err):
		r.log.Warn("request to the API server failed, will try again", "what", o.kind, "name", o.name, "pool", o.pool, "err", o.err)
		w.Fail(now, retry.First, retry.Most)
	}
	if o.kind == createRequest && !kubeapi.Cancelled(o.err) {
		r.state.change(func(n *holdings, _ time.Time) { n.pools.get(o.pool).refused = o.err })
	}
}

// act makes one request.
func (r *requester) act(ctx context.Context, a action) error {
	started := r.state.clock.Now()
	var err error
	switch a.kind {
	case createRequest:
		err = r.createRequest(ctx, a)
	case deleteRequest:
		err = failpoint.Around("pool.done", func() error { return ignoreGone(r.api.Delete(ctx, requestsResource, a.name, a.uid, "")) })
	case returnBlock:
		r.log.Info("returning an empty block", "block", a.name, "pool", a.pool)
		err = failpoint.Around("pool.return", func() error { return ignoreGone(r.api.Delete(ctx, blocksResource, a.name, a.uid, "")) })
	case freeBlock:
		err = failpoint.Around("pool.free", func() error { return r.freeBlock(ctx, a) })
	case lookForBlock:
		err = r.lookForBlock(ctx, a)
	}
	r.observer.Asked(a.kind, metric.Result(err), r.state.clock.Now().Sub(started))
	return err
}

// ignoreGone returns err unless it says that the object with the expected UID no longer exists.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// createRequest requests a block. If the name exists and is this node's, an earlier reply was lost or the watch has not
// shown the request yet.
func (r *requester) createRequest(ctx context.Context, a action) error {
	o := &v1alpha1.BlockRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "BlockRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: a.name},
		Spec:       v1alpha1.BlockRequestSpec{NodeName: r.nodeName, PoolName: a.pool},
	}
	var node types.UID
	r.state.with(func(n *holdings, _ time.Time) { node = n.node })
	if node != "" {
		no := false
		o.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: r.nodeName, UID: node, Controller: &no, BlockOwnerDeletion: &no,
		}}
	}
	return failpoint.Around("pool.request", func() error {
		err := r.api.Create(ctx, requestsResource, o, &v1alpha1.BlockRequest{})
		if apierrors.IsAlreadyExists(err) {
			return r.nameTaken(ctx, a.pool, a.name)
		}
		if err != nil {
			return fmt.Errorf("create BlockRequest %s: %w", a.name, err)
		}
		return nil
	})
}

// nameTaken replaces a name that exists, if it is the name of another node's request.
func (r *requester) nameTaken(ctx context.Context, pool, name string) error {
	list := &v1alpha1.BlockRequestList{}
	err := r.api.Read(ctx, requestsResource, kubeapi.FieldEquals("metadata.name", name), list)
	if err != nil {
		return fmt.Errorf("read the owner of BlockRequest %s: %w", name, err)
	}
	for i := range list.Items {
		if of := list.Items[i].Spec.NodeName; of != r.nodeName {
			r.state.change(func(n *holdings, _ time.Time) { n.requests.avoid(pool, name, rand.Text()) })
			return fmt.Errorf("BlockRequest %s, whose name is reserved for this node, is node %s's: using another name", name, of)
		}
	}
	return nil
}

// freeBlock removes the finalizer if the object has not changed.
func (r *requester) freeBlock(ctx context.Context, a action) error {
	var patch struct {
		Metadata struct {
			UID             types.UID `json:"uid"`
			ResourceVersion string    `json:"resourceVersion"`
			Finalizers      []string  `json:"finalizers"`
		} `json:"metadata"`
	}
	patch.Metadata.UID, patch.Metadata.ResourceVersion = a.uid, a.block.version
	patch.Metadata.Finalizers = slices.DeleteFunc(slices.Clone(a.block.finalizers), func(f string) bool { return f == v1alpha1.FinalizerBlock })
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	err = r.api.Patch(ctx, types.MergePatchType, blocksResource, a.name, "", body, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the finalizer of AddressBlock %s: %w", a.name, err)
	}
	return nil
}

// lookForBlock finds out whether the block of a complete request still exists. If so the watch will show it; otherwise the
// request is spent.
func (r *requester) lookForBlock(ctx context.Context, a action) error {
	o := &v1alpha1.AddressBlock{}
	err := r.api.Get(ctx, blocksResource, a.name, o)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read AddressBlock %s: %w", a.name, err)
	}
	if err == nil && o.NodeName == r.nodeName {
		return nil
	}
	r.state.change(func(n *holdings, _ time.Time) {
		for _, q := range n.requests.byName {
			if q.uid == a.request {
				q.spent = true
			}
		}
	})
	return nil
}
