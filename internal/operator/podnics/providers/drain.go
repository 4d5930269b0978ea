package providers

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
)

// drain deletes the ports of the warm pool of a VPC that is being deleted: once it is gone nobody
// looks for them. What it lists may trail what was made before the deletion; what is being made then, the pool
// deletes itself. It returns how long to wait until it is to be looked at again; 0: none is left.
func (c *Controller) drain(ctx context.Context, v *v1alpha1.VPC, s *state) (wait time.Duration, err error) {
	if c.o.EC2 == nil || v.Spec.Provider != v1alpha1.ProviderEC2 {
		return 0, nil
	}
	settle := cmp.Or(c.o.EC2.Settle, branch.Settle)
	if err := c.deleteWarm(ctx, v, s); err != nil {
		return 0, err
	}
	return max(0, v.DeletionTimestamp.Add(settle+time.Second).Sub(c.now())), nil // of a second the API server keeps no parts
}

// deleteWarm deletes those that a listing shows.
func (c *Controller) deleteWarm(ctx context.Context, v *v1alpha1.VPC, s *state) error {
	if s.tended == nil {
		if why := c.tend(ctx, v, s); why != nil {
			return fmt.Errorf("open VPC %s to delete its warm pool: %s", v.Name, why.message)
		}
	}
	p := s.tended.provider
	list, err := p.Ports(ctx, vpcport.Filter{NetworkID: v.Spec.Network, Owner: vpcport.Owner})
	if err != nil {
		return fmt.Errorf("list the warm pool of VPC %s, which is being deleted: %w", v.Name, err)
	}
	deletions, ctx := errgroup.WithContext(ctx)
	deletions.SetLimit(atOnce)
	for _, o := range list {
		if uid, warm := o.WarmVPC(c.o.EC2.Cluster); !warm || uid != string(v.UID) {
			continue
		}
		deletions.Go(func() error {
			if err := p.Delete(ctx, o.ID); err != nil {
				return fmt.Errorf("delete a port of the warm pool of VPC %s, which is being deleted: %w", v.Name, err)
			}
			c.o.Logger.Info("port of the warm pool deleted", "vpc", v.Name, "port", o.ID, "host", o.Host)
			return nil
		})
	}
	return deletions.Wait()
}

// atOnce is how many deletions are under way at once.
const atOnce = 8
