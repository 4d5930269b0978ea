package podnics

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/operator/podnics/warm"
	"github.com/berthnet/berth/internal/vpcport"
)

// newPool makes the pool of ports that no NIC has yet.
func (c *Controller) newPool() *warm.Pool {
	return warm.New(warm.Options{
		Cluster: c.o.Cluster, VPC: c.warmVPC, Most: c.branchesOf, Exists: c.vpcExists, Recorded: c.recorded, Freed: c.freed,
		Settle: c.o.Settle, Clock: c.o.Clock, Logger: c.o.Logger, Metrics: c.o.Metrics.warm, Idle: c.o.WarmIdle, Keep: c.o.WarmKeep,
	})
}

// warmVPC is a VPC as the pool sees it; false for one that is not open, or whose provider makes
// no ports before they are needed.
func (c *Controller) warmVPC(name string) (warm.VPC, bool) {
	opened, err := c.o.Networks.Of(name)
	if err != nil || !opened.Provider.Traits().Warm {
		return warm.VPC{}, false
	}
	return warm.VPC{
		UID: opened.UID, Network: opened.Network.ID, Provider: opened.Provider, Families: len(ipfamily.Set(opened.Spec.IPFamilies()).Families()),
		Ports: opened.Spec.WarmBranches(), Ending: c.vpc(context.Background(), name).DeletionTimestamp != nil,
	}, true
}

// branchesOf is how many branch interfaces the pods of a Node may have.
func (c *Controller) branchesOf(ctx context.Context, node string) int {
	n, err := c.node(ctx, node)
	if err != nil || n == nil {
		return 0
	}
	return int(branchesIn(n))
}

// branchesIn is how many branch interfaces the pods of a Node may have, as it says.
func branchesIn(n *corev1.Node) int64 {
	q := n.Status.Capacity[v1alpha1.ResourceBranches]
	return q.Value()
}

// vpcExists tells whether there is a VPC object with a UID.
func (c *Controller) vpcExists(uid string) bool {
	uids, err := c.vpcUIDs(context.Background())
	return err != nil || uids[uid]
}

// recorded are the IDs of the ports of all PodNICs, as the API server has them, and of those that are to
// be recorded.
func (c *Controller) recorded(ctx context.Context) (map[string]bool, error) {
	ids := c.book.ports()
	next := ""
	for {
		list := &v1alpha1.PodNICList{} // in a used one, objects keep fields that the new page leaves out
		if err := c.live.List(ctx, list, client.Limit(500), client.Continue(next)); err != nil {
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

// freed lets those NICs ask again that wait for room in a VPC.
func (c *Controller) freed(vpc string) {
	for _, key := range c.book.freed(vpc) {
		c.nics.AddObject(key, 0)
	}
}

// noteWarm tells the pool of a NIC.
func (c *Controller) noteWarm(s *scene) {
	if !s.warms() {
		return
	}
	n := warm.NIC{VPC: s.o.Spec.VPC, Host: s.want.Host, Node: s.next.node, Port: s.o.Status.PortID}
	if s.mayTake() {
		request := s.want.New()
		request.Device, request.Name, request.Addresses = "", "", s.anew
		n.Request = &request
	}
	c.pool.Note(s.o.UID, n)
}

// warms tells whether the VPC's provider makes ports before they are needed.
func (s *scene) warms() bool { return s.shut == nil && s.opened.Provider.Traits().Warm }

// mayTake tells whether a port that was made before serves for the NIC as well as a new one: it is
// a pod's, which lives and has a node.
func (s *scene) mayTake() bool {
	return s.warms() && s.want.Given == "" && s.o.Spec.Pod != nil && s.pod != nil && !s.want.Over && s.refuse == nil
}

// yields tells whether the port of a NIC, that was taken of the pool and whose mark the provider does not
// have yet, is recorded of another too, by an operator that was replaced: it stays with the one whose node has it
// plugged, else with one that is not being deleted, else with the older.
func (c *Controller) yields(ctx context.Context, o *v1alpha1.PodNIC, n nic) (bool, error) {
	p := n.have.Port
	if p == nil {
		return false, nil
	}
	if _, warm := p.WarmVPC(c.o.Cluster); !warm {
		return false, nil
	}
	list := &v1alpha1.PodNICList{}
	if err := c.client.List(ctx, list, client.MatchingFields{byPort: p.ID}, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list PodNICs with port %s: %w", p.ID, err)
	}
	for i := range list.Items {
		if other := &list.Items[i]; other.UID != o.UID && precedes(other, o, p.ID) {
			return true, nil
		}
	}
	return false, nil
}

// precedes tells whether a port that is recorded of two PodNICs stays with the first.
func precedes(a, b *v1alpha1.PodNIC, port string) bool {
	needs := func(o *v1alpha1.PodNIC) int {
		switch says := o.Status.Node; {
		case says != nil && says.PortID == port && says.State == v1alpha1.NodePlugged:
			return 0
		case o.DeletionTimestamp == nil:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(needs(a), needs(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID)) < 0
}

// take gives a NIC a port of the pool, if there is one.
func (c *Controller) take(ctx context.Context, s *scene) bool {
	if !s.mayTake() {
		return false
	}
	if !c.enter(ctx, s) {
		return false // as is said where one would be made
	}
	p, ok := c.pool.Take(s.o.UID, s.o.Spec.VPC, s.want.New())
	if !ok {
		c.book.leave(s.o.UID)
		return false
	}
	c.book.edit(s.o.UID, func(n *nic) { n.have, n.touched = n.have.Took(p), c.now() })
	return true
}

// inPool tells whether a port is the pool's, of a VPC object that there is.
func (c *Controller) inPool(p vpcport.Port, vpcs map[string]bool) bool {
	uid, warm := p.WarmVPC(c.o.Cluster)
	return warm && vpcs[uid]
}

// vpcUIDs are those of the VPC objects that there are.
func (c *Controller) vpcUIDs(ctx context.Context) (map[string]bool, error) {
	list := &v1alpha1.VPCList{}
	if err := c.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list VPCs from the cache: %w", err)
	}
	uids := map[string]bool{}
	for i := range list.Items {
		uids[string(list.Items[i].UID)] = true
	}
	return uids, nil
}
