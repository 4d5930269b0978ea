package nodeenis

import (
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// Totals are sums over all nodes, for metrics (Cilium's AWS ENI allocator, "Metrics").
type Totals struct {
	Used, Available, Needed      int // pods that have addresses; that there are addresses for; that more are wanted for
	ENIs                         int // with an address that no pod uses
	Nodes, InDeficit, AtCapacity int // nodes
}

// Totals counts as of now. It takes about a microsecond an address.
func (c *Controller) Totals() Totals {
	c.mu.Lock()
	nodes := make([]*node, 0, len(c.nodes))
	for _, n := range c.nodes {
		nodes = append(nodes, n)
	}
	c.mu.Unlock()
	t := Totals{Nodes: len(nodes)}
	for _, n := range nodes {
		n.count(&t)
	}
	return t
}

func (n *node) count(t *Totals) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t.Needed += n.fleet.status.Needed
	if n.fleet.status.Needed > 0 {
		t.InDeficit++
	}
	if n.fleet.status.AtCapacity {
		t.AtCapacity++
	}
	available := amounts{}
	for p, id := range nodenetwork.Available(n.obj) {
		available.add(id, p)
	}
	t.Available += available.pods(n.families())
	for _, e := range n.tally(n.obj).ENIs {
		t.Used += e.Used
		if e.Free != (cloud.Amount{}) {
			t.ENIs++
		}
	}
}
