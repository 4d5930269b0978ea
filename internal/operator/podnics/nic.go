package podnics

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

const (
	// placeAgain is how often a NIC looks whether its node has a place for it.
	placeAgain = 2 * time.Second
	// lasts is how long a call may be under way before the NIC's node is told of it.
	lasts = 2 * time.Second
)

// reconcileNIC does the next step for a PodNIC: at most one write of it, or one call about
// its port, whose answer has it reconciled again.
func (c *Controller) reconcileNIC(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	if c.book.isMaking(q.NamespacedName) {
		return reconcile.Result{}, nil // it is reconciled once that is answered
	}
	o := &v1alpha1.PodNIC{}
	err := c.client.Get(ctx, q.NamespacedName, o)
	if apierrors.IsNotFound(err) {
		if uid, known := c.book.forget(q.NamespacedName); known {
			c.pool.Forget(uid)
		}
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read PodNIC %s from the cache: %w", q.NamespacedName, err)
	}
	n, ready := c.remember(o)
	if n.busy {
		return c.during(ctx, o, n)
	}
	if !ready {
		return reconcile.Result{}, nil // its events come
	}
	s, err := c.look(ctx, o, n)
	if errors.Is(err, errTrails) {
		return reconcile.Result{RequeueAfter: queue.CacheLag}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	c.noteIdle(s)
	c.noteWaits(s)
	c.noteWarm(s)
	defer c.book.passOn(o.UID)
	return c.step(ctx, s, n)
}

// remember is what is known of a NIC. It is not ready while a call about it is under way,
// or the cache shows what this process has replaced.
func (c *Controller) remember(o *v1alpha1.PodNIC) (known nic, ready bool) {
	kept := controllerutil.ContainsFinalizer(o, v1alpha1.FinalizerPort)
	c.book.with(o, kept, func(n *nic) {
		if n.busy || n.replaced == o.ResourceVersion {
			known = *n
			return
		}
		ready = true
		n.have.Kept = kept
		if n.have.Recorded != o.Status.PortID { // another operator wrote it
			n.have = nicplan.Restored(kept, o.Status.PortID)
		}
		known = *n
	})
	return known, ready
}

// noteIdle notes since when no pod that lives has a NIC.
func (c *Controller) noteIdle(s *scene) {
	idle := s.pod == nil || s.now.pod.UID != "" && s.now.pod.UID != string(s.pod.UID)
	c.book.edit(s.o.UID, func(n *nic) {
		switch {
		case !idle:
			n.idle = time.Time{}
		case n.idle.IsZero():
			n.idle = c.now()
		}
	})
}

// step does the next step.
func (c *Controller) step(ctx context.Context, s *scene, n nic) (reconcile.Result, error) {
	if s.shut != nil && !s.want.Over && !n.have.Kept {
		return c.rest(ctx, s, n, nicplan.Step{}, 0) // nothing is begun for a VPC that may never be
	}
	if s.isClaimed() && !s.want.Over && n.have.Kept {
		return reconcile.Result{}, c.writeStatus(ctx, s, n, nicplan.Step{}) // it is that pod's before it is bound for it
	}
	next := nicplan.Next(s.want, n.have)
	switch next.Kind {
	case nicplan.Keep:
		return reconcile.Result{}, c.keep(ctx, s.o)
	case nicplan.Record:
		return reconcile.Result{}, failpoint.Around("operator.port.record", func() error { return c.writeStatus(ctx, s, n, next) })
	case nicplan.Forget:
		return reconcile.Result{}, failpoint.Around("operator.port.forget", func() error { return c.release(ctx, s.o) })
	case nicplan.Rename:
		c.book.edit(s.o.UID, func(n *nic) { n.try, n.have = n.try+1, n.have.Renamed() })
		return reconcile.Result{RequeueAfter: time.Nanosecond}, nil
	case nicplan.Impossible:
		return c.impossible(ctx, s, n, next)
	case nicplan.Rest:
		wait := time.Duration(0)
		if s.full {
			wait = placeAgain
		}
		return c.rest(ctx, s, n, next, wait)
	}
	switch cools := c.cools(s, next); {
	case s.shut != nil:
		return c.rest(ctx, s, n, next, 0) // until it opens
	case s.refuse != nil && next.Takes(n.have.Recorded):
		return c.rest(ctx, s, n, next, vpcport.PolicyOf(vpcport.Invalid).Last)
	case cools > 0:
		return c.rest(ctx, s, n, next, cools)
	case next.Kind == nicplan.Create:
		return c.create(ctx, s, n, next)
	}
	return c.call(ctx, s, n, next)
}

// cools is how long a port that nobody needs any more is kept yet.
func (c *Controller) cools(s *scene, next nicplan.Step) time.Duration {
	if s.shut != nil || !s.want.Over || next.Kind != nicplan.Delete || next.Port != s.o.Status.PortID {
		return 0
	}
	until := coolUntil(s.o.DeletionTimestamp.Time, s.o.Status.Node, next.Port, c.o.UnplugGrace, s.opened.Provider.Traits().Cooling)
	return until.Sub(c.now())
}

// create has a port made, unless its pod's node is waited for.
func (c *Controller) create(ctx context.Context, s *scene, n nic, next nicplan.Step) (reconcile.Result, error) {
	if s.want.Host == "" && s.opened.Provider.Traits().NeedsHost {
		return c.rest(ctx, s, n, next, 0) // until its pod has a node
	}
	if c.take(ctx, s) {
		return reconcile.Result{RequeueAfter: time.Nanosecond}, nil
	}
	if wait := c.early(s); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil // without a write: its pod's event comes before
	}
	return c.call(ctx, s, n, next)
}

