package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/kubeapi"
)

// claimInterval is how often, where Config does not say, a node whose Node object
// is missing says of each of its blocks that it lives and has it: the operator
// releases blocks that were not renewed for a few times as long.
const claimInterval = 20 * time.Second

// renewBlocks renews the blocks while the Node is missing, until ctx ends. While it is
// there nothing is written.
func (s *Source) renewBlocks(ctx context.Context) {
	missing := false
	for {
		wait := time.Second // to notice that the Node is gone
		s.mu.Lock()
		blocks := s.ledger.toRenew()
		s.mu.Unlock()
		switch {
		case len(blocks) > 0 && !missing:
			s.log.Warn("the Node object of this node is missing; its blocks are kept by saying that it lives", "blocks", len(blocks))
		case len(blocks) == 0 && missing:
			s.log.Info("nothing is left to claim: the Node object of this node is there again, or it has no blocks")
		}
		if missing = len(blocks) > 0; missing {
			wait = s.cfg.ClaimInterval
			s.renew(ctx, blocks)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.clock.After(wait):
		}
	}
}

// renew writes the time into the status of each block.
func (s *Source) renew(ctx context.Context, blocks []blockFacts) {
	for _, b := range blocks {
		begun := s.clock.Now()
		err := s.renewOne(ctx, b, begun)
		if kubeapi.Ended(err) {
			return
		}
		result := "success"
		if err != nil {
			result = "error"
			s.log.Warn("a block could not be claimed", "block", b.name, "error", err)
		}
		s.cfg.Observer.Asked("renew-block", result, s.clock.Now().Sub(begun))
	}
}

func (s *Source) renewOne(ctx context.Context, b blockFacts, now time.Time) error {
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
	err = s.api.Patch(ctx, types.MergePatchType, blocksResource, b.name, "status", body, nil)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is no more; the watch will show it
	}
	return err
}
