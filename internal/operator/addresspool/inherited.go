package addresspool

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
)

const (
	// pageSize is how many blocks are read at a time.
	pageSize = 500
	// beginRetry is between two tries to read what the predecessor left.
	beginRetry = time.Second
)

// inherited are the blocks that the leader before this one cut last, and that
// the cache, which may trail the API server, did not have yet.
type inherited struct {
	ready chan struct{} // closed once they are known

	byRequest sync.Map // names of blocks by the request's UID
}

func (h *inherited) block(request types.UID) string {
	name, _ := h.byRequest.Load(request)
	text, _ := name.(string)
	return text
}

// begin reads all blocks once past the cache, when this operator begins to lead:
// a request that its predecessor cut a block for, and did not answer, is to get
// no other. It also reads which addresses others have, that none of these is given.
func (c *Controller) begin(ctx context.Context) error {
	for ctx.Err() == nil {
		err := errors.Join(c.readOccupied(ctx), c.inherit(ctx))
		if err == nil {
			close(c.inherited.ready)
			return nil
		}
		c.o.Logger.Warn("reading all blocks, will try again", "error", err)
		select {
		case <-ctx.Done():
		case <-c.o.Clock.After(beginRetry):
		}
	}
	return nil
}

func (c *Controller) inherit(ctx context.Context) error {
	var others []ownedRange
	hasBlocks := map[string]bool{}
	for b, err := range c.allBlocks(ctx) {
		if err != nil {
			return err
		}
		hasBlocks[b.NodeName] = true
		for _, w := range b.Withheld {
			if c, err := netip.ParsePrefix(w.CIDR); err == nil {
				others = append(others, ownedRange{Prefix: c, other: w.Owner})
			}
		}
		have, err := c.blockOf(ctx, b.RequestUID)
		if err != nil {
			return err
		}
		c.book.listed(b.PoolName, b.Index, c.now())
		if have == "" {
			c.inherited.byRequest.Store(b.RequestUID, b.Name)
			c.quotas.left(b, c.now())
		}
	}
	c.keepWithheld(others, hasBlocks)
	return nil
}

// begun waits for begin.
func (c *Controller) begun(ctx context.Context) error {
	select {
	case <-c.inherited.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for what the last leader left: %w", ctx.Err())
	}
}

// allBlocks reads blocks past the cache, some at a time. An error is the last.
func (c *Controller) allBlocks(ctx context.Context, of ...client.ListOption) iter.Seq2[*v1alpha1.AddressBlock, error] {
	return func(yield func(*v1alpha1.AddressBlock, error) bool) {
		next := ""
		for {
			list := &v1alpha1.AddressBlockList{} // in a used one, objects keep fields that the new page leaves out
			if err := c.live.List(ctx, list, slices.Concat(of, []client.ListOption{client.Limit(pageSize), client.Continue(next)})...); err != nil {
				yield(nil, fmt.Errorf("list blocks: %w", err))
				return
			}
			for i := range list.Items {
				if !yield(&list.Items[i], nil) {
					return
				}
			}
			if next = list.Continue; next == "" {
				return
			}
		}
	}
}
