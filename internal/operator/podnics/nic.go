package podnics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/operator/podnics/warm"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

// slow is how long a call may be in flight before the PodNIC's status names the node: the daemon there
// finds the PodNIC by that, and can say what a pod waits for.
const slow = 2 * time.Second

// again has a NIC reconciled again at once.
var again = reconcile.Result{RequeueAfter: time.Nanosecond}

// nicReconciler brings each PodNIC's NIC to its desired state, one step at a time (package nicplan).
type nicReconciler struct {
	o      Options
	api    *kubeAPI
	watch  *observer
	states *nicStates
	calls  *batcher
	pool   *warm.Pool
	events *podEvents
	queue  queue.Queue
}

// reconcile does the next step of a PodNIC's NIC: at most one write, or one call about its port, whose
// reply has it reconciled again.
func (r *nicReconciler) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	if r.states.isMaking(q.NamespacedName) {
		return reconcile.Result{}, nil // it is reconciled once the API server has answered
	}
	o, err := objects.Get[v1alpha1.PodNIC](ctx, r.api.client, q.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if o == nil {
		if uid, known := r.states.forget(q.NamespacedName); known {
			r.pool.Forget(uid)
		}
		return reconcile.Result{}, nil
	}
	n := r.remember(o)
	if n.call.inFlight {
		return r.during(ctx, o, n)
	}
	if n.replaced == o.ResourceVersion {
		return reconcile.Result{}, nil // the cache is stale: an event follows
	}
	s, err := r.watch.observe(ctx, o, n)
	if errors.Is(err, errStale) {
		return reconcile.Result{RequeueAfter: queue.CacheLag}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	r.note(s)
	defer r.states.quotas.passOn(o.UID)
	return r.act(ctx, s, n)
}

// remember is the state of a PodNIC's NIC, with what the PodNIC records unless a call is in flight or the
// cache is stale.
func (r *nicReconciler) remember(o *v1alpha1.PodNIC) (known nic) {
	kept := controllerutil.ContainsFinalizer(o, v1alpha1.FinalizerPort)
	r.states.with(o, kept, func(n *nic) {
		if !n.call.inFlight && n.replaced != o.ResourceVersion {
			n.observed.Kept = kept
			if n.observed.Recorded != o.Status.PortID { // another operator wrote it
				n.observed = nicplan.Restored(kept, o.Status.PortID)
			}
		}
		known = *n
	})
	return known
}

// note takes in an observation: since when no pod has the NIC, for how long its pod has waited, and what
// warm ports it would use.
func (r *nicReconciler) note(s *observation) {
	done, now := false, r.o.Clock.Now()
	r.states.edit(s.o.UID, func(n *nic) {
		switch {
		case !s.isIdle():
			n.idle = time.Time{}
		case n.idle.IsZero():
			n.idle = now
		}
		done = n.waits.at(progressOf(s.o, s.pod), now)
	})
	if done && starts(s.pod) {
		r.o.Metrics.observe(r.o.Metrics.plugged, s.o.Spec.VPC, age(s.pod, now))
	}
	if !s.warms() {
		return
	}
	w := warm.NIC{VPC: s.o.Spec.VPC, Host: s.desired.Port.Host, Node: s.next.node, Port: s.o.Status.PortID}
	if s.mayTake() {
		request := s.desired.Port
		request.Device, request.Name = "", ""
		request.Addresses, _ = s.asked()
		w.Request = &request
	}
	r.pool.Note(s.o.UID, w)
}

// act does the next step.
func (r *nicReconciler) act(ctx context.Context, s *observation, n nic) (reconcile.Result, error) {
	c := r.watch.constraints(ctx, s, n)
	next := nicplan.Next(s.desired, n.observed, c, n.attempts)
	if next.Kind == nicplan.Take {
		if r.take(ctx, s) {
			return again, nil
		}
		c.Warm = false
		next = nicplan.Next(s.desired, n.observed, c, n.attempts)
	}
	if next.Kind == nicplan.Create && (!next.Waits || next.Quiet) {
		r.states.noteCreating(s.o.UID, s.unscheduled(), s.desired.Port.Host != "")
	}
	if next.Waits {
		return r.wait(ctx, s, n, next)
	}
	switch next.Kind {
	case nicplan.Rest:
		return r.wait(ctx, s, n, next)
	case nicplan.Keep:
		return reconcile.Result{}, r.keep(ctx, s.o)
	case nicplan.Claim:
		return reconcile.Result{}, r.writeStatus(ctx, s, n, nicplan.Step{})
	case nicplan.Record:
		return reconcile.Result{}, failpoint.Around("operator.port.record", func() error { return r.writeStatus(ctx, s, n, next) })
	case nicplan.Forget:
		return reconcile.Result{}, failpoint.Around("operator.port.forget", func() error { return r.release(ctx, s.o) })
	case nicplan.Rename:
		r.states.edit(s.o.UID, func(n *nic) { n.history.macs, n.observed = n.history.macs+1, n.observed.Renamed() })
		return again, nil
	case nicplan.Impossible:
		return r.report(ctx, s, n, next, c)
	case nicplan.Poll: // nodes wait for the status
		if wrote, err := r.writeIfOther(ctx, s, n, next); wrote || err != nil {
			return reconcile.Result{}, err
		}
	}
	return r.call(ctx, s, n, next, c)
}

// wait writes the status if it has changed, unless the step is quiet, and has the NIC reconciled when
// the step says so.
func (r *nicReconciler) wait(ctx context.Context, s *observation, n nic, step nicplan.Step) (reconcile.Result, error) {
	var err error
	if !step.Quiet {
		_, err = r.writeIfOther(ctx, s, n, step)
	}
	return reconcile.Result{RequeueAfter: step.Wait}, err
}

// report records a step for which somebody has to change something as a failure. It is looked now and
// then whether somebody did.
func (r *nicReconciler) report(ctx context.Context, s *observation, n nic, step nicplan.Step, c nicplan.Constraints) (reconcile.Result, error) {
	same := n.attempts.Failed.Message == step.Why
	r.states.edit(s.o.UID, func(edited *nic) {
		a := &edited.attempts
		if same {
			edited.observed.Looked, a.Looks = false, 0
		}
		fail(&a.Failed, c.Now, step.Class, errors.New(step.Why))
		a.Asked = s.desired
		policy := vpcport.PolicyOf(step.Class)
		a.Failed.Until = c.Now.Add(retry.Delay(policy.First+time.Second, policy.Last, a.Failed.Times-1))
		n = *edited
	})
	if same {
		return again, nil
	}
	return r.wait(ctx, s, n, step.Deferred(max(n.attempts.Failed.Until.Sub(c.Now), time.Millisecond), s.desired, c))
}

// take has a NIC take a warm port, and reports whether there was one.
func (r *nicReconciler) take(ctx context.Context, s *observation) bool {
	if !r.enter(ctx, s) {
		return false
	}
	p, ok := r.pool.Take(s.o.UID, s.o.Spec.VPC, s.desired.Port)
	if !ok {
		r.states.quotas.leave(s.o.UID)
		return false
	}
	r.states.edit(s.o.UID, func(n *nic) { n.observed, n.call.ended = n.observed.Took(p), r.o.Clock.Now() })
	return true
}

// enter gives a NIC that is to get a port a place in its namespace's quota, and reports whether it has one.
func (r *nicReconciler) enter(ctx context.Context, s *observation) bool {
	if !r.completeQuota(ctx, s.o) || !r.states.quotas.enter(s.o.UID, s.limits.Most) {
		s.full = s.limits.Full(s.o.Spec.VPC)
		return false
	}
	return true
}

// completeQuota counts all PodNICs of a tenant, as a process before this one may have asked for ports of
// them.
func (r *nicReconciler) completeQuota(ctx context.Context, o *v1alpha1.PodNIC) bool {
	if r.states.quotas.isComplete(o.UID) {
		return true
	}
	list, err := objects.List[v1alpha1.PodNICList](ctx, r.api.client, client.InNamespace(o.Namespace), client.MatchingFields{ByVPC: o.Spec.VPC})
	if err != nil {
		return false
	}
	for i := range list.Items {
		each := &list.Items[i]
		if r.states.addListed(each, controllerutil.ContainsFinalizer(each, v1alpha1.FinalizerPort)) {
			r.queue.AddObject(client.ObjectKeyFromObject(each), 0) // it may be gone by now
		}
	}
	r.states.quotas.setComplete(o.UID)
	return true
}

// call has a call made, if the namespace's quota and the failures of others allow it.
func (r *nicReconciler) call(ctx context.Context, s *observation, n nic, step nicplan.Step, c nicplan.Constraints) (reconcile.Result, error) {
	if step.Takes(n.observed.Recorded) && !r.enter(ctx, s) {
		return r.wait(ctx, s, n, step.Deferred(r.states.quotas.settles(), s.desired, c))
	}
	var failed nicplan.Failure
	passed := false
	r.states.edit(s.o.UID, func(n *nic) {
		if failed, passed = r.states.backoffs.pass(s.o.UID, n, s.desired, step.Kind); passed {
			n.call.inFlight, n.call.asked = true, c.Now
		}
	})
	if !passed {
		r.states.quotas.leave(s.o.UID)
		if n.attempts.Failed.Message == "" {
			n.attempts.Failed = failed
		}
		return r.wait(ctx, s, n, step.Deferred(max(failed.Until.Sub(c.Now), time.Millisecond), s.desired, c))
	}
	r.calls.submit(s.o.Spec.VPC, s.opened.Provider, call{uid: s.o.UID, step: step, desired: s.desired, observed: n.observed})
	return reconcile.Result{RequeueAfter: slow}, nil
}

// during writes the status of a NIC whose call is slow, so that it names the node. Otherwise the reply
// brings a write that says all.
func (r *nicReconciler) during(ctx context.Context, o *v1alpha1.PodNIC, n nic) (reconcile.Result, error) {
	if n.replaced == o.ResourceVersion {
		return reconcile.Result{}, nil // the cache is stale: an event follows
	}
	if left := slow - r.o.Clock.Now().Sub(n.call.asked); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil // the queue keeps the sooner of two times, and this is it
	}
	s, err := r.watch.observe(ctx, o, n)
	if errors.Is(err, errStale) {
		return reconcile.Result{RequeueAfter: queue.CacheLag}, nil
	}
	if err != nil || s.next.node == s.now.node || s.hold.held {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	_, err = r.writeIfOther(ctx, s, n, nicplan.Step{})
	return reconcile.Result{}, err
}

// keep gives a PodNIC the finalizer.
func (r *nicReconciler) keep(ctx context.Context, o *v1alpha1.PodNIC) error {
	if _, err := objects.AddFinalizer(ctx, r.api.client, o, v1alpha1.FinalizerPort); err != nil {
		return err
	}
	r.states.edit(o.UID, func(n *nic) {
		n.replaced, n.observed.Kept, n.observed.Looked = o.ResourceVersion, true, o.Spec.PortID == "" && o.Status.PortID == ""
	})
	return failpoint.Hit("operator.port.keep.after")
}

// release takes the finalizer off a PodNIC of which the provider has nothing any more.
func (r *nicReconciler) release(ctx context.Context, o *v1alpha1.PodNIC) error {
	if _, err := objects.RemoveFinalizer(ctx, r.api.client, o, v1alpha1.FinalizerPort); err != nil {
		return err
	}
	r.states.edit(o.UID, func(n *nic) { n.replaced = o.ResourceVersion })
	return nil
}

// writeIfOther writes the status if it has changed, and reports whether it did.
func (r *nicReconciler) writeIfOther(ctx context.Context, s *observation, n nic, step nicplan.Step) (bool, error) {
	if equality.Semantic.DeepEqual(statusOf(s, n, step, metav1.NewTime(r.o.Clock.Now())), s.o.Status) {
		return false, nil
	}
	return true, r.writeStatus(ctx, s, n, step)
}

// writeStatus writes the status of a PodNIC, and makes an Event of its pod if something is wrong.
func (r *nicReconciler) writeStatus(ctx context.Context, s *observation, n nic, step nicplan.Step) error {
	before, after := s.o, s.o.DeepCopy()
	after.Status = statusOf(s, n, step, metav1.NewTime(r.o.Clock.Now()))
	if step.Kind == nicplan.Record && !step.Waits {
		after.Status.PortID = step.Port
	}
	err := r.api.client.Status().Patch(ctx, after, objects.IfUnchanged(before), client.FieldOwner(v1alpha1.OwnerOperator))
	if apierrors.IsNotFound(err) {
		return nil // an event follows
	}
	if err != nil {
		return fmt.Errorf("write the status of PodNIC %s/%s: %w", s.o.Namespace, s.o.Name, err)
	}
	r.states.edit(s.o.UID, func(n *nic) {
		if after.ResourceVersion != before.ResourceVersion {
			n.replaced = before.ResourceVersion
		}
		n.observed.Recorded = after.Status.PortID
		if step.Kind == nicplan.Record {
			n.history.lost = ""
		}
	})
	r.announce(s, before.Status, after.Status)
	return nil
}

// announce tells of what is new in a status: an Event of the pod, the log, and the metrics.
func (r *nicReconciler) announce(s *observation, before, after v1alpha1.PodNICStatus) {
	name := s.o.Namespace + "/" + s.o.Name
	if s.pod != nil {
		var wrong error
		reason := ""
		for _, k := range after.Conditions {
			if k.Status == metav1.ConditionFalse && wrong == nil && concernsPod(s.pod, k) {
				wrong, reason = fmt.Errorf("NIC %s: %s", s.next.name, k.Message), k.Reason
			}
		}
		r.events.warn(s.pod, "nic "+s.next.name, reason, wrong)
		if isBound(after) && !isBound(before) && after.PortID != "" {
			if starts(s.pod) {
				r.o.Metrics.observe(r.o.Metrics.bound, s.o.Spec.VPC, age(s.pod, r.o.Clock.Now()))
			}
			r.o.Logger.Debug("port bound", "podnic", name, "port", after.PortID, "host", after.Host, "pod", s.pod.Name)
		}
	}
	if before.PortID != after.PortID {
		r.o.Logger.Info("port of a NIC", "podnic", name, "vpc", s.o.Spec.VPC, "port", after.PortID, "made", after.Made, "before", before.PortID)
	}
}

// concernsPod reports whether a pod gets an Event of a condition that is not true. Why a node cannot plug a
// NIC while the pod starts is in the error of the ADD.
func concernsPod(p *corev1.Pod, k metav1.Condition) bool {
	if k.Type == v1alpha1.ConditionPlugged {
		return k.Reason != reasonUnplugged && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil
	}
	return k.Reason != reasonUnscheduled
}

// replied takes in the reply to a call, and has the NIC and those that waited for it reconciled.
func (r *nicReconciler) replied(c call, reply nicplan.Reply) {
	kind := c.step.Kind
	r.o.Metrics.count(kind, reply.Err)
	err := cmp.Or(reply.Err, bindingError(reply.Port))
	vpc := ""
	var resumed []waiter
	key, ok := r.states.edit(c.uid, func(n *nic) {
		now := r.o.Clock.Now()
		n.call = callState{ended: now}
		vpc = n.vpc
		r.states.quotas.ended(c.uid, err == nil && kind != nicplan.Delete)
		resumed = r.states.backoffs.ended(c.uid, n, c.desired, kind, err)
		n.observed = n.observed.After(c.desired, c.step, reply, r.states.late(n, reply.Began))
		n.learn(c, reply, now)
	})
	if !ok {
		r.states.vanished.callEnded(c.uid) // the collector finds what the call made
		return
	}
	if kind == nicplan.Delete && reply.Err == nil {
		resumed = append(resumed, r.states.backoffs.room(vpc)...)
	}
	if class := vpcport.ClassOf(reply.Err); kind == nicplan.Create && (class == vpcport.SubnetFull || class == vpcport.OverQuota) {
		r.pool.Yield(vpc)
	}
	r.queue.AddObject(key, 0)
	r.resume(resumed)
}

// resume has NICs reconciled that waited for a failure which is over.
func (r *nicReconciler) resume(waiters []waiter) {
	r.states.resume(waiters)
	for _, w := range waiters {
		r.queue.AddObject(w.key, 0)
	}
}

// bindingError is the error of a port that the provider could not bind, although the call succeeded; nil: it
// did, or there is no port.
func bindingError(p *vpcport.Port) error {
	if p == nil || p.Binding.Result != vpcport.BindingFailed || p.Host == "" {
		return nil
	}
	why := p.Binding.Why
	if why == "" {
		why = fmt.Sprintf("the provider could not bind the port at host %s: does its agent there live, and is that the host's name to it?", p.Host)
	}
	return &bindingFailed{why}
}

// bindingFailed is the type of that error.
type bindingFailed struct{ why string }

func (e *bindingFailed) Error() string { return e.why }

// Unwrap gives it the class of what is tried again soon.
func (e *bindingFailed) Unwrap() error {
	return &vpcport.Error{Class: vpcport.Conflict, Op: "bind", Message: reasonBinding}
}
