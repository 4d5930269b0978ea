package podnics

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/queue"
)

// reconcilePod sees to it that a pod has a PodNIC for each NIC that it asks for, and none
// that it does not: so that of one that is over none is left.
func (c *Controller) reconcilePod(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	p := &corev1.Pod{}
	err := c.client.Get(ctx, q.NamespacedName, p)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read pod %s from the cache: %w", q.NamespacedName, err)
	}
	there := err == nil
	if !there {
		c.told.forget(q.NamespacedName)
		c.past.forget(q.NamespacedName)
	}
	list := &v1alpha1.PodNICList{}
	if err := c.client.List(ctx, list, client.InNamespace(q.Namespace), client.MatchingFields{byPod: q.Name}); err != nil {
		return reconcile.Result{}, fmt.Errorf("list PodNICs of pod %s: %w", q.NamespacedName, err)
	}
	var mine, others []*v1alpha1.PodNIC
	for i := range list.Items {
		o := &list.Items[i]
		switch {
		case o.Spec.Pod == nil || o.Spec.Pod.Name != q.Name:
		case there && o.Spec.Pod.UID == string(p.UID):
			mine = append(mine, o)
		case o.DeletionTimestamp == nil:
			others = append(others, o)
		}
	}
	trails, err := c.removeEnded(ctx, others)
	if err != nil || trails {
		return reconcile.Result{RequeueAfter: queue.CacheLag}, err
	}
	if !there || p.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	c.tellOfPolicies(ctx, p)
	reason, refusal, err := c.provide(ctx, p, mine, c.past.note(p, list.Items, c.o.First.Name))
	if err == nil {
		c.warn(p, "", reason, refusal)
	}
	return reconcile.Result{}, err
}

// removeEnded deletes the PodNICs of pods of a name that are no more, or have ended. It
// tells whether one of them lives, of which the cache knows nothing yet.
func (c *Controller) removeEnded(ctx context.Context, nics []*v1alpha1.PodNIC) (trails bool, err error) {
	ended := map[string]bool{}
	for _, o := range nics {
		over, known := ended[o.Spec.Pod.UID]
		if !known {
			if over, _, err = c.over(ctx, o.Namespace, *o.Spec.Pod); err != nil {
				return false, err
			}
			ended[o.Spec.Pod.UID] = over
		}
		if !over {
			trails = true
			continue
		}
		if err := c.remove(ctx, o, "its pod is gone or has ended"); err != nil {
			return false, err
		}
	}
	return trails, nil
}

// over asks the API server whether a pod is gone or has ended: the cache may not have it
// yet, or lack it for a moment. Of one that lives it returns what there is.
func (c *Controller) over(ctx context.Context, namespace string, ref v1alpha1.PodReference) (bool, *corev1.Pod, error) {
	p := &corev1.Pod{}
	err := c.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, p)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil, nil
	case err != nil:
		return false, nil, fmt.Errorf("look whether pod %s/%s is over: %w", namespace, ref.Name, err)
	case string(p.UID) != ref.UID || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return true, nil, nil
	}
	return false, p, nil
}

// remove deletes a PodNIC, whose port goes before it does.
func (c *Controller) remove(ctx context.Context, o *v1alpha1.PodNIC, why string) error {
	if o.DeletionTimestamp != nil {
		return nil
	}
	err := failpoint.Around("operator.port.remove", func() error {
		return client.IgnoreNotFound(c.client.Delete(ctx, o, client.Preconditions{UID: &o.UID}))
	})
	if err != nil {
		return fmt.Errorf("delete PodNIC %s/%s: %w", o.Namespace, o.Name, err)
	}
	c.o.Logger.Debug("PodNIC deleted", "podnic", o.Namespace+"/"+o.Name, "because", why)
	return nil
}

