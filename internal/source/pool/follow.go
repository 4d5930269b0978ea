package pool

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
)

const (
	blocksResource     = "addressblocks"
	requestsResource   = "blockrequests"
	poolsResource      = "addresspools"
	nodesResource      = "nodes"
	namespacesResource = "namespaces"
)

// mirror keeps the holdings up to date with the API server. The functions of its stores are called by Update.
func (s *Source) mirror() *kubeapi.Mirror {
	n, node := s.state.holdings, s.cfg.NodeName
	m := &kubeapi.Mirror{API: s.api, Sync: n.sync, Log: s.log, Update: func(change func()) {
		s.state.change(func(*holdings, time.Time) { change() })
	}}
	decide := func() { n.decideAll(s.cfg.Clock.Now()) }
	m.KeepMetadata(kubeapi.NodeNamed(node), kubeapi.Store[*kubeapi.Metadata]{
		Names: func() []types.NamespacedName { return []types.NamespacedName{{Name: node}} },
		Put:   func(o *kubeapi.Metadata) { n.node = o.UID },
		Drop:  func(types.NamespacedName, types.UID) { n.node = "" },
	})
	m.KeepMetadata(kubeapi.Namespaces, kubeapi.Store[*kubeapi.Metadata]{
		Names: func() []types.NamespacedName { return namesOf(n.pools.namespaces) },
		Put:   func(o *kubeapi.Metadata) { n.pools.namespaces[o.Name] = o.Annotations[v1alpha1.AnnotationPool] },
		Drop:  func(name types.NamespacedName, _ types.UID) { delete(n.pools.namespaces, name.Name) },
		After: decide,
	}, v1alpha1.AnnotationPool)
	kubeapi.Keep(m, poolsResource, s.api.Objects(poolsResource, "", func() runtime.Object { return &v1alpha1.AddressPoolList{} }),
		kubeapi.Store[*v1alpha1.AddressPool]{
			Names: func() []types.NamespacedName { return namesOf(n.pools.byName) },
			Put:   func(o *v1alpha1.AddressPool) { n.pools.set(readPool(o)) },
			Drop:  func(name types.NamespacedName, _ types.UID) { n.pools.drop(name.Name) },
			After: decide,
		})
	kubeapi.Keep(m, requestsResource, s.api.Objects(requestsResource, kubeapi.FieldEquals("spec.nodeName", node), func() runtime.Object { return &v1alpha1.BlockRequestList{} }),
		kubeapi.Store[*v1alpha1.BlockRequest]{
			Mine:  func(o *v1alpha1.BlockRequest) bool { return o.Spec.NodeName == node },
			Names: func() []types.NamespacedName { return namesOf(n.requests.byName) },
			Put:   func(o *v1alpha1.BlockRequest) { n.requests.set(readRequest(o, s.cfg.Clock.Now())) },
			Drop:  func(name types.NamespacedName, uid types.UID) { n.requests.drop(name.Name, uid) },
		})
	kubeapi.Keep(m, blocksResource, s.api.Objects(blocksResource, kubeapi.FieldEquals("nodeName", node), func() runtime.Object { return &v1alpha1.AddressBlockList{} }),
		kubeapi.Store[*v1alpha1.AddressBlock]{
			Mine:   func(o *v1alpha1.AddressBlock) bool { return o.NodeName == node },
			Names:  func() []types.NamespacedName { return namesOf(n.blocks.byName) },
			Put:    func(o *v1alpha1.AddressBlock) { s.putBlock(n, o) },
			Drop:   func(name types.NamespacedName, uid types.UID) { s.dropBlock(n, name.Name, uid) },
			Listed: func(bool) { n.unconfirmed = false },
			After:  s.state.commit.Set,
			Outage: func(begins bool) {
				if begins && n.unconfirmed {
					n.unconfirmed = false // nothing but the file is known
					s.state.commit.Set()
				}
			},
		})
	return m
}

// namesOf returns the names of objects without a namespace.
func namesOf[T any](byName map[string]T) (all []types.NamespacedName) {
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, types.NamespacedName{Name: name})
	}
	return all
}

// putBlock stores a block. An invalid one is logged and ignored. It has the lock, and logs when that is free.
func (s *Source) putBlock(n *holdings, o *v1alpha1.AddressBlock) {
	f, err := readBlock(o)
	if err != nil {
		s.state.then(func() { s.log.Warn("invalid block ignored", "block", o.Name, "err", err) })
		return
	}
	before, had := n.blocks.byName[f.name]
	drained := had && before.draining
	n.setBlock(f, true, s.cfg.Clock.Now())
	s.tellConflicts(n, f.name)
	h := n.blocks.byName[f.name]
	conflict, pods := h.conflict, n.pools.usedIn(h)
	s.state.then(func() {
		switch {
		case conflict != "":
			s.log.Error("block has addresses of another block of this node and is not used", "block", f.name, "prefixes", f.prefixes(), "other", conflict)
		case !had:
			s.log.Info("block added", "block", f.name, "pool", f.pool, "prefixes", f.prefixes(), "draining", f.draining)
		case f.draining && !drained:
			s.log.Info("block is draining", "block", f.name, "pool", f.pool, "pods", pods)
		}
	})
}

// tellConflicts tells the pods whose address something else has too.
func (s *Source) tellConflicts(n *holdings, block string) {
	h, ok := n.blocks.byName[block]
	if !ok || h.conflict != "" {
		return
	}
	if conflicts := n.leases.conflicts(h, n.policy.selfOwner(), n.nodeHas); len(conflicts) > 0 {
		s.state.then(func() { s.reportConflicts(conflicts, block) })
	}
}

// reportConflicts logs conflicts, and calls Config.Conflict for each.
func (s *Source) reportConflicts(conflicts []conflict, block string) {
	for _, c := range conflicts {
		s.log.Warn("a pod has an address that something else has too; it keeps it, and packets for either may reach the other",
			"address", c.addr, "owner", c.owner, "block", block, "namespace", c.pod.Namespace, "pod", c.pod.Name)
		if s.cfg.Conflict != nil {
			s.cfg.Conflict(c.pod, c.ifName, fmt.Sprintf("address %s of this pod is also one of %s: packets for either may reach the other; delete the pod to have it get another address", c.addr, c.owner))
		}
	}
}

// dropBlock notes that a block is gone; with uid empty, whichever has the name.
func (s *Source) dropBlock(n *holdings, name string, uid types.UID) {
	if h, ok := n.blocks.byName[name]; !ok || uid != "" && h.uid != uid || h.lost {
		return
	}
	pods := n.loseBlock(name, s.cfg.Clock.Now())
	s.state.then(func() {
		if pods > 0 {
			s.log.Warn("block was taken from this node while pods have addresses of it; they keep them, and may be cut off", "block", name, "pods", pods)
			return
		}
		s.log.Info("block gone", "block", name)
	})
}

// readPool takes what matters of an AddressPool.
func readPool(o *v1alpha1.AddressPool) poolFacts {
	bits := v1alpha1.DefaultBlockSizeBits
	if o.Spec.BlockSizeBits != nil {
		bits = int(*o.Spec.BlockSizeBits)
	}
	return poolFacts{name: o.Name, bits: bits, deleting: o.DeletionTimestamp != nil, podNamespaces: slices.Clone(o.Spec.PodNamespaces)}
}