// call has a call made, unless it is to be waited with.
func (c *Controller) call(ctx context.Context, s *scene, n nic, next nicplan.Step) (reconcile.Result, error) {
	now := c.now()
	until := n.failed.until
	if n.edited(s.want) {
		until = time.Time{}
	}
	if next.Kind == nicplan.Poll || next.Kind == nicplan.Look && n.looks > 0 {
		until = later(until, n.next)
	}
	if wait := until.Sub(now); wait > 0 {
		return c.rest(ctx, s, n, next, wait)
	}
	if next.Kind == nicplan.Poll {
		if wrote, err := c.writeIfOther(ctx, s, n, next); wrote || err != nil {
			return reconcile.Result{}, err // what a node waits for comes first
		}
	}
	if next.Takes(n.have.Recorded) && !c.enter(ctx, s) {
		return c.rest(ctx, s, n, next, c.book.settles(now))
	}
	heldUp, ok := c.book.pass(s.o.UID, s.want, next.Kind)
	if !ok {
		c.book.leave(s.o.UID)
		if n.failed.message == "" {
			n.failed = heldUp // as others met it
		}
		return c.rest(ctx, s, n, next, max(heldUp.until.Sub(now), time.Millisecond))
	}
	c.desks.submit(s.o.Spec.VPC, s.opened.Provider, job{uid: s.o.UID, step: next, want: s.want, have: n.have})
	return reconcile.Result{RequeueAfter: lasts}, nil // as a call may that takes long
}

// during is what is done for a NIC about which a call is under way. If that lasts, its node
// is told: by that the daemon there finds it, and can say what a pod waits for. Else the
// answer brings a write that says all.
func (c *Controller) during(ctx context.Context, o *v1alpha1.PodNIC, n nic) (reconcile.Result, error) {
	if n.replaced == o.ResourceVersion {
		return reconcile.Result{}, nil // its events come
	}
	if left := lasts - c.now().Sub(n.called); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil // as the queue keeps the sooner of two moments, and this is it
	}
	s, err := c.look(ctx, o, n)
	if errors.Is(err, errTrails) {
		return reconcile.Result{RequeueAfter: queue.CacheLag}, nil
	}
	if err != nil || s.next.node == s.now.node || s.held {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	_, err = c.writeIfOther(ctx, s, n, nicplan.Step{})
	return reconcile.Result{}, err
}

