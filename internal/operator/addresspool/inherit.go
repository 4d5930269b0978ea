package addresspool

import (
	"context"
	"fmt"
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

	mu        sync.Mutex // guards byRequest
	byRequest map[types.UID]string
}

func (h *inherited) block(request types.UID) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byRequest[request]
}

// begin reads all blocks once past the cache, when this operator begins to lead:
// a request that its predecessor cut a block for, and did not answer, is to get
// no other.
func (c *Controller) begin(ctx context.Context) error {
	for ctx.Err() == nil {
		err := c.inherit(ctx)
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
	return c.eachBlock(ctx, func(b *v1alpha1.AddressBlock) error {
		have, err := c.blockOf(ctx, b.RequestUID)
		if err != nil {
			return err
		}
		c.book.listed(b.PoolName, b.Index, c.now())
		if have == "" {
			c.inherited.mu.Lock()
			c.inherited.byRequest[b.RequestUID] = b.Name
			c.inherited.mu.Unlock()
			c.quotas.left(b, c.now())
		}
		return nil
	})
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

// eachBlock reads all blocks past the cache, some at a time.
func (c *Controller) eachBlock(ctx context.Context, do func(*v1alpha1.AddressBlock) error) error {
	list := &v1alpha1.AddressBlockList{}
	for {
		if err := c.live.List(ctx, list, client.Limit(pageSize), client.Continue(list.Continue)); err != nil {
			return fmt.Errorf("list blocks: %w", err)
		}
		for i := range list.Items {
			if err := do(&list.Items[i]); err != nil {
				return err
			}
		}
		if list.Continue == "" {
			return nil
		}
	}
}