// provide makes the PodNICs that a pod lacks, and deletes those that it does not ask for
// any more. A refusal is what the pod asks for and does not get.
func (c *Controller) provide(ctx context.Context, p *corev1.Pod, mine []*v1alpha1.PodNIC, had hadNICs) (reason string, refusal, err error) {
	namespace := c.namespace(ctx, p.Namespace)
	vpc := cmp.Or(had.vpc, namespace.Annotations[v1alpha1.AnnotationVPC])
	first := c.firstOf(ctx, p, had)
	w := wishOf(p, vpc, first, had.vpc == "", 0)
	if had.vpc != "" && w.vpc != vpc {
		errs := nicrequest.CheckVPCChange(vpc, w.vpc)
		return "NICsRefused", errs.Err(), nil
	}
	if len(w.errs) > 0 {
		return "NICsRefused", w.errs.Err(), nil
	}
	if w.vpc == "" {
		return "", nil, nil
	}
	opened, err := c.o.Networks.Of(w.vpc)
	switch {
	case err != nil && hasAll(mine, w.nics):
		return "", nil, nil // each of its PodNICs says whether it waits
	case err != nil:
		return "VPCNotReady", err, nil
	}
	if err := c.ending(ctx, w.vpc); err != nil {
		return "VPCNotReady", err, nil
	}
	if err := allows(opened.Spec, w.vpc, namespace); err != nil && len(mine) == 0 {
		return "NICsRefused", err, nil
	}
	if most := opened.Spec.MaxNICsPerPod; most != nil {
		w = wishOf(p, vpc, first, had.vpc == "", int(*most))
		if len(w.errs) > 0 {
			return "NICsRefused", w.errs.Err(), nil
		}
	}
	return c.adjust(ctx, p, w, mine)
}

// hasAll tells whether there is a PodNIC for each NIC that a pod asks for; those that it
// names are not its own.
func hasAll(mine []*v1alpha1.PodNIC, nics []nicrequest.NIC) bool {
	return !slices.ContainsFunc(nics, func(n nicrequest.NIC) bool {
		return n.Object == "" && !slices.ContainsFunc(mine, func(o *v1alpha1.PodNIC) bool { return o.Spec.Interface == n.Name })
	})
}

// allows tells why pods of a namespace may not have NICs in a VPC; nil: they may.
func allows(spec v1alpha1.VPCSpec, vpc string, namespace *metav1.PartialObjectMetadata) error {
	return nicrequest.CheckNamespace(vpc, spec.AllowedNamespaces, namespace.Name, namespace.Labels).Err()
}

// adjust brings the PodNICs of a pod to what it asks for. One that is there is never
// changed, and the first interface never taken away, nor the default route of a pod that
// runs given to another NIC.
func (c *Controller) adjust(ctx context.Context, p *corev1.Pod, w wish, mine []*v1alpha1.PodNIC) (reason string, refusal, err error) {
	runs := p.Status.Phase == corev1.PodRunning // so it has all NICs that it was made with
	errs := changes(mine, w.nics, w.first, runs)
	have := map[string]*v1alpha1.PodNIC{}
	var extra []*v1alpha1.PodNIC
	for _, o := range mine {
		n, wanted := named(w.nics, o.Spec.Interface)
		first := w.first.IsNIC(o.Spec.Interface)
		if wanted && n.Object == "" || first || runs && o.Status.DefaultRoute {
			have[o.Spec.Interface] = o
			continue
		}
		extra = append(extra, o)
	}
	for _, o := range extra {
		if err := c.remove(ctx, o, "its pod does not ask for it any more"); err != nil {
			return "", nil, err
		}
	}
	for _, n := range w.nics {
		if n.Object != "" || have[n.Name] != nil || runs && n.DefaultRoute {
			continue
		}
		if slices.ContainsFunc(extra, func(o *v1alpha1.PodNIC) bool { return o.Spec.Interface == n.Name }) {
			continue // when that is gone
		}
		if err := c.make(ctx, p, w.vpc, n); err != nil {
			return "", nil, err
		}
	}
	missing, err := c.missing(ctx, p, w)
	if err != nil {
		return "", nil, err
	}
	if err := errs.Err(); err != nil {
		return "NICsRefused", err, nil
	}
	return "PodNICNotFound", missing, nil
}