// edited tells whether something else is wanted by now than what failed: nobody need wait
// for what somebody was to change, or for what is not needed any more.
func (n *nic) edited(w nicplan.Want) bool {
	if w.Over != n.asked.Over {
		return true
	}
	return vpcport.PolicyOf(n.failed.class).Edit && !reflect.DeepEqual(w, n.asked)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// rest writes the status if it is another, and looks again after a wait, or when a node's
// hold is over; 0: when something changes.
func (c *Controller) rest(ctx context.Context, s *scene, n nic, next nicplan.Step, wait time.Duration) (reconcile.Result, error) {
	if s.held && !s.until.IsZero() {
		if left := max(s.until.Sub(c.now()), time.Millisecond); wait == 0 || left < wait {
			wait = left
		}
	}
	_, err := c.writeIfOther(ctx, s, n, next)
	return reconcile.Result{RequeueAfter: wait}, err
}

// impossible is a step that somebody has to change something for: it is looked at again
// now and then, whether it was.
func (c *Controller) impossible(ctx context.Context, s *scene, n nic, next nicplan.Step) (reconcile.Result, error) {
	now := c.now()
	why := c.explain(ctx, next.Why, n.have.Port)
	if n.failed.message != why || !now.Before(n.failed.until) {
		again := n.failed.message == why
		c.book.edit(s.o.UID, func(m *nic) {
			if again {
				m.have.Looked, m.looks = false, 0
			}
			m.failed.fail(now, next.Class, errors.New(why))
			m.asked = s.want
			m.failed.until = now.Add(retry.Delay(vpcport.PolicyOf(next.Class).First+time.Second, vpcport.PolicyOf(next.Class).Last, m.failed.times-1))
			n = *m
		})
		if again {
			return reconcile.Result{RequeueAfter: time.Nanosecond}, nil
		}
	}
	return c.rest(ctx, s, n, next, max(n.failed.until.Sub(now), time.Millisecond))
}

// explain names the PodNIC that has a port, if one of this cluster has.
func (c *Controller) explain(ctx context.Context, why string, p *vpcport.Port) string {
	if p == nil {
		return why
	}
	uid, ours := vpcport.DeviceUID(c.o.Cluster, p.Device)
	if !ours {
		return why
	}
	list := &v1alpha1.PodNICList{}
	if err := c.client.List(ctx, list, client.MatchingFields{byUID: uid}, client.UnsafeDisableDeepCopy); err != nil || len(list.Items) == 0 {
		return why
	}
	return fmt.Sprintf("port %s is in use by PodNIC %s/%s", p.ID, list.Items[0].Namespace, list.Items[0].Name)
}

// keep gives a PodNIC the finalizer.
func (c *Controller) keep(ctx context.Context, o *v1alpha1.PodNIC) error {
	before := o.DeepCopy()
	controllerutil.AddFinalizer(o, v1alpha1.FinalizerPort)
	if err := c.client.Patch(ctx, o, ifUnchanged(before), client.FieldOwner(v1alpha1.OwnerOperator)); err != nil {
		return fmt.Errorf("give PodNIC %s/%s its finalizer: %w", o.Namespace, o.Name, err)
	}
	c.book.edit(o.UID, func(n *nic) {
		n.replaced, n.have.Kept, n.have.Looked = before.ResourceVersion, true, o.Spec.PortID == "" && o.Status.PortID == ""
	})
	return failpoint.Hit("operator.port.keep.after")
}

// release takes the finalizer off: nothing of the PodNIC is left at the provider.
func (c *Controller) release(ctx context.Context, o *v1alpha1.PodNIC) error {
	before := o.DeepCopy()
	controllerutil.RemoveFinalizer(o, v1alpha1.FinalizerPort)
	err := c.client.Patch(ctx, o, ifUnchanged(before), client.FieldOwner(v1alpha1.OwnerOperator))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("take the finalizer off PodNIC %s/%s: %w", o.Namespace, o.Name, err)
	}
	c.book.edit(o.UID, func(n *nic) { n.replaced = before.ResourceVersion })
	return nil
}

