package pool

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
)

const (
	blocksResource   = "addressblocks"
	requestsResource = "blockrequests"
	poolsResource    = "addresspools"
)

// follow keeps the ledger up to date with what the API server has, until ctx ends.
func (s *Source) follow(ctx context.Context, wg *sync.WaitGroup) {
	node := s.cfg.NodeName
	cluster := kubeapi.NewCluster(s.api)
	cluster.Follow(kubeapi.NodeNamed(node), handler(s, "nodes", s.node()))
	cluster.Follow(kubeapi.Namespaces, handler(s, "namespaces", namespaces), v1alpha1.AnnotationPool)
	wg.Go(func() { cluster.Run(ctx) })
	wg.Go(func() {
		kubeapi.Follow(ctx, blocksResource, s.api.Objects(blocksResource, kubeapi.Only("nodeName", node),
			func() runtime.Object { return &v1alpha1.AddressBlockList{} }), handler(s, blocksResource, s.blocks()))
	})
	wg.Go(func() {
		kubeapi.Follow(ctx, requestsResource, s.api.Objects(requestsResource, kubeapi.Only("spec.nodeName", node),
			func() runtime.Object { return &v1alpha1.BlockRequestList{} }), handler(s, requestsResource, s.requests()))
	})
	wg.Go(func() {
		kubeapi.Follow(ctx, poolsResource, s.api.Objects(poolsResource, "",
			func() runtime.Object { return &v1alpha1.AddressPoolList{} }), handler(s, poolsResource, pools))
	})
}

// kind is how objects of a kind change the ledger.
type kind[T metav1.Object] struct {
	known  func(l *ledger) iter.Seq[string] // names of those that it has
	put    func(l *ledger, o T, now time.Time)
	gone   func(l *ledger, name string, uid types.UID, now time.Time) // with uid empty: whichever has the name
	listed func(l *ledger)                                            // all there are were put
	after  func(l *ledger, now time.Time)                             // after each change
}

// handler changes the ledger as a kind says. What a list has not is gone.
func handler[T metav1.Object](s *Source, what string, k kind[T]) kubeapi.Handler[T] {
	change := func(do func(l *ledger, now time.Time)) {
		s.change(func(l *ledger, now time.Time) {
			do(l, now)
			if k.after != nil {
				k.after(l, now)
			}
		})
	}
	return kubeapi.Handler[T]{
		Heard: s.noteWatch(what),
		Put:   func(o T) { change(func(l *ledger, now time.Time) { k.put(l, o, now) }) },
		Gone:  func(o T) { change(func(l *ledger, now time.Time) { k.gone(l, o.GetName(), o.GetUID(), now) }) },
		All: func(list []T) {
			change(func(l *ledger, now time.Time) {
				gone := sets.New(slices.Collect(k.known(l))...)
				for _, o := range list {
					gone.Delete(o.GetName())
				}
				for _, name := range sets.List(gone) {
					k.gone(l, name, "", now)
				}
				for _, o := range list {
					k.put(l, o, now)
				}
				k.listed(l)
			})
		},
	}
}

// noteWatch notes whether something can be listed and watched, and logs when an
// outage begins or is over.
func (s *Source) noteWatch(what string) func(error) {
	return func(err error) {
		if kubeapi.Ended(err) {
			return
		}
		var before, after int
		s.change(func(l *ledger, _ time.Time) {
			before = len(l.synced.trouble)
			if err == nil {
				delete(l.synced.trouble, what)
			} else {
				l.synced.trouble[what] = err
			}
			after = len(l.synced.trouble)
			if err != nil && what == blocksResource && l.unconfirmed {
				l.unconfirmed = false // the API server is away: the file is all there is
				s.commit.Set()
			}
		})
		switch {
		case before == 0 && after > 0:
			s.log.Warn("the Kubernetes API cannot be used; serving goes on from memory", "what", what, "error", err)
		case before > 0 && after == 0:
			s.log.Info("the Kubernetes API can be used again")
		case err != nil:
			s.log.Debug("the Kubernetes API cannot be used", "what", what, "error", err)
		}
	}
}

// serveUnconfirmed lets the blocks of the file be served: the API server has had
// its time to correct them.
func (s *Source) serveUnconfirmed() {
	s.change(func(l *ledger, _ time.Time) { l.unconfirmed = false })
	s.commit.Set()
}

func (s *Source) blocks() kind[*v1alpha1.AddressBlock] {
	return kind[*v1alpha1.AddressBlock]{
		known: func(l *ledger) iter.Seq[string] { return maps.Keys(l.blocks) },
		put:   s.putBlock,
		gone: func(l *ledger, name string, uid types.UID, now time.Time) {
			if h, ok := l.blocks[name]; ok && (uid == "" || h.uid == uid) {
				s.loseBlock(l, name, now)
			}
		},
		listed: func(l *ledger) { l.synced.blocks, l.unconfirmed = true, false },
		after:  func(*ledger, time.Time) { s.commit.Set() },
	}
}

