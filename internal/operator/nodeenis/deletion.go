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

// An object that outlived its node is deleted (Cilium's AWS ENI allocator, "Node Termination"):
// the Node has been gone for a while, or the instance has and the Node is not ready. An object
// is never deleted while the daemon reports: a node that runs pods without a Node would lose its
// object, create another, and lose that. If EC2 does not know the instance of a Node that is
// ready, spec.instanceID or the region is wrong, and the node is not gone.
//
// Deleting too early is harmless to pods: the daemon continues with the addresses that it has,
// the ENIs stay with the instance, and the daemon creates the object again.

// nodeEvents passes on changes of Nodes only where deleteIfGone or configure use what changed.
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

// deleteIfGone deletes the object if its node has been gone for long enough. k is the Node; nil: it
// is missing.
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

// isOf reports whether a Node is of an instance, as far as its provider ID says.
func isOf(k *corev1.Node, instanceID string) bool {
	of := nodenetwork.InstanceOf(k.Spec.ProviderID)
	return of == "" || of == instanceID
}

// deleteObject deletes the object in the state that was decided on, after asking the API server
// whether the Node really is gone.
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
		return nil // somebody wrote to it, and its event comes
	} else if err != nil {
		return err
	}
	c.o.Logger.Info("NodeNetwork deleted: its node is gone", "node", o.Name, "instance", o.Spec.InstanceID, "nodeGone", nodeGone)
	return nil
}

// liveness has the evidence that a node still exists.
type liveness struct {
	reportedAt time.Time // when the daemon's last report was seen
	vanishedAt time.Time // since when EC2 says that the instance is gone; zero: it does not
	nodeGoneAt time.Time // since when the Node is missing; zero: it exists
	readiness  readiness
	deleteAt   time.Time // when the object is deleted, if nothing changes; zero: it stays
}

// readiness is whether a Node was ready when it was last seen.
type readiness int

const (
	neverReady readiness = iota // not since it was created
	ready
	notReady
)

// setReady takes whether the Node is ready, and reports whether one that was ready is not
// any more, or is again. Its instance may have been stopped or started then, which nothing else
// shows while the node needs no addresses.
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

// setVanished takes whether EC2 says that the instance is gone, and reports whether that is new.
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

// goneSince is since when the node, whose object was created at created, has
// given no sign of life; zero: it is alive.
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

// A node may delete its object and create it again as often as it likes, and each new one costs
// calls to EC2. The work for the first one that replaces another begins at once, as after a
// person deleted it. Further ones wait, twice as long each time. The count starts over once an
// object has stayed for a while.
const (
	firstPause = 2 * time.Second
	lastPause  = time.Minute
	// steady is how long after the last recreation the count starts over.
	steady = 5 * time.Minute
)

// recreation is how often the object of one name was recreated lately.
type recreation struct {
	uid   types.UID // of the last one
	again int       // how often it replaced another
	at    time.Time // when it was seen first
	from  time.Time // when the work for it begins
}

// next counts an object that exists at now.
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

// recreations are those of all names, also of objects that went lately.
type recreations struct {
	mu  sync.Mutex // guards all
	all map[string]recreation
}

func newRecreations() *recreations { return &recreations{all: map[string]recreation{}} }

// observe takes that an object of a name exists, and returns when the work for it may begin.
func (r *recreations) observe(name string, uid types.UID, now time.Time) (from time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[name] = r.all[name].next(uid, now)
	return r.all[name].from
}

// forget drops a name whose object is gone, once its next object would start over. Else it
// returns how long that takes.
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

// heldForRecreation reports whether the work for a node's object has to wait, as its name was
// recreated too often lately.
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
