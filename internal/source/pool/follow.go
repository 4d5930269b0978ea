package pool

import (
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
)

const (
	blocksResource   = "addressblocks"
	requestsResource = "blockrequests"
	poolsResource    = "addresspools"
)

var (
	nodesResource      = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	namespacesResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// partial is the metadata of an object.
type partial = metav1.PartialObjectMetadata

// only is a field selector.
func only(field, value string) string { return fields.OneTermEqualSelector(field, value).String() }

// follow keeps the ledger up to date with what the API server has, until ctx ends.
func (s *Source) follow(ctx context.Context, wg *sync.WaitGroup) {
	node := s.cfg.NodeName
	wg.Go(func() {
		kubeapi.Follow(ctx, blocksResource, s.api.Objects(blocksResource, only("nodeName", node),
			func() runtime.Object { return &v1alpha1.AddressBlockList{} }), s.onBlocks())
	})
	wg.Go(func() {
		kubeapi.Follow(ctx, requestsResource, s.api.Objects(requestsResource, only("spec.nodeName", node),
			func() runtime.Object { return &v1alpha1.BlockRequestList{} }), s.onRequests())
	})
	wg.Go(func() {
		kubeapi.Follow(ctx, poolsResource, s.api.Objects(poolsResource, "",
			func() runtime.Object { return &v1alpha1.AddressPoolList{} }), s.onPools())
	})
	wg.Go(func() {
		kubeapi.Follow(ctx, "nodes", s.api.Metadata(nodesResource, only("metadata.name", node), kubeapi.Bare()), s.onNode())
	})
	wg.Go(func() {
		kubeapi.Follow(ctx, "namespaces", s.api.Metadata(namespacesResource, "",
			kubeapi.Bare(v1alpha1.AnnotationPool)), s.onNamespaces())
	})
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

func (s *Source) onBlocks() kubeapi.Handler[*v1alpha1.AddressBlock] {
	return kubeapi.Handler[*v1alpha1.AddressBlock]{
		Heard: s.noteWatch(blocksResource),
		Put: func(o *v1alpha1.AddressBlock) {
			s.change(func(l *ledger, now time.Time) { s.putBlock(l, o, now) })
			s.commit.Set()
		},
		Gone: func(o *v1alpha1.AddressBlock) {
			s.change(func(l *ledger, now time.Time) {
				if h, ok := l.blocks[o.Name]; ok && h.uid == o.UID {
					s.loseBlock(l, o.Name, now)
				}
			})
			s.commit.Set()
		},
		All: func(list []*v1alpha1.AddressBlock) {
			s.change(func(l *ledger, now time.Time) {
				has := map[string]bool{}
				for _, o := range list {
					has[o.Name] = true
				}
				for _, name := range l.blockNames() {
					if !has[name] {
						s.loseBlock(l, name, now)
					}
				}
				for _, o := range list {
					s.putBlock(l, o, now)
				}
				l.synced.blocks, l.unconfirmed = true, false
			})
			s.commit.Set()
		},
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
	switch h := l.blocks[f.name]; {
	case h.conflict != "":
		s.log.Error("a block has addresses of another block of this node and is not used", "block", f.name, "prefixes", f.prefixes(), "other", h.conflict)
	case !had:
		s.log.Info("block", "block", f.name, "pool", f.pool, "prefixes", f.prefixes(), "draining", f.draining)
	case f.draining && !drained:
		s.log.Info("block is draining", "block", f.name, "pool", f.pool, "pods", l.usedIn(h))
	}
}

// loseBlock takes that a block is no more.
func (s *Source) loseBlock(l *ledger, name string, now time.Time) {
	if l.blocks[name].lost() {
		return
	}
	if pods := l.loseBlock(name, now); pods > 0 {
		s.log.Warn("a block was taken from this node while pods have addresses of it; they keep them, and may be cut off", "block", name, "pods", pods)
		return
	}
	s.log.Info("block gone", "block", name)
}

func (s *Source) onRequests() kubeapi.Handler[*v1alpha1.BlockRequest] {
	put := func(l *ledger, o *v1alpha1.BlockRequest, now time.Time) {
		if o.Spec.NodeName == s.cfg.NodeName {
			l.setRequest(readRequest(o, now))
		}
	}
	return kubeapi.Handler[*v1alpha1.BlockRequest]{
		Heard: s.noteWatch(requestsResource),
		Put: func(o *v1alpha1.BlockRequest) {
			s.change(func(l *ledger, now time.Time) { put(l, o, now) })
		},
		Gone: func(o *v1alpha1.BlockRequest) {
			s.change(func(l *ledger, _ time.Time) {
				if r, ok := l.requests[o.Name]; ok && r.uid == o.UID {
					delete(l.requests, o.Name)
				}
			})
		},
		All: func(list []*v1alpha1.BlockRequest) {
			s.change(func(l *ledger, now time.Time) {
				before := l.requests
				l.requests = map[string]*request{}
				for _, o := range list {
					if r, ok := before[o.Name]; ok {
						l.requests[o.Name] = r
					}
					put(l, o, now)
				}
				l.synced.requests = true
			})
		},
	}
}

func (s *Source) onPools() kubeapi.Handler[*v1alpha1.AddressPool] {
	put := func(l *ledger, o *v1alpha1.AddressPool) {
		bits := v1alpha1.DefaultBlockSizeBits
		if o.Spec.BlockSizeBits != nil {
			bits = int(*o.Spec.BlockSizeBits)
		}
		l.setPool(poolFacts{name: o.Name, bits: bits, deleting: o.DeletionTimestamp != nil, podNamespaces: slices.Clone(o.Spec.PodNamespaces)})
	}
	return kubeapi.Handler[*v1alpha1.AddressPool]{
		Heard: s.noteWatch(poolsResource),
		Put: func(o *v1alpha1.AddressPool) {
			s.change(func(l *ledger, now time.Time) {
				put(l, o)
				l.decideAll(now)
			})
		},
		Gone: func(o *v1alpha1.AddressPool) {
			s.change(func(l *ledger, _ time.Time) { l.dropPool(o.Name) })
		},
		All: func(list []*v1alpha1.AddressPool) {
			s.change(func(l *ledger, now time.Time) {
				for name := range l.pools {
					l.dropPool(name)
				}
				for _, o := range list {
					put(l, o)
				}
				l.synced.pools = true
				l.choicesListed(now)
			})
		},
	}
}

func (s *Source) onNode() kubeapi.Handler[*partial] {
	set := func(uid types.UID) {
		s.change(func(l *ledger, _ time.Time) {
			l.node = nodeState{known: true, uid: string(uid), missing: uid == ""}
		})
	}
	return kubeapi.Handler[*partial]{
		Heard: s.noteWatch("nodes"),
		Put:   func(o *partial) { set(o.UID) },
		Gone:  func(*partial) { set("") },
		All: func(list []*partial) {
			var uid types.UID
			for _, o := range list {
				uid = o.UID
			}
			set(uid)
		},
	}
}

func (s *Source) onNamespaces() kubeapi.Handler[*partial] {
	return kubeapi.Handler[*partial]{
		Heard: s.noteWatch("namespaces"),
		Put: func(o *partial) {
			s.change(func(l *ledger, now time.Time) {
				l.namespaces[o.Name] = o.Annotations[v1alpha1.AnnotationPool]
				l.decideAll(now)
			})
		},
		Gone: func(o *partial) {
			s.change(func(l *ledger, _ time.Time) { delete(l.namespaces, o.Name) })
		},
		All: func(list []*partial) {
			s.change(func(l *ledger, now time.Time) {
				clear(l.namespaces)
				for _, o := range list {
					l.namespaces[o.Name] = o.Annotations[v1alpha1.AnnotationPool]
				}
				l.synced.namespaces = true
				l.choicesListed(now)
			})
		},
	}
}
