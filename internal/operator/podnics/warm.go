package podnics

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/podnics/warm"
)

// warmSource provides what the pool of warm ports needs from the controllers.
type warmSource struct {
	o      Options
	api    *kubeAPI
	states *nicStates
}

// newPool returns the pool of warm ports. It calls freed with a VPC that has room for new ports again.
func newPool(o Options, api *kubeAPI, states *nicStates, freed func(vpc string)) *warm.Pool {
	w := &warmSource{o, api, states}
	return warm.New(warm.Options{
		Cluster: o.Cluster, VPC: w.vpc, Most: w.branchesOf, Exists: w.exists, Recorded: w.recorded, Freed: freed,
		Settle: o.Settle, Clock: o.Clock, Logger: o.Logger, Metrics: o.Metrics.warm, Idle: o.WarmIdle, Keep: o.WarmKeep,
	})
}

// vpc returns a VPC as the pool sees it, or false if it is not open or its provider has no warm ports.
func (w *warmSource) vpc(name string) (warm.VPC, bool) {
	opened, err := w.o.Networks.Of(name)
	if err != nil || !opened.Provider.Traits().Warm {
		return warm.VPC{}, false
	}
	return warm.VPC{
		UID: opened.UID, Network: opened.Network.ID, Provider: opened.Provider, Families: len(ipfamily.Set(opened.Spec.IPFamilies()).Families()),
		Ports: opened.Spec.WarmBranches(), Ending: w.api.vpc(context.Background(), name).DeletionTimestamp != nil,
	}, true
}

// branchesOf returns how many branch interfaces the pods of a Node may have, or 0 if the Node is unknown.
func (w *warmSource) branchesOf(ctx context.Context, node string) int {
	n, err := w.api.node(ctx, node)
	if err != nil || n == nil {
		return 0
	}
	return int(branchesIn(n))
}

// branchesIn returns how many branch interfaces the pods of a Node may have according to its capacity.
func branchesIn(n *corev1.Node) int64 {
	q := n.Status.Capacity[v1alpha1.ResourceBranches]
	return q.Value()
}

// exists reports whether there is a VPC object with this UID, or the cache cannot tell.
func (w *warmSource) exists(uid string) bool {
	vpcs, err := w.api.vpcs(context.Background())
	return err != nil || vpcs[uid] != ""
}

// recorded returns the IDs of the ports that PodNICs at the API server record, and of those that NICs have and may still record.
func (w *warmSource) recorded(ctx context.Context) (map[string]bool, error) {
	ids := w.states.ports()
	next := ""
	for {
		list := &v1alpha1.PodNICList{} // decoding into a reused list would keep fields that new items lack
		if err := w.api.live.List(ctx, list, client.Limit(objects.PageSize), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("list PodNICs: %w", err)
		}
		for i := range list.Items {
			ids[list.Items[i].Status.PortID], ids[list.Items[i].Spec.PortID] = true, true
		}
		if next = list.Continue; next == "" {
			return ids, nil
		}
	}
}