// missing is an error that names the PodNICs that a pod names and that are not there, or
// are not in its VPC.
func (c *Controller) missing(ctx context.Context, p *corev1.Pod, w wish) (error, error) {
	for _, n := range w.nics {
		if n.Object == "" {
			continue
		}
		o := &v1alpha1.PodNIC{}
		err := c.client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: n.Object}, o)
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("NIC %s waits: there is no PodNIC %s in namespace %s", n.Name, n.Object, p.Namespace), nil
		case err != nil:
			return nil, fmt.Errorf("read PodNIC %s/%s from the cache: %w", p.Namespace, n.Object, err)
		case o.Spec.VPC != w.vpc:
			return fmt.Errorf("NIC %s waits: PodNIC %s is of VPC %s, and the pod's is %s", n.Name, n.Object, o.Spec.VPC, w.vpc), nil
		case o.Spec.Pod != nil:
			return fmt.Errorf("NIC %s waits: PodNIC %s is pod %s's alone (spec.pod)", n.Name, n.Object, o.Spec.Pod.Name), nil
		case o.Status.Pod != nil && o.Status.Pod.UID != string(p.UID):
			return fmt.Errorf("NIC %s waits: pod %s has PodNIC %s", n.Name, o.Status.Pod.Name, n.Object), nil
		}
	}
	return nil, nil
}

// changes are what an edit of a pod's annotation asks for and does not get; of one that
// does not run yet, all that it lacks may be what it was made with.
func changes(mine []*v1alpha1.PodNIC, after []nicrequest.NIC, first nicrequest.First, runs bool) nicrequest.Errors {
	var before []nicrequest.NIC
	after = slices.Clone(after)
	for i, n := range after { // those that a user made and the pod names are not among its own
		after[i].DefaultRoute = n.DefaultRoute && runs && n.Object == ""
	}
	for _, o := range mine {
		n := nicOf(o.Spec)
		n.DefaultRoute = runs && o.Status.DefaultRoute
		if now, ok := named(after, n.Name); ok {
			n.DefaultRoute = now.DefaultRoute // which its status tells, for the daemon
			if o.Generation > 1 && now.Object == "" {
				n.SecurityGroups = now.SecurityGroups // somebody changed them in the PodNIC
			}
		}
		before = append(before, n)
	}
	first.IsPort = first.IsNIC(first.Name) // if it lacks that one it was made with it: firstOf
	return nicrequest.CheckChange(before, after, first)
}

// make makes the PodNIC of a pod's NIC.
func (c *Controller) make(ctx context.Context, p *corev1.Pod, vpc string, n nicrequest.NIC) error {
	yes := true
	o := &v1alpha1.PodNIC{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: nicrequest.ObjectName(p.Name, string(p.UID), n.Name),
			Labels:          map[string]string{v1alpha1.LabelPodUID: string(p.UID)},
			Finalizers:      []string{v1alpha1.FinalizerPort},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: &yes}},
		},
		Spec: specOf(p, vpc, n),
	}
	key := client.ObjectKeyFromObject(o)
	c.book.making(key)
	var uid types.UID
	err := failpoint.Hit("operator.port.nic.before")
	if err == nil {
		if err = c.client.Create(ctx, o, client.FieldOwner(v1alpha1.OwnerOperator)); err == nil {
			uid = o.UID
		}
	}
	if c.book.made(key, uid) {
		c.nics.AddObject(key, 0) // its event came before the answer
	}
	switch {
	case err == nil:
		c.o.Logger.Debug("PodNIC made", "podnic", key.String(), "pod", p.Name, "vpc", vpc)
		return failpoint.Hit("operator.port.nic.after")
	case apierrors.IsAlreadyExists(err):
		return nil // the cache trails, or the last one of its name is going; its events tell
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		c.warn(p, n.Name, "NICRefused", err)
	}
	return fmt.Errorf("create PodNIC %s: %w", key, err)
}

// age is how long a pod has been there.
func age(p *corev1.Pod, now time.Time) time.Duration {
	return max(0, now.Sub(p.CreationTimestamp.Time))
}
