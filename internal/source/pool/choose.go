package pool

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/source"
)

// A pod gets its address from the pool that its namespace's annotation names,
// else from the default one. Its own annotation counts only for a pool that lists
// its namespace (document 001, "IP Address Management": who can freely choose a
// pool can exhaust it, or expose a pod). As long as pod or namespace are not
// known nothing is assumed.

// podName names a pod.
type podName struct{ namespace, name string }

// podFacts is what matters of a pod.
type podFacts struct {
	uid types.UID
	// mirrors is the UID that the kubelet gives a static pod, of which the API
	// server has a copy with another; empty for other pods.
	mirrors string
	pool    string // annotation; empty without
}

// is tells whether these are the facts of a pod that the runtime names.
func (f podFacts) is(p attachment.Pod) bool {
	return p.UID == "" || p.UID == string(f.uid) || p.UID == f.mirrors
}

// world is what the choice looks at.
type world struct {
	pods       map[podName]podFacts
	namespaces map[string]string // annotation by namespace; empty without
	pools      map[string]*stock
}

// choose names the pool of a pod; empty while that cannot be told yet, and err
// then says why, for when nothing changes in time. With final, nothing that
// comes would change it.
func choose(w world, pod attachment.Pod) (name string, final bool, err *source.Exhausted) {
	if pod.Name == "" || pod.Namespace == "" {
		return "", true, exhausted("pod-unnamed", "the runtime does not tell which pod this is (K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS), so that its pool cannot be chosen")
	}
	facts, known := w.pods[podName{pod.Namespace, pod.Name}]
	if !known || !facts.is(pod) {
		return "", false, exhausted("pod-unknown", "pod %s/%s%s is not among this node's pods at the API server yet, so that its pool cannot be chosen",
			pod.Namespace, pod.Name, ofUID(pod.UID))
	}
	annotation, known := w.namespaces[pod.Namespace]
	if !known {
		return "", false, exhausted("namespace-unknown", "namespace %s is not known from the API server yet, so that the pool of its pods cannot be chosen", pod.Namespace)
	}
	given := cmp.Or(annotation, v1alpha1.DefaultPool)
	if facts.pool == "" || facts.pool == given {
		return given, true, nil
	}
	s := w.pools[facts.pool]
	if s == nil || !s.known {
		return "", false, exhausted("pool-unknown", "there is no AddressPool %s, which the pod's annotation %s names: create it, or correct the annotation", facts.pool, v1alpha1.AnnotationPool)
	}
	if !slices.Contains(s.podNamespaces, pod.Namespace) {
		return "", true, exhausted("pool-not-allowed", "the pod's annotation %s names AddressPool %s, whose spec.podNamespaces does not list namespace %s: "+
			"add it there, or remove the annotation", v1alpha1.AnnotationPool, facts.pool, pod.Namespace)
	}
	return facts.pool, true, nil
}

func ofUID(uid string) string {
	if uid == "" {
		return ""
	}
	return " (UID " + uid + ")"
}

func exhausted(reason, format string, args ...any) *source.Exhausted {
	return &source.Exhausted{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
