package scale

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
)

// bare stands in for the fleet, and decides nothing: for an event it assigns one address, and afterwards releases one. What a run
// with it uses, the nodes and the EC2 in memory use, and not Berth.
type bare struct {
	ec2  *ec2
	due  chan *node
	done chan struct{} // closed when run has returned
	err  error         // the first failure; read when run has returned
}

func newBare(e *ec2) *bare { return &bare{ec2: e, due: make(chan *node, 1), done: make(chan struct{})} }

// run serves nodes until due is closed.
func (b *bare) run(ctx context.Context) {
	defer close(b.done)
	for n := range b.due {
		if err := b.serve(ctx, n); err != nil && b.err == nil {
			b.err = fmt.Errorf("%s without Berth: %w", n.name, err)
		}
	}
}

// serve assigns an address to the ENI of a node that lacks one, or releases a free one.
func (b *bare) serve(ctx context.Context, n *node) error {
	n.mu.Lock()
	inv, lacks := n.inventory, n.has < n.want
	n.mu.Unlock()
	e := inv.ENIs[0]
	n.Usage()
	if lacks {
		given, err := b.ec2.AssignAddresses(ctx, e.ID, cloud.Amount{Addresses: 1})
		if err != nil {
			return err
		}
		e.Addresses = append(slices.Clone(e.Addresses), given[0].Addr())
		n.Usage() // for the plan that finds nothing left to do
	} else {
		taken := n.Withdraw(e.ID, cloud.Amount{Addresses: 1})
		if len(taken) == 0 {
			return fmt.Errorf("%s has no free address to release", e.ID)
		}
		if err := b.ec2.UnassignAddresses(ctx, e.ID, taken); err != nil {
			return err
		}
		e.Addresses = slices.DeleteFunc(slices.Clone(e.Addresses), taken[0].Contains)
	}
	inv.ENIs = []eni.ENI{e}
	return n.Publish(ctx, inv)
}

// end waits until run has returned, and returns the first failure.
func (b *bare) end() error {
	close(b.due)
	<-b.done
	return b.err
}
