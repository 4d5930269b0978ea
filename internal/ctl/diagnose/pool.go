package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// unanswered is how long a request for a block may stay unanswered. The operator usually
// answers within a second.
const unanswered = 10 * time.Second

// choose returns the pool that a pod's address comes from, and what selected it
// (docs/guides/pools.md, "Pool selection").
func choose(f Facts) (pool, by string) {
	if p := f.Pod.Annotations[v1alpha1.AnnotationPool]; p != "" {
		return p, "the pod's annotation " + v1alpha1.AnnotationPool
	}
	if ns := f.Namespace.Value; ns != nil && ns.Annotations[v1alpha1.AnnotationPool] != "" {
		return ns.Annotations[v1alpha1.AnnotationPool], "the namespace's annotation " + v1alpha1.AnnotationPool
	}
	return v1alpha1.DefaultPool, "no annotation of the pod or its namespace names another"
}

// poolMode diagnoses a node in pool mode that has no free address of the pod's pool.
func poolMode(f Facts) *Diagnosis {
	if f.mode() != PoolMode || f.freeHere() || f.Pools.Value == nil {
		return nil
	}
	name, by := choose(f)
	i := slices.IndexFunc(*f.Pools.Value, func(p v1alpha1.AddressPool) bool { return p.Name == name })
	if i < 0 {
		return trouble(NoPool, fmt.Sprintf("AddressPool %s, which should give the pod its address (%s), does not exist.", name, by),
			"Create it, or correct the annotation.", seePools)
	}
	pool := (*f.Pools.Value)[i]
	for _, step := range []func(Facts, v1alpha1.AddressPool) *Diagnosis{notAllowed, poolNotReady, requestOf} {
		if d := step(f, pool); d != nil {
			return d
		}
	}
	if c := is(pool.Status.Conditions, v1alpha1.ConditionExhausted); c != nil {
		return exhausted(pool.Name, c.Message)
	}
	return nil
}

// notAllowed diagnoses a pod that names a pool which its namespace may not use.
func notAllowed(f Facts, pool v1alpha1.AddressPool) *Diagnosis {
	if f.Pod.Annotations[v1alpha1.AnnotationPool] == "" || slices.Contains(pool.Spec.PodNamespaces, f.Pod.Namespace) {
		return nil
	}
	if ns := f.Namespace.Value; f.Namespace.Unread != "" || ns != nil && cmp.Or(ns.Annotations[v1alpha1.AnnotationPool], v1alpha1.DefaultPool) == pool.Name {
		return nil // the pod would get this pool without the annotation too, or the default is unknown
	}
	return trouble(PoolNotAllowed, fmt.Sprintf("The pod's annotation %s names AddressPool %s, whose spec.podNamespaces does not list namespace %s.",
		v1alpha1.AnnotationPool, pool.Name, f.Pod.Namespace), "Add the namespace there, or remove the annotation.", seePools)
}

func poolNotReady(_ Facts, pool v1alpha1.AddressPool) *Diagnosis {
	if pool.DeletionTimestamp != nil {
		return trouble(PoolNotReady, fmt.Sprintf("AddressPool %s is being deleted and assigns no more addresses.", pool.Name),
			"Name another pool in the annotation "+v1alpha1.AnnotationPool+" of the namespace.", seePools)
	}
	c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason == v1alpha1.ReasonPoolExhausted {
		return nil
	}
	return trouble(PoolNotReady, fmt.Sprintf("AddressPool %s assigns no block (%s): %s", pool.Name, c.Reason, c.Message), "Correct the pool as the message says.", seePools)
}

// requestOf diagnoses the node's requests for a block of the pool.
func requestOf(f Facts, pool v1alpha1.AddressPool) *Diagnosis {
	if f.Requests.Value == nil {
		return nil
	}
	var oldest *v1alpha1.BlockRequest
	for _, r := range *f.Requests.Value {
		if r.Spec.PoolName != pool.Name {
			continue
		}
		if c := is(r.Status.Conditions, v1alpha1.ConditionFailed); c != nil {
			if c.Reason == v1alpha1.ReasonPoolExhausted {
				return exhausted(pool.Name, c.Message)
			}
			return trouble(RequestRefused, fmt.Sprintf("Node %s gets no further block of AddressPool %s (%s): %s", f.Pod.Spec.NodeName, pool.Name, c.Reason, c.Message),
				"Follow the message; the operator answers the request again when its pool or node changes.", seePools)
		}
		if r.Status.AddressBlockName == "" && (oldest == nil || r.CreationTimestamp.Before(&oldest.CreationTimestamp)) {
			oldest = &r
		}
	}
	if oldest == nil || f.Now.Sub(oldest.CreationTimestamp.Time) < unanswered {
		return nil
	}
	if d := noOperator(f); d != nil {
		return d
	}
	return trouble(RequestUnanswered, fmt.Sprintf("Node %s requested a block of AddressPool %s %s ago (BlockRequest %s), but the operator has not answered.",
		f.Pod.Spec.NodeName, pool.Name, f.Now.Sub(oldest.CreationTimestamp.Time).Round(time.Second), oldest.Name), "Check the log of berth-operator.", seePoolWaits)
}

func exhausted(pool, message string) *Diagnosis {
	return trouble(PoolExhausted, fmt.Sprintf("No block of AddressPool %s is free: %s", pool, message),
		"Append a subnet to the pool, or delete pods elsewhere: `kubectl berth pools` shows which nodes have its blocks.", seePools)
}