// ifUnchanged is a patch that is refused if the object is another than before.
func ifUnchanged(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// writeIfOther writes the status if it is to be another, and tells whether it did.
func (c *Controller) writeIfOther(ctx context.Context, s *scene, n nic, next nicplan.Step) (bool, error) {
	want := statusOf(s, n, next, metav1.NewTime(c.now()))
	if equality.Semantic.DeepEqual(want, s.o.Status) {
		return false, nil
	}
	return true, c.writeStatus(ctx, s, n, next)
}

// writeStatus writes what has become of a PodNIC, and tells its pod what is wrong.
func (c *Controller) writeStatus(ctx context.Context, s *scene, n nic, next nicplan.Step) error {
	before := s.o.DeepCopy()
	after := s.o.DeepCopy()
	after.Status = statusOf(s, n, next, metav1.NewTime(c.now()))
	if next.Kind == nicplan.Record {
		after.Status.PortID = next.Port
	}
	err := c.client.Status().Patch(ctx, after, ifUnchanged(before), client.FieldOwner(v1alpha1.OwnerOperator))
	if apierrors.IsNotFound(err) {
		return nil // its event comes
	}
	if err != nil {
		return fmt.Errorf("write the status of PodNIC %s/%s: %w", s.o.Namespace, s.o.Name, err)
	}
	c.book.edit(s.o.UID, func(n *nic) {
		if after.ResourceVersion != before.ResourceVersion {
			n.replaced = before.ResourceVersion
		}
		n.have.Recorded = after.Status.PortID
		if next.Kind == nicplan.Record {
			n.lost = ""
		}
	})
	c.report(s, before.Status, after.Status)
	return nil
}

// report tells of what a status says that it did not before: the pod by an Event, the
// log, the metrics.
func (c *Controller) report(s *scene, before, after v1alpha1.PodNICStatus) {
	name := s.o.Namespace + "/" + s.o.Name
	if s.pod != nil {
		var wrong error
		reason := ""
		for _, k := range after.Conditions {
			if k.Status == metav1.ConditionFalse && wrong == nil && toldTo(s.pod, k) {
				wrong, reason = fmt.Errorf("NIC %s: %s", s.next.name, k.Message), k.Reason
			}
		}
		c.warn(s.pod, "nic "+s.next.name, reason, wrong)
		if isBound(after) && !isBound(before) && after.PortID != "" {
			if starts(s.pod) {
				c.o.Metrics.observe(c.o.Metrics.bound, s.o.Spec.VPC, age(s.pod, c.now()))
			}
			c.o.Logger.Debug("port bound", "podnic", name, "port", after.PortID, "host", after.Host, "pod", s.pod.Name)
		}
	}
	if before.PortID != after.PortID {
		c.o.Logger.Info("port of a NIC", "podnic", name, "vpc", s.o.Spec.VPC, "port", after.PortID, "made", after.Made, "before", before.PortID)
	}
}

// toldTo tells whether a pod gets an Event of a condition that is not true. Of what a node
// cannot plug while the pod starts, the ADD that fails tells.
func toldTo(p *corev1.Pod, k metav1.Condition) bool {
	if k.Type == v1alpha1.ConditionPlugged {
		return k.Reason != reasonUnplugged && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil
	}
	return k.Reason != reasonUnscheduled
}

// answered takes in what came of a call, and has the NIC reconciled, and those that it
// held up.
func (c *Controller) answered(j job, a answer) {
	now := c.now()
	kind := j.step.Kind
	err := a.err
	if err == nil && a.port != nil && a.port.Binding.Result == vpcport.BindingFailed && a.port.Host != "" {
		err = &bindingFailed{a.port.Host, a.port.Binding.Why}
	}
	c.o.Metrics.count(kind, a.err)
	class := vpcport.ClassOf(a.err)
	short := kind == nicplan.Create && (class == vpcport.SubnetFull || class == vpcport.OverQuota)
	vpc := ""
	var free []types.NamespacedName
	key, ok := c.book.edit(j.uid, func(n *nic) {
		free = c.book.settled(j.uid, n, j.want, kind, err)
		had := n.have.Port
		switch {
		case a.err != nil:
			n.have = n.have.Replied(j.step, nil, a.err)
		case kind == nicplan.Look:
			n.have = n.have.Seen(j.want, a.ports, c.book.late(n, a.began))
		case kind == nicplan.Poll:
			if had == nil || a.port.Revision >= had.Revision { // listings may trail
				n.have.Port = a.port
			}
		default:
			n.have = n.have.Replied(j.step, a.port, nil)
		}
		n.learn(j, a, now)
		vpc = n.vpc
		if kind == nicplan.Delete && a.err == nil {
			free = append(free, c.book.room(n.vpc)...)
		}
	})
	if !ok {
		c.book.callEnded(j.uid)
		return // it is gone; what the call made, the sweep finds
	}
	if short {
		c.pool.Yield(vpc)
	}
	c.nics.AddObject(key, 0)
	for _, k := range free {
		c.nics.AddObject(k, 0)
	}
}

// bindingFailed is the error of a port that could not be bound, which is none of a call.
type bindingFailed struct{ host, why string }

func (e *bindingFailed) Error() string {
	if e.why != "" {
		return e.why
	}
	return fmt.Sprintf("the provider could not bind the port at host %s: does its agent there live, and is that the host's name to it?", e.host)
}

// Unwrap gives it the class of what is tried again soon.
func (e *bindingFailed) Unwrap() error {
	return &vpcport.Error{Class: vpcport.Conflict, Op: "bind", Message: reasonBinding}
}

// learn takes in what an answer says of when to ask again.
func (n *nic) learn(j job, a answer, now time.Time) {
	class := vpcport.ClassOf(a.err)
	n.asked = j.want
	n.failed.reason = ""
	if a.err == nil && n.failed.message != "" {
		n.failed.reason = reasonBinding
	}
	switch {
	case a.err != nil && j.step.Kind == nicplan.Create && n.have.Unclear:
		n.unclear = now
	case class == vpcport.AddressTaken:
		n.anew = true
	case class == vpcport.PortGone && j.have.Recorded != "":
		n.lost = j.have.Recorded
	}
	if a.err != nil {
		return
	}
	switch j.step.Kind {
	case nicplan.Look:
		if n.have.Port == nil && j.have.Recorded != "" {
			n.lost = j.have.Recorded
		}
		n.next = now.Add(retry.Delay(firstLook, lastLook, n.looks))
		n.looks++
	case nicplan.Poll:
		n.polls++
		n.next = onGrid(now.Add(retry.Delay(firstPoll, lastPoll, n.polls)))
	default:
		n.looks, n.polls = 0, 0
		n.next = onGrid(now.Add(firstPoll))
	}
}

// onGrid rounds a moment up, so that many are the same.
func onGrid(t time.Time) time.Time { return t.Add(pollGrid - 1).Truncate(pollGrid) }
