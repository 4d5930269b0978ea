package addresspool

import (
	"maps"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Usage is how much of a pool is given.
type Usage struct {
	Pool      string
	Blocks    v1alpha1.PoolCounts
	Addresses v1alpha1.PoolCounts
	Waiting   int // requests that failed and wait for a block
}

// Usage lists the pools by name. It is quick.
func (c *Controller) Usage() (list []Usage) {
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.book.pools)) {
		g := c.book.pools[name]
		if g.uid == "" {
			continue // there is no such pool
		}
		n := g.counts()
		list = append(list, Usage{Pool: name, Blocks: n.blocks, Addresses: n.addresses, Waiting: len(g.waiting)})
	}
	return list
}
