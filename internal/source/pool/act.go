package pool

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/retry"
)

const (
	// watchDelay is how long the watch has to show what a request did before it is
	// made again.
	watchDelay = 2 * time.Second
	// housekeeping is how many requests other than those for blocks are under way
	// at a time.
	housekeeping = 4
)

// task is one action that is wanted: under way, or to be tried again.
type task struct {
	underWay bool
	unwanted bool // while under way: drop it then
	retry    retry.Backoff
}

// taskKey tells actions apart.
type taskKey struct {
	kind, name string
	uid        types.UID
}

func (a action) key() taskKey { return taskKey{a.kind, a.name, a.uid} }

// outcome is an action that was done.
type outcome struct {
	action
	err error
}

// loop asks the API server for what the ledger plans, each request beside the
// others, until ctx ends. Whatever pods wait for is asked for at once.
func (s *Source) loop(ctx context.Context) {
	tasks := map[taskKey]*task{}
	done := make(chan outcome)
	running := 0
	for ctx.Err() == nil {
		todo, next := s.pass()
		started, soon := s.start(ctx, tasks, todo, done)
		running += started
		var due <-chan time.Time
		if next = earlier(next, soon); !next.IsZero() {
			due = s.clock.After(next.Sub(s.clock.Now()))
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-due:
		case o := <-done:
			running--
			s.finish(tasks, o)
		}
	}
	for ; running > 0; running-- {
		<-done
	}
}

// pass lets time go by in the ledger and plans.
func (s *Source) pass() (todo []action, next time.Time) {
	s.mu.Lock()
	now := s.clock.Now()
	l := s.ledger
	l.expire(now)
	l.review(now)
	todo, next = l.plan(s.cfg.NodeName, now)
	l.serveAll(now)
	l.forget()
	next = earlier(next, l.nextExpiry())
	if l.uncommitted() {
		s.commit.Set()
	}
	latencies := l.latencies
	l.latencies = nil
	s.mu.Unlock()
	for _, t := range latencies {
		s.cfg.Observer.Supplied(t.pool, t.time)
	}
	return todo, next
}

// start starts what is wanted, not under way, and due. It tells when the next is.
func (s *Source) start(ctx context.Context, tasks map[taskKey]*task, todo []action, done chan<- outcome) (started int, next time.Time) {
	wanted := map[taskKey]bool{}
	busy := 0
	for _, a := range todo {
		wanted[a.key()] = true
	}
	for key, t := range tasks {
		if t.underWay && key.kind != createRequest {
			busy++
		}
		if t.unwanted = !wanted[key]; t.unwanted && !t.underWay {
			delete(tasks, key)
		}
	}
	now := s.clock.Now()
	for _, a := range todo {
		t, ok := tasks[a.key()]
		if !ok {
			t = &task{}
			tasks[a.key()] = t
		}
		switch {
		case t.underWay:
			continue
		case t.retry.Until.After(now):
			next = earlier(next, t.retry.Until)
			continue
		case a.kind != createRequest && busy >= housekeeping:
			continue // its turn comes when another is done
		case a.kind != createRequest:
			busy++
		}
		t.underWay = true
		started++
		go func() { done <- outcome{a, s.act(ctx, a)} }()
	}
	return started, next
}

// finish takes what became of an action.
func (s *Source) finish(tasks map[taskKey]*task, o outcome) {
	t, now := tasks[o.key()], s.clock.Now()
	t.underWay = false
	switch {
	case o.err == nil:
		t.retry = retry.Backoff{Until: now.Add(watchDelay)}
	case !kubeapi.Ended(o.err):
		s.log.Warn("will try again", "what", o.kind, "name", o.name, "pool", o.pool, "error", o.err)
		t.retry.Fail(now, retry.First, retry.Most)
	}
	if t.unwanted {
		delete(tasks, o.key())
	}
	if o.kind == createRequest && !kubeapi.Ended(o.err) {
		s.change(func(l *ledger, _ time.Time) { l.pool(o.pool).refused = o.err })
	}
}

