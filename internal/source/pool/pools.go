package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/addressqueue"
)

// pools is the pools that this node uses, or could, and what determines which of them a pod uses.
type pools struct {
	byName     map[string]*poolState
	namespaces map[string]string // annotation by namespace; empty without
	cooling    time.Duration

	undecided addressqueue.Queue // pods whose pool is not known yet
	// chosen is the pools of pods that had an address of one: after a start without the API server nothing else is
	// known.
	chosen map[podInterface]string
}

// podInterface identifies an interface of a pod, whatever its sandbox. Interfaces of different networks may have different
// pools.
type podInterface struct{ uid, network, ifName string }

func interfaceOf(key attachment.Key, pod attachment.Pod) podInterface {
	return podInterface{pod.UID, key.Network, key.IfName}
}

// poolState is a pool on this node.
type poolState struct {
	name  string
	alloc *ipam.Allocator[attachment.Key] // of the first family of its blocks
	queue addressqueue.Queue

	known         bool     // the AddressPool exists
	deleting      bool     // it is being deleted
	podNamespaces []string // whose pods may name the pool
	size          int      // addresses of a block; 0: not known

	refused error // of the last attempt to create a request
}

// get returns a pool, which is added if it is missing.
func (p *pools) get(name string) *poolState {
	s, ok := p.byName[name]
	if !ok {
		s = &poolState{name: name, alloc: ipam.New[attachment.Key](p.cooling)}
		p.byName[name] = s
	}
	return s
}

// poolFacts is what matters of an AddressPool.
type poolFacts struct {
	name          string
	bits          int
	deleting      bool
	podNamespaces []string
}

// set stores an AddressPool.
func (p *pools) set(f poolFacts) {
	s := p.get(f.name)
	s.known, s.deleting, s.podNamespaces, s.size = true, f.deleting, f.podNamespaces, 1<<min(max(f.bits, 0), maxBits)
}

// drop notes that an AddressPool is gone. Its blocks stay while they are used.
func (p *pools) drop(name string) {
	if s, ok := p.byName[name]; ok {
		s.known, s.deleting, s.podNamespaces = false, false, nil
	}
}

// nextExpiry returns when the next address has cooled; zero: none cools.
func (p *pools) nextExpiry() (at time.Time) {
	for _, s := range p.byName {
		if t, ok := s.alloc.NextExpiry(); ok {
			at = retry.Earliest(time.Time{}, at, t)
		}
	}
	return at
}

// counts are the numbers of a block's addresses.
func (p *pools) counts(h *heldBlock) ipam.Counts { return p.get(h.pool).alloc.Count(h.name) }

// usedIn counts the pods that have addresses of a block.
func (p *pools) usedIn(h *heldBlock) int {
	if h.conflict != "" {
		return 0
	}
	return p.counts(h).Used
}

// waiter is the waiter of an attachment, or nil.
func (p *pools) waiter(key attachment.Key) *addressqueue.Waiter {
	for _, s := range p.byName {
		if w := s.queue.Find(key); w != nil {
			return w
		}
	}
	return p.undecided.Find(key)
}

// A pod gets its address from the pool that its namespace's annotation names, or else from the default pool. Its own
// annotation, or the configuration of one of its networks, counts only for a pool that lists its namespace (Coil's
// design, "IP Address Management": whoever may choose any pool can exhaust it, or expose a pod). While the namespace is
// not known, nothing is assumed.
//
// The pod's annotation comes with the ADD, because the runtime can impersonate the pods of its node anyway. Reading it
// from the API server would require permission to read every pod of the cluster.

// assumed returns options with what is assumed of annotations that the runtime does not pass.
func (p policy) assumed(w source.PodOptions) source.PodOptions {
	w.AnnotationsKnown = w.AnnotationsKnown || p.ignoreUntold
	return w
}

// choose returns the name of a pod's pool. It is empty while the pool is not known; err then says why, in case nothing
// changes in time. final: nothing that the API server may still send changes the result.
func (p *pools) choose(pod attachment.Pod, options source.PodOptions) (name string, final bool, err *source.Exhausted) {
	if pod.Name == "" || pod.Namespace == "" {
		return "", true, exhausted("pod-unnamed", "the runtime does not pass the pod's name (K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS), which determines its pool")
	}
	annotation, known := p.namespaces[pod.Namespace]
	if !known {
		return "", false, exhausted("namespace-unknown", "the API server has not listed namespace %s yet, which determines the pool of its pods", pod.Namespace)
	}
	given := cmp.Or(annotation, v1alpha1.DefaultPool)
	asked, by, change := options.Annotations[v1alpha1.AnnotationPool], "the pod's annotation "+v1alpha1.AnnotationPool, "the annotation"
	if options.NetworkPool != "" {
		asked, by, change = options.NetworkPool, "pool of the network's configuration", "it there"
	} else if !options.AnnotationsKnown {
		return p.chooseWithoutAnnotations(pod.Namespace, given)
	}
	if asked == "" || asked == given {
		return given, true, nil
	}
	s := p.byName[asked]
	if s == nil || !s.known {
		return "", false, exhausted("pool-unknown", "AddressPool %s, which %s names, does not exist: create it, or correct %s", asked, by, change)
	}
	if !slices.Contains(s.podNamespaces, pod.Namespace) {
		return "", true, exhausted("pool-not-allowed", "%s names AddressPool %s, whose spec.podNamespaces does not list namespace %s: "+
			"add the namespace to the pool, or remove %s", by, asked, pod.Namespace, change)
	}
	return asked, true, nil
}

// chooseWithoutAnnotations is choose where the runtime does not pass annotations. A pod whose namespace is listed by no
// pool has no choice. Any other may have named a pool, and could end up in the wrong one unnoticed: it gets no address.
func (p *pools) chooseWithoutAnnotations(namespace, given string) (name string, final bool, err *source.Exhausted) {
	anyKnown := false
	for _, name := range slices.Sorted(maps.Keys(p.byName)) {
		s := p.byName[name]
		anyKnown = anyKnown || s.known
		if s.known && name != given && slices.Contains(s.podNamespaces, namespace) {
			return "", true, exhausted("annotations-untold", "the container runtime does not pass the pod's annotations, with which pods of namespace %s may choose AddressPool %s: "+
				"use containerd 1.5, CRI-O 1.29 or later and the configuration that berthd installs, which declares the capability io.kubernetes.cri.pod-annotations; "+
				"or remove the namespace from spec.podNamespaces; or set --ignore-untold-annotations, as Multus needs", namespace, name)
		}
	}
	if !anyKnown {
		return "", false, exhausted("pool-unknown", "no AddressPool exists yet: create one, named %s for pods that choose none", v1alpha1.DefaultPool)
	}
	return given, true, nil
}

func exhausted(reason, format string, args ...any) *source.Exhausted {
	return &source.Exhausted{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
