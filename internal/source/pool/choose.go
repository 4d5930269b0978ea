package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// A pod gets its address from the pool that its namespace's annotation names,
// else from the default one. Its own annotation, or the configuration of one of
// its networks, counts only for a pool that lists its namespace (Coil's design, "IP Address Management": who can freely choose a
// pool can exhaust it, or expose a pod). As long as the namespace is not known
// nothing is assumed.
//
// What the pod's annotation says comes with the ADD: the runtime speaks for the
// pods of its node anyway. To read it from the API server would take a right to
// read every pod of the cluster.

// world is what the choice looks at.
type world struct {
	namespaces map[string]string // annotation by namespace; empty without
	pools      map[string]*poolState
}

// told is a wish with what is assumed of annotations that are not told.
func (p policy) told(w source.Wish) source.Wish {
	w.Told = w.Told || p.ignoreUntold
	return w
}

// choose names the pool of a pod; empty while that cannot be told yet, and err
// then says why, for when nothing changes in time. With final, nothing that
// comes would change it.
func choose(w world, pod attachment.Pod, wish source.Wish) (name string, final bool, err *source.Exhausted) {
	if pod.Name == "" || pod.Namespace == "" {
		return "", true, exhausted("pod-unnamed", "the runtime does not tell which pod this is (K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS), so that its pool cannot be chosen")
	}
	annotation, known := w.namespaces[pod.Namespace]
	if !known {
		return "", false, exhausted("namespace-unknown", "namespace %s is not known from the API server yet, so that the pool of its pods cannot be chosen", pod.Namespace)
	}
	given := cmp.Or(annotation, v1alpha1.DefaultPool)
	asked, by, change := wish.Annotations[v1alpha1.AnnotationPool], "the pod's annotation "+v1alpha1.AnnotationPool, "the annotation"
	if wish.NetworkPool != "" {
		asked, by, change = wish.NetworkPool, "pool of the network's configuration", "it there"
	} else if !wish.Told {
		return w.chooseWithoutAnnotations(pod.Namespace, given)
	}
	if asked == "" || asked == given {
		return given, true, nil
	}
	s := w.pools[asked]
	if s == nil || !s.known {
		return "", false, exhausted("pool-unknown", "there is no AddressPool %s, which %s names: create it, or correct %s", asked, by, change)
	}
	if !slices.Contains(s.podNamespaces, pod.Namespace) {
		return "", true, exhausted("pool-not-allowed", "%s names AddressPool %s, whose spec.podNamespaces does not list namespace %s: "+
			"add the namespace to the pool, or remove %s", by, asked, pod.Namespace, change)
	}
	return asked, true, nil
}

// chooseWithoutAnnotations is choose where the runtime does not tell annotations. A pod whose
// namespace no pool lists has no choice. Another may have chosen, and would be
// in the wrong pool unnoticed: it gets no address.
func (w world) chooseWithoutAnnotations(namespace, given string) (name string, final bool, err *source.Exhausted) {
	told := false
	for _, name := range slices.Sorted(maps.Keys(w.pools)) {
		s := w.pools[name]
		told = told || s.known
		if s.known && name != given && slices.Contains(s.podNamespaces, namespace) {
			return "", true, exhausted("annotations-untold", "the container runtime does not tell the pod's annotations, by which pods of namespace %s may choose AddressPool %s: "+
				"use containerd 1.5, CRI-O 1.29 or later and the configuration that berthd installs, which declares the capability io.kubernetes.cri.pod-annotations; "+
				"or take the namespace out of spec.podNamespaces; or set --ignore-untold-annotations, as Multus needs", namespace, name)
		}
	}
	if !told {
		return "", false, exhausted("pool-unknown", "there is no AddressPool yet: create one, named %s for pods that choose none", v1alpha1.DefaultPool)
	}
	return given, true, nil
}

// annotations are what the source looks at of a pod.
var annotations = []string{v1alpha1.AnnotationPool}

// Annotations implements source.Source.
func (s *Source) Annotations() []string { return annotations }

// CheckWish implements source.Source.
func (s *Source) CheckWish(w source.Wish) error {
	if err := source.CheckPoolName("the pod's annotation "+v1alpha1.AnnotationPool, w.Annotations[v1alpha1.AnnotationPool]); err != nil {
		return err
	}
	return w.CheckNetworkPool()
}

func exhausted(reason, format string, args ...any) *source.Exhausted {
	return &source.Exhausted{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