// act makes one request.
func (s *Source) act(ctx context.Context, a action) error {
	begun := s.clock.Now()
	var err error
	switch a.kind {
	case createRequest:
		err = s.createRequest(ctx, a)
	case deleteRequest:
		err = failpoint.Around("pool.done", func() error { return ignoreGone(s.api.Delete(ctx, requestsResource, a.name, a.uid, "")) })
	case returnBlock:
		s.log.Info("returning an empty block", "block", a.name, "pool", a.pool)
		err = failpoint.Around("pool.return", func() error { return ignoreGone(s.api.Delete(ctx, blocksResource, a.name, a.uid, "")) })
	case freeBlock:
		err = failpoint.Around("pool.free", func() error { return s.freeBlock(ctx, a) })
	case lookForBlock:
		err = s.lookForBlock(ctx, a)
	}
	result := "success"
	if err != nil {
		result = "error"
	}
	s.cfg.Observer.Asked(a.kind, result, s.clock.Now().Sub(begun))
	return err
}

// ignoreGone is err, unless it says that the object is no more: one of another
// UID is another.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// createRequest asks for a block. One of the name that is there already is from an
// attempt whose reply was lost, or not in the watch yet, if it is this node's.
func (s *Source) createRequest(ctx context.Context, a action) error {
	o := &v1alpha1.BlockRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "BlockRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: a.name},
		Spec:       v1alpha1.BlockRequestSpec{NodeName: s.cfg.NodeName, PoolName: a.pool},
	}
	s.mu.Lock()
	node := s.ledger.node
	s.mu.Unlock()
	if !node.missing() {
		no := false
		o.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: s.cfg.NodeName, UID: node.uid, Controller: &no, BlockOwnerDeletion: &no,
		}}
	}
	return failpoint.Around("pool.request", func() error {
		err := s.api.Create(ctx, requestsResource, o, &v1alpha1.BlockRequest{})
		if apierrors.IsAlreadyExists(err) {
			return s.nameTaken(ctx, a.pool, a.name)
		}
		if err != nil {
			return fmt.Errorf("create BlockRequest %s: %w", a.name, err)
		}
		return nil
	})
}

// nameTaken has another name used in place of one that is there already, if that
// is a request of another node's.
func (s *Source) nameTaken(ctx context.Context, pool, name string) error {
	list := &v1alpha1.BlockRequestList{}
	err := s.api.Read(ctx, requestsResource, kubeapi.Only("metadata.name", name), list)
	if err != nil {
		return fmt.Errorf("look whose BlockRequest %s is: %w", name, err)
	}
	for i := range list.Items {
		if of := list.Items[i].Spec.NodeName; of != s.cfg.NodeName {
			s.change(func(l *ledger, _ time.Time) { l.avoid(pool, name, rand.Text()) })
			return fmt.Errorf("BlockRequest %s, a name that only this node uses, is another node's, %s: another name is used", name, of)
		}
	}
	return nil
}

// freeBlock removes the finalizer, if the object is still the one that was
// looked at.
func (s *Source) freeBlock(ctx context.Context, a action) error {
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
	err = s.api.Patch(ctx, types.MergePatchType, blocksResource, a.name, "", body, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the finalizer of AddressBlock %s: %w", a.name, err)
	}
	return nil
}

// lookForBlock finds out whether the block of a complete request is still
// there. If so the watch will show it; else nothing more comes of the request.
func (s *Source) lookForBlock(ctx context.Context, a action) error {
	o := &v1alpha1.AddressBlock{}
	err := s.api.Get(ctx, blocksResource, a.name, o)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read AddressBlock %s: %w", a.name, err)
	}
	if err == nil && o.NodeName == s.cfg.NodeName {
		return nil
	}
	s.change(func(l *ledger, _ time.Time) {
		for _, r := range l.requests {
			if r.uid == a.request {
				r.spent = true
			}
		}
	})
	return nil
}