// putBlock takes a state of a block. One that makes no sense is logged and left out.
func (s *Source) putBlock(l *ledger, o *v1alpha1.AddressBlock, now time.Time) {
	f, err := readBlock(o)
	switch {
	case o.NodeName != s.cfg.NodeName:
		return
	case err != nil:
		s.log.Warn("a block that makes no sense is left out", "block", o.Name, "error", err)
		return
	}
	before, had := l.blocks[f.name]
	drained := had && before.draining
	l.setBlock(f, true, now)
	s.tellConflicts(l, f.name)
	switch h := l.blocks[f.name]; {
	case h.conflict != "":
		s.log.Error("a block has addresses of another block of this node and is not used", "block", f.name, "prefixes", f.prefixes(), "other", h.conflict)
	case !had:
		s.log.Info("block", "block", f.name, "pool", f.pool, "prefixes", f.prefixes(), "draining", f.draining)
	case f.draining && !drained:
		s.log.Info("block is draining", "block", f.name, "pool", f.pool, "pods", l.usedIn(h))
	}
}

// tellConflicts tells the pods that have an address of others.
func (s *Source) tellConflicts(l *ledger, block string) {
	h, ok := l.blocks[block]
	if !ok || h.conflict != "" {
		return
	}
	for _, c := range l.conflicts(h) {
		s.log.Warn("a pod has an address that something else has too; it keeps it, and packets for either may reach the other",
			"address", c.addr, "owner", c.owner, "block", block, "namespace", c.pod.Namespace, "pod", c.pod.Name)
		if s.cfg.Conflict != nil {
			s.cfg.Conflict(c.pod, c.ifName, fmt.Sprintf("address %s of this pod is also one of %s: packets for either may reach the other; delete the pod to have it get another address", c.addr, c.owner))
		}
	}
}

// loseBlock takes that a block is no more.
func (s *Source) loseBlock(l *ledger, name string, now time.Time) {
	if l.blocks[name].lost {
		return
	}
	if pods := l.loseBlock(name, now); pods > 0 {
		s.log.Warn("a block was taken from this node while pods have addresses of it; they keep them, and may be cut off", "block", name, "pods", pods)
		return
	}
	s.log.Info("block gone", "block", name)
}

func (s *Source) requests() kind[*v1alpha1.BlockRequest] {
	return kind[*v1alpha1.BlockRequest]{
		known: func(l *ledger) iter.Seq[string] { return maps.Keys(l.requests) },
		put: func(l *ledger, o *v1alpha1.BlockRequest, now time.Time) {
			if o.Spec.NodeName == s.cfg.NodeName {
				l.setRequest(readRequest(o, now))
			}
		},
		gone: func(l *ledger, name string, uid types.UID, _ time.Time) {
			if r, ok := l.requests[name]; ok && (uid == "" || r.uid == uid) {
				delete(l.requests, name)
			}
		},
		listed: func(l *ledger) { l.synced.requests = true },
	}
}

var pools = kind[*v1alpha1.AddressPool]{
	known: func(l *ledger) iter.Seq[string] { return maps.Keys(l.pools) },
	put: func(l *ledger, o *v1alpha1.AddressPool, _ time.Time) {
		bits := v1alpha1.DefaultBlockSizeBits
		if o.Spec.BlockSizeBits != nil {
			bits = int(*o.Spec.BlockSizeBits)
		}
		l.setPool(poolFacts{name: o.Name, bits: bits, deleting: o.DeletionTimestamp != nil, podNamespaces: slices.Clone(o.Spec.PodNamespaces)})
	},
	gone:   func(l *ledger, name string, _ types.UID, _ time.Time) { l.dropPool(name) },
	listed: func(l *ledger) { l.synced.pools = true },
	after:  (*ledger).decideAll,
}

// node is the Node of this node.
func (s *Source) node() kind[*kubeapi.Metadata] {
	return kind[*kubeapi.Metadata]{
		known:  func(*ledger) iter.Seq[string] { return slices.Values([]string{s.cfg.NodeName}) },
		put:    func(l *ledger, o *kubeapi.Metadata, _ time.Time) { l.node.uid = o.UID },
		gone:   func(l *ledger, _ string, _ types.UID, _ time.Time) { l.node.uid = "" },
		listed: func(l *ledger) { l.node.listed = true },
	}
}

var namespaces = kind[*kubeapi.Metadata]{
	known: func(l *ledger) iter.Seq[string] { return maps.Keys(l.namespaces) },
	put: func(l *ledger, o *kubeapi.Metadata, _ time.Time) {
		l.namespaces[o.Name] = o.Annotations[v1alpha1.AnnotationPool]
	},
	gone:   func(l *ledger, name string, _ types.UID, _ time.Time) { delete(l.namespaces, name) },
	listed: func(l *ledger) { l.synced.namespaces = true },
	after:  (*ledger).decideAll,
}
