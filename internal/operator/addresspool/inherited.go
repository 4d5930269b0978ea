package addresspool

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/retry"
)

// inheritRetry is the wait between attempts to read what the previous leader left.
const inheritRetry = time.Second

// inherited are the blocks that the previous leader made last. The cache may trail the
// API server and not have them yet: a request that such a block was made for, and that was
// not answered, must get no other.
type inherited struct {
	api         *api
	allocator   *allocator
	quotas      *quotas
	withholding *withholding

	ready     chan struct{} // closed once run has read all blocks
	byRequest sync.Map      // names of blocks by the request's UID
}

// run reads all blocks from the API server when this operator begins to lead, and which
// addresses Nodes and Services have, so that none of these is handed out.
func (h *inherited) run(ctx context.Context) error {
	err := retry.Until(ctx, h.api.clock, retry.Policy{First: inheritRetry, Most: inheritRetry}, func(ctx context.Context) error {
		err := errors.Join(h.withholding.readAll(ctx), h.read(ctx))
		if err != nil {
			h.api.log.Warn("reading all blocks failed, will try again", "err", err)
		}
		return err
	})
	if err == nil {
		close(h.ready)
	}
	return nil
}

// before has reconciliations wait until all blocks were read.
func (h *inherited) before(next reconcile.Func) reconcile.Func {
	return func(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
		select {
		case <-h.ready:
			return next(ctx, q)
		case <-ctx.Done():
			return reconcile.Result{}, fmt.Errorf("waiting for the blocks of the previous leader: %w", ctx.Err())
		}
	}
}

func (h *inherited) read(ctx context.Context) error {
	var others []ownedRange
	hasBlocks := map[string]bool{}
	now := h.api.clock.Now()
	for b, err := range h.api.allBlocks(ctx) {
		if err != nil {
			return err
		}
		hasBlocks[b.NodeName] = true
		for _, w := range b.Withheld {
			if c, err := netip.ParsePrefix(w.CIDR); err == nil {
				others = append(others, ownedRange{Prefix: c, other: w.Owner})
			}
		}
		known, err := h.blockOf(ctx, b.RequestUID)
		if err != nil {
			return err
		}
		h.allocator.observeListed(b.PoolName, b.Index, now)
		if known == "" {
			h.byRequest.Store(b.RequestUID, b.Name)
			h.quotas.inherit(b, now)
		}
	}
	h.withholding.restore(others, hasBlocks)
	return nil
}

// blockOf is the name of the block that was made for a request; empty: none is known.
func (h *inherited) blockOf(ctx context.Context, request types.UID) (string, error) {
	list, err := objects.List[v1alpha1.AddressBlockList](ctx, h.api.cached, client.MatchingFields{byRequest: string(request)})
	if err != nil {
		return "", err
	}
	if len(list.Items) > 0 {
		return list.Items[0].Name, nil
	}
	name, _ := h.byRequest.Load(request)
	text, _ := name.(string)
	return text, nil
}
