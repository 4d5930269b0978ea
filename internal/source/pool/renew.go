package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/metric"
)

// claimInterval is the default of Config.ClaimInterval. The operator releases blocks of missing Nodes that were not renewed
// for a few times as long.
const claimInterval = 20 * time.Second

// claimer renews the node's blocks while its Node is missing. While the Node exists nothing is written.
type claimer struct {
	state    *guarded
	api      *kubeapi.Client
	interval time.Duration
	observer Observer
	log      *slog.Logger
}

// run works until ctx ends.
func (c *claimer) run(ctx context.Context) {
	missing := false
	for {
		wait := time.Second // to notice that the Node is gone
		var blocks []blockFacts
		c.state.with(func(n *holdings, _ time.Time) {
			if n.nodeMissing() {
				blocks = n.blocks.inUse()
			}
		})
		switch {
		case len(blocks) > 0 && !missing:
			c.log.Warn("the Node object of this node is missing; its blocks are claimed until it is back", "blocks", len(blocks))
		case len(blocks) == 0 && missing:
			c.log.Info("blocks are no longer claimed: the Node object of this node is back, or it has no blocks")
		}
		if missing = len(blocks) > 0; missing {
			wait = c.interval
			c.renew(ctx, blocks)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.state.clock.After(wait):
		}
	}
}

// renew writes the time into the status of each block.
func (c *claimer) renew(ctx context.Context, blocks []blockFacts) {
	for _, b := range blocks {
		started := c.state.clock.Now()
		err := c.renewOne(ctx, b, started)
		if kubeapi.Cancelled(err) {
			return
		}
		if err != nil {
			c.log.Warn("block not claimed", "block", b.name, "err", err)
		}
		c.observer.Asked("renew-block", metric.Result(err), c.state.clock.Now().Sub(started))
	}
}

func (c *claimer) renewOne(ctx context.Context, b blockFacts, now time.Time) error {
	var patch struct {
		Metadata struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
		Status struct {
			RenewTime metav1.MicroTime `json:"renewTime"`
		} `json:"status"`
	}
	patch.Metadata.UID, patch.Status.RenewTime = b.uid, metav1.NewMicroTime(now)
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	err = c.api.Patch(ctx, types.MergePatchType, blocksResource, b.name, "status", body, nil)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, as the watch will show
	}
	return err
}
