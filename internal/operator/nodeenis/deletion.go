package nodeenis

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/watched"
)

// An object that outlived its node is deleted (Cilium's AWS ENI allocator, "Node Termination"): the Node
// has been gone for a grace period, or the instance has and the Node is not ready. An object is never
// deleted while the daemon reports: a node that runs pods without a Node would lose its object, create
// another one, and lose that as well. If EC2 does not know the instance of a ready Node, spec.instanceID
// or the region is wrong, and the node is not gone.
//
// Deleting an object too early does not harm pods: the daemon continues with the addresses it has, the
// ENIs stay with the instance, and the daemon creates the object again.

// nodeEvents filters updates of Nodes down to changes that deleteIfGone or configure depend on.
func nodeEvents() builder.WatchesOption {
	type state struct {
		ready      bool
		uid        types.UID
		providerID string
		labels     string
	}
	return watched.NodeChanges(func(n *corev1.Node) state {
		return state{watched.Ready(n), n.UID, n.Spec.ProviderID, labels.FormatLabels(n.Labels)}
	})
}

// deleteIfGone deletes the object if its node has been gone for long enough. k is nil if the Node is
// missing.
func (c *Controller) deleteIfGone(ctx context.Context, n *node, k *corev1.Node) error {
	gone := k == nil
	now := c.now()
	n.mu.Lock()
	l := &n.state.liveness
	changed := !gone && watched.Readiness(k) != nil && l.setReady(watched.Ready(k))
	o, since := n.state.obj, l.goneSince(n.createdAt, gone, !gone && watched.Ready(k) && isOf(k, n.instanceID), now)
	at := time.Time{}
	if !since.IsZero() && o.DeletionTimestamp == nil {
		at = since.Add(c.o.Grace)
	}
	l.deleteAt = at
	n.mu.Unlock()
	if changed {
		c.fleet.CheckInstance(n.name)
	}
	if at.IsZero() || at.After(now) {
		return nil
	}
	return c.deleteObject(ctx, o, gone)
}

// isOf reports whether a Node belongs to an instance, as far as its provider ID tells.
func isOf(k *corev1.Node, instanceID string) bool {
	of := nodenetwork.InstanceOf(k.Spec.ProviderID)
	return of == "" || of == instanceID
}

// deleteObject deletes the object in the version that the decision was based on, after checking with the
// API server that the Node really is gone.
func (c *Controller) deleteObject(ctx context.Context, o *v1alpha1.NodeNetwork, nodeGone bool) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if nodeGone {
		n, err := objects.Get[corev1.Node](ctx, c.live, client.ObjectKey{Name: o.Name})
		if err != nil {
			return err
		}
		if n != nil {
			return fmt.Errorf("the cache lacks Node %s, which exists; looking again", o.Name)
		}
	}
	if err := objects.DeleteUnchanged(ctx, c.client, o); apierrors.IsConflict(err) {
		return nil // it was written meanwhile; the event follows
	} else if err != nil {
		return err
	}
	c.o.Logger.Info("NodeNetwork deleted: its node is gone", "node", o.Name, "instance", o.Spec.InstanceID, "nodeGone", nodeGone)
	return nil
}

// liveness is the evidence that a node still exists.
type liveness struct {
	reportedAt time.Time // when the daemon's last report was seen
	vanishedAt time.Time // since when EC2 has reported the instance as gone; zero if it exists
	nodeGoneAt time.Time // since when the Node has been missing; zero if it exists
	readiness  readiness
	deleteAt   time.Time // when the object is to be deleted if nothing changes; zero if never
}

// readiness is whether a Node was ready when last observed.
type readiness int

const (
	neverReady readiness = iota // never ready since it was created
	ready
	notReady
)

// setReady records whether the Node is ready, and reports whether it stopped being ready or is ready
// again. Its instance may have been stopped or started in between, which nothing else shows while the
// node needs no addresses.
func (l *liveness) setReady(is bool) (changed bool) {
	was := l.readiness
	switch {
	case is:
		l.readiness = ready
	case was == ready:
		l.readiness = notReady
	}
	return was != neverReady && was != l.readiness
}

// setVanished records whether EC2 reports the instance as gone, and reports whether that is new.
func (l *liveness) setVanished(is bool, now time.Time) (first bool) {
	switch {
	case !is:
		l.vanishedAt = time.Time{}
	case l.vanishedAt.IsZero():
		l.vanishedAt = now
		return true
	}
	return false
}

// goneSince returns since when the node, whose object was created at created, has shown no sign of life,
// or zero if it is alive.
func (l *liveness) goneSince(created time.Time, nodeGone, nodeReady bool, now time.Time) time.Time {
	switch {
	case !nodeGone:
		l.nodeGoneAt = time.Time{}
	case l.nodeGoneAt.IsZero():
		l.nodeGoneAt = now
	}
	var since time.Time
	switch {
	case nodeGone:
		since = l.nodeGoneAt
	case !l.vanishedAt.IsZero() && !nodeReady:
		since = l.vanishedAt
	default:
		return time.Time{}
	}
	for _, sign := range [...]time.Time{l.reportedAt, created} {
		if sign.After(since) {
			since = sign
		}
	}
	return since
}

// A node may delete and recreate its object as often as it likes, and each new object costs EC2 calls.
// Work for the first replacement starts immediately, as after a deletion by hand. Further ones are
// delayed, twice as long each time. The count is reset once an object has existed for some time.
const (
	firstPause = 2 * time.Second
	lastPause  = time.Minute
	// steady is how long after the last recreation the count is reset.
	steady = 5 * time.Minute
)

// recreation counts the recent recreations of one object name.
type recreation struct {
	uid   types.UID // of the last object
	again int       // number of replacements
	at    time.Time // when it was first seen
	from  time.Time // when work for it may begin
}

// next counts an object that was seen at now.
func (r recreation) next(uid types.UID, now time.Time) recreation {
	if r.uid == uid {
		return r
	}
	n := recreation{uid: uid, at: now, from: now}
	if r.uid == "" || now.Sub(r.at) >= steady {
		return n
	}
	n.again = r.again + 1
	if n.again > 1 {
		n.from = now.Add(min(lastPause, firstPause<<min(n.again-2, 10)))
	}
	return n
}

// recreations tracks the recreations of all names, including those of recently deleted objects.
type recreations struct {
	mu  sync.Mutex // guards all
	all map[string]recreation
}

func newRecreations() *recreations { return &recreations{all: map[string]recreation{}} }

// observe records that an object exists, and returns when work for it may begin.
func (r *recreations) observe(name string, uid types.UID, now time.Time) (from time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[name] = r.all[name].next(uid, now)
	return r.all[name].from
}

// forget drops the name of a deleted object if its count would be reset anyway. Otherwise it returns how
// long that takes.
func (r *recreations) forget(name string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.all[name]
	if wait := last.at.Add(steady).Sub(now); ok && wait > 0 {
		return wait
	}
	delete(r.all, name)
	return 0
}

// heldForRecreation reports whether work for a node's object is delayed because it was recreated too
// often.
func (c *Controller) heldForRecreation(n *node) bool {
	now := c.now()
	from := c.recreations.observe(n.name, n.uid, now)
	held := from.After(now)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state.eligibility.heldUntil = time.Time{}
	if held {
		n.state.eligibility.heldUntil = from
	}
	return held
}
