package podnics

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

// podWorkers and nicWorkers are how many objects are reconciled concurrently. They mostly wait for the API server, as calls to
// providers are made elsewhere.
const (
	podWorkers = 16
	nicWorkers = 16
)

// podReconciler creates the PodNICs that pods ask for, and deletes those that are no longer needed.
type podReconciler struct {
	o       Options
	api     *kubeAPI
	history *podHistory
	states  *nicStates
	events  *podEvents
	queue   queue.Queue
	nics    *queue.Queue // of the nicReconciler
}

// reconcile creates a PodNIC for each NIC that a pod asks for, and deletes its other ones. A pod that has ended keeps none.
func (r *podReconciler) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	p, err := objects.Get[corev1.Pod](ctx, r.api.client, q.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if p == nil {
		r.events.forget(q.NamespacedName)
		r.history.forget(q.NamespacedName)
	}
	nics, err := NICsOf(ctx, r.api.client, q.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	var mine, others []*v1alpha1.PodNIC
	for i := range nics {
		o := &nics[i]
		switch {
		case o.Spec.Pod == nil || o.Spec.Pod.Name != q.Name:
		case p != nil && o.Spec.Pod.UID == string(p.UID):
			mine = append(mine, o)
		case o.DeletionTimestamp == nil:
			others = append(others, o)
		}
	}
	stale, err := r.removeEnded(ctx, others)
	if err != nil || stale {
		return reconcile.Result{RequeueAfter: queue.CacheLag}, err
	}
	if p == nil || p.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	var later reconcile.Result
	if p.Status.Phase == corev1.PodPending {
		since, some, err := r.o.PoliciesSince(ctx, p.Namespace)
		if errors.Is(err, watched.ErrUnknown) {
			later.RequeueAfter = queue.CacheLag
		}
		if reason, text := policyTrouble(p, since, some); reason != "" {
			r.events.warn(p, aboutPolicies, reason, errors.New(text))
		}
	}
	reason, rejection, err := r.provide(ctx, p, mine, r.history.add(p, nics))
	if err == nil {
		r.events.warn(p, "", reason, rejection)
	}
	return later, err
}

// removeEnded deletes the PodNICs of earlier pods of the same name that are gone or have ended. It reports whether one of these
// pods is still alive, which means that the cache is stale.
func (r *podReconciler) removeEnded(ctx context.Context, nics []*v1alpha1.PodNIC) (stale bool, err error) {
	ended := map[string]bool{}
	for _, o := range nics {
		over, known := ended[o.Spec.Pod.UID]
		if !known {
			if over, _, err = r.api.isOver(ctx, o.Namespace, *o.Spec.Pod); err != nil {
				return false, err
			}
			ended[o.Spec.Pod.UID] = over
		}
		if !over {
			stale = true
			continue
		}
		if err := r.remove(ctx, o, "its pod is gone or has ended"); err != nil {
			return false, err
		}
	}
	return stale, nil
}

// remove deletes a PodNIC, which disappears after its port.
func (r *podReconciler) remove(ctx context.Context, o *v1alpha1.PodNIC, why string) error {
	if o.DeletionTimestamp != nil {
		return nil
	}
	if err := failpoint.Around("operator.port.remove", func() error { return objects.Delete(ctx, r.api.client, o) }); err != nil {
		return err
	}
	r.o.Logger.Debug("PodNIC deleted", "podnic", o.Namespace+"/"+o.Name, "because", why)
	return nil
}

// provide creates the PodNICs that a pod lacks, and deletes those that it no longer asks for. The rejection says what it asks for
// and does not get.
func (r *podReconciler) provide(ctx context.Context, p *corev1.Pod, mine []*v1alpha1.PodNIC, had hadNICs) (reason string, rejection, err error) {
	namespace := r.api.namespace(ctx, p.Namespace)
	vpc := cmp.Or(had.vpc, namespace.Annotations[v1alpha1.AnnotationVPC])
	first := r.history.firstOf(ctx, p, had)
	asked := requestOf(p, vpc, first, had.vpc == "", 0)
	if had.vpc != "" && asked.vpc != vpc {
		errs := nicrequest.CheckVPCChange(vpc, asked.vpc)
		return "NICsRefused", errs.Err(), nil
	}
	if len(asked.errs) > 0 {
		return "NICsRefused", asked.errs.Err(), nil
	}
	if asked.vpc == "" {
		return "", nil, nil
	}
	opened, err := r.o.Networks.Of(asked.vpc)
	switch {
	case err != nil && hasAll(mine, asked.nics):
		return "", nil, nil // each PodNIC reports on its own whether it waits
	case err != nil:
		return "VPCNotReady", err, nil
	}
	if err := r.api.ending(ctx, asked.vpc); err != nil {
		return "VPCNotReady", err, nil
	}
	if err := allows(opened.Spec, asked.vpc, namespace); err != nil && len(mine) == 0 {
		return "NICsRefused", err, nil
	}
	if most := opened.Spec.MaxNICsPerPod; most != nil {
		asked = requestOf(p, vpc, first, had.vpc == "", int(*most))
		if len(asked.errs) > 0 {
			return "NICsRefused", asked.errs.Err(), nil
		}
	}
	return r.adjust(ctx, p, asked, mine)
}

// hasAll reports whether there is a PodNIC for each NIC that a pod asks for, except the PodNICs that it names.
func hasAll(mine []*v1alpha1.PodNIC, nics []nicrequest.NIC) bool {
	return !slices.ContainsFunc(nics, func(n nicrequest.NIC) bool {
		return n.Object == "" && !slices.ContainsFunc(mine, func(o *v1alpha1.PodNIC) bool { return o.Spec.Interface == n.Name })
	})
}

// allows returns an error if pods of a namespace may not have NICs in a VPC.
func allows(spec v1alpha1.VPCSpec, vpc string, namespace *metav1.PartialObjectMetadata) error {
	return nicrequest.CheckNamespace(vpc, spec.AllowedNamespaces, namespace.Name, namespace.Labels).Err()
}

// adjust creates and deletes PodNICs of a pod until it has what it asks for. It never changes a PodNIC, never removes the first
// interface, and never moves the default route of a running pod to another NIC.
func (r *podReconciler) adjust(ctx context.Context, p *corev1.Pod, asked request, mine []*v1alpha1.PodNIC) (reason string, rejection, err error) {
	runs := p.Status.Phase == corev1.PodRunning // it has all the NICs that it was created with
	errs := changes(mine, asked.nics, asked.first, runs)
	have := map[string]*v1alpha1.PodNIC{}
	var extra []*v1alpha1.PodNIC
	for _, o := range mine {
		n, wanted := named(asked.nics, o.Spec.Interface)
		first := asked.first.IsNIC(o.Spec.Interface)
		if wanted && n.Object == "" || first || runs && o.Status.DefaultRoute {
			have[o.Spec.Interface] = o
			continue
		}
		extra = append(extra, o)
	}
	for _, o := range extra {
		if err := r.remove(ctx, o, "its pod no longer asks for it"); err != nil {
			return "", nil, err
		}
	}
	for _, n := range asked.nics {
		if n.Object != "" || have[n.Name] != nil || runs && n.DefaultRoute {
			continue
		}
		if slices.ContainsFunc(extra, func(o *v1alpha1.PodNIC) bool { return o.Spec.Interface == n.Name }) {
			continue // created once that one is gone
		}
		if err := r.make(ctx, p, asked.vpc, n); err != nil {
			return "", nil, err
		}
	}
	missing, err := r.missing(ctx, p, asked)
	if err != nil {
		return "", nil, err
	}
	if err := errs.Err(); err != nil {
		return "NICsRefused", err, nil
	}
	return "PodNICNotFound", missing, nil
}

// missing returns an error about a PodNIC that a pod names and does not get: it does not exist, or belongs to another VPC or pod.
func (r *podReconciler) missing(ctx context.Context, p *corev1.Pod, asked request) (error, error) {
	for _, n := range asked.nics {
		if n.Object == "" {
			continue
		}
		o, err := objects.Get[v1alpha1.PodNIC](ctx, r.api.client, client.ObjectKey{Namespace: p.Namespace, Name: n.Object}, objects.Shared)
		switch {
		case err != nil:
			return nil, err
		case o == nil:
			return fmt.Errorf("NIC %s waits: there is no PodNIC %s in namespace %s", n.Name, n.Object, p.Namespace), nil
		case o.Spec.VPC != asked.vpc:
			return fmt.Errorf("NIC %s waits: PodNIC %s belongs to VPC %s, but the pod's VPC is %s", n.Name, n.Object, o.Spec.VPC, asked.vpc), nil
		case o.Spec.Pod != nil:
			return fmt.Errorf("NIC %s waits: PodNIC %s is reserved for pod %s (spec.pod)", n.Name, n.Object, o.Spec.Pod.Name), nil
		case o.Status.Pod != nil && o.Status.Pod.UID != string(p.UID):
			return fmt.Errorf("NIC %s waits: pod %s has PodNIC %s", n.Name, o.Status.Pod.Name, n.Object), nil
		}
	}
	return nil, nil
}

// changes returns errors about changes that an edited annotation asks for and that are not made. Of a pod that does not run yet, the
// annotation may be the original one.
func changes(mine []*v1alpha1.PodNIC, after []nicrequest.NIC, first nicrequest.First, runs bool) nicrequest.Errors {
	var before []nicrequest.NIC
	after = slices.Clone(after)
	for i, n := range after { // PodNICs that the pod names are not among its own
		after[i].DefaultRoute = n.DefaultRoute && runs && n.Object == ""
	}
	for _, o := range mine {
		n := nicOf(o.Spec)
		n.DefaultRoute = runs && o.Status.DefaultRoute
		if now, ok := named(after, n.Name); ok {
			n.DefaultRoute = now.DefaultRoute // read by the daemon from the status
			if o.Generation > 1 && now.Object == "" {
				n.SecurityGroups = now.SecurityGroups // changed by somebody in the PodNIC
			}
		}
		before = append(before, n)
	}
	first.IsPort = first.IsNIC(first.Name) // as it was when the pod was created (firstOf)
	return nicrequest.CheckChange(before, after, first)
}

// make creates the PodNIC for a pod's NIC.
func (r *podReconciler) make(ctx context.Context, p *corev1.Pod, vpc string, n nicrequest.NIC) error {
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
	seen, err := r.states.make(key, func() (types.UID, error) {
		if err := failpoint.Hit("operator.port.nic.before"); err != nil {
			return "", err
		}
		err := r.api.client.Create(ctx, o, client.FieldOwner(v1alpha1.OwnerOperator))
		return o.UID, err
	})
	if seen {
		r.nics.AddObject(key, 0) // its event arrived before the reply
	}
	switch {
	case err == nil:
		r.o.Logger.Debug("PodNIC created", "podnic", key.String(), "pod", p.Name, "vpc", vpc)
		return failpoint.Hit("operator.port.nic.after")
	case apierrors.IsAlreadyExists(err):
		return nil // the cache is stale, or an earlier one of the same name is being deleted: events follow
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		r.events.warn(p, n.Name, "NICRefused", err)
	}
	return fmt.Errorf("create PodNIC %s: %w", key, err)
}

func age(p *corev1.Pod, now time.Time) time.Duration {
	return max(0, now.Sub(p.CreationTimestamp.Time))
}
