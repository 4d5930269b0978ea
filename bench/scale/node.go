package scale

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
)

// node is the node's side of the allocator as its NodeNetwork object would be:
// what was published last, and how many addresses pods use.
type node struct {
	name, instance string
	gained         func(int) // called with each change of how much of want it has

	mu        sync.Mutex // guards all below
	inventory eni.Inventory
	used      map[netip.Addr]bool
	want      int // addresses with which it is filled
	has       int // of those
	filledAt  time.Time
}

var _ interface {
	eni.Node
	Reconciled(eni.Status)
} = (*node)(nil)

// Usage implements eni.Node.
func (n *node) Usage() eni.Usage {
	n.mu.Lock()
	defer n.mu.Unlock()
	u := eni.Usage{ENIs: make(map[string]eni.ENIUsage, len(n.inventory.ENIs))}
	for _, e := range n.inventory.ENIs {
		var of eni.ENIUsage
		for _, a := range e.Addresses {
			if n.used[a] {
				of.Used++
			} else {
				of.Free.Addresses++
			}
		}
		u.ENIs[e.ID] = of
	}
	return u
}

// Publish implements eni.Node.
func (n *node) Publish(_ context.Context, inv eni.Inventory) error {
	n.mu.Lock()
	n.inventory = inv
	before := n.has
	n.has = min(n.want, n.available())
	gained := n.has - before
	if gained > 0 && n.has == n.want {
		n.filledAt = time.Now()
	}
	n.mu.Unlock()
	if gained != 0 {
		n.gained(gained)
	}
	return nil
}

// available counts the addresses for pods. n.mu is held.
func (n *node) available() (count int) {
	for _, e := range n.inventory.ENIs {
		if e.Serves {
			count += len(e.Addresses)
		}
	}
	return count
}

// use gives free addresses to pods, and has the node want more of so many.
func (n *node) use(count, more int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.want += more
	for _, e := range n.inventory.ENIs {
		for _, a := range e.Addresses {
			if count > 0 && e.Serves && !n.used[a] {
				n.used[a] = true
				count--
			}
		}
	}
}

// leave has pods give addresses back, and the node want fewer of so many.
func (n *node) leave(count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.inventory.ENIs {
		for _, a := range e.Addresses {
			if count > 0 && n.used[a] {
				delete(n.used, a)
				n.want, n.has, count = n.want-1, n.has-1, count-1
			}
		}
	}
}

// ObserveFailed implements eni.Node.
func (*node) ObserveFailed(error) {}

// Withdraw implements eni.Node.
func (n *node) Withdraw(id string, want cloud.Amount) (out []netip.Prefix) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.inventory.ENIs {
		if e.ID == id {
			for _, a := range e.Addresses {
				if !n.used[a] && len(out) < want.Addresses {
					out = append(out, netip.PrefixFrom(a, a.BitLen()))
				}
			}
		}
	}
	return out
}

// RestoreWithdrawn implements eni.Node.
func (n *node) RestoreWithdrawn([]netip.Prefix) {}

// WithdrawENI implements eni.Node.
func (n *node) WithdrawENI(id string) bool { return n.Usage().ENIs[id].Used == 0 }

// Committed implements fleet.Node: one operator works for the node.
func (n *node) Committed() []eni.Release { return nil }

// Reconciled is called after every pass.
func (n *node) Reconciled(eni.Status) {}
