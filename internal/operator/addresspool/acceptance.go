package addresspool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
)

const (
	// askAgain is how often a subnet that was refused is checked again. Most
	// of what may change that is an event besides.
	askAgain = 30 * time.Second
	// overlapGrace is how long two pools are seen with the same accepted subnet
	// before one loses it. By then the operator that accepted the second of them
	// has revoked it, unless it crashed.
	overlapGrace = 5 * time.Second
)

// poolState is what is known of a pool's subnets. Only the one worker that
// reconciles pools uses it.
type poolState struct {
	uid      types.UID
	verified int // of the accepted subnets, the first ones, that no other pool has; only they are cut

	seen int64 // generation of the spec with which refused requests were last reconciled

	why           *refusal // why not more
	generation    int64    // of the spec that was refused
	until         time.Time
	conflictSince time.Time // since when an accepted subnet was seen to be another's too; zero: it is not
}

// decided tells whether nothing is to be found out about a pool now.
func (s *poolState) decided(p *v1alpha1.AddressPool, now time.Time) bool {
	if s.uid != p.UID || s.verified != accepted(p) && s.why == nil {
		return false
	}
	return s.verified == len(p.Spec.Subnets) || s.why != nil && s.generation == p.Generation && now.Before(s.until)
}

// refuse notes why a subnet is not cut.
func (s *poolState) refuse(p *v1alpha1.AddressPool, why *refusal, until time.Time) {
	s.why, s.generation, s.until = why, p.Generation, until
}

// stateOf is the state of a pool; a pool that was made anew has a new one.
func (c *Controller) stateOf(p *v1alpha1.AddressPool) *poolState {
	s := c.states[p.Name]
	if s == nil || s.uid != p.UID {
		s = &poolState{uid: p.UID}
		c.states[p.Name] = s
	}
	return s
}

// reconsider reconciles the pools that were refused a subnet, but for the one
// that changed: it has fewer subnets now, or is gone.
func (c *Controller) reconsider(changed string) {
	for name, s := range c.states {
		if name != changed && s.why != nil {
			s.until = time.Time{}
			c.pools.Add(name)
		}
	}
}

// accept finds out which subnets of a pool may be cut: those that were accepted
// and are no other pool's, and those that it accepts now. It returns the pool as
// it is after that.
//
// A subnet is accepted in the pool's status, and all pools are read once more
// before a block is cut of it: of two operators that accept overlapping subnets
// at once, the one that writes later sees the other's, and takes its own back.
// Nobody cuts what he did not read so himself, however it came to be accepted.
func (c *Controller) accept(ctx context.Context, p *v1alpha1.AddressPool) (*v1alpha1.AddressPool, *poolState, error) {
	s := c.stateOf(p)
	if s.decided(p, c.now()) {
		return p, s, nil
	}
	pools, p, err := c.readPools(ctx, p)
	if err != nil || p == nil {
		return nil, nil, err
	}
	own, other, why := conflict(p.Name, pools)
	s.verified = max(s.verified, own) // a count never shrinks, but for those who did not read it
	if s.verified = min(s.verified, accepted(p)); other != nil && s.verified < accepted(p) {
		return p, s, c.resolveOverlap(ctx, p, other, own, why, s)
	}
	s.conflictSince = time.Time{}
	n, why, err := c.decide(ctx, p, pools)
	if err != nil {
		return nil, nil, err
	}
	s.refuse(p, why, c.now().Add(askAgain))
	if n == accepted(p) {
		return p, s, nil
	}
	return p, s, c.grant(ctx, p, n, s)
}

// readPools reads all pools past the cache, and p as it is among them: nil if it
// is not there any more.
func (c *Controller) readPools(ctx context.Context, p *v1alpha1.AddressPool) ([]v1alpha1.AddressPool, *v1alpha1.AddressPool, error) {
	pools := &v1alpha1.AddressPoolList{}
	if err := c.live.List(ctx, pools); err != nil {
		return nil, nil, fmt.Errorf("accept AddressPool %s: %w", p.Name, err)
	}
	for i := range pools.Items {
		if now := &pools.Items[i]; now.UID == p.UID && now.DeletionTimestamp == nil {
			return pools.Items, now.DeepCopy(), nil
		}
	}
	return nil, nil, nil
}

// decide is the decision of that name. Blocks are read past the cache only if
// that matters.
func (c *Controller) decide(ctx context.Context, p *v1alpha1.AddressPool, pools []v1alpha1.AddressPool) (int, *refusal, error) {
	orphansOf := orphanRanges(pools)
	known := c.readServices(ctx)
	others := slices.Clone(c.occupied.services())
	blocks := &v1alpha1.AddressBlockList{}
	if err := c.client.List(ctx, blocks, client.UnsafeDisableDeepCopy); err != nil {
		return 0, nil, fmt.Errorf("list blocks: %w", err)
	}
	for i := range blocks.Items {
		others = append(others, orphansOf(&blocks.Items[i])...)
	}
	n, why := decide(p.Name, pools, others)
	if n == accepted(p) {
		return n, why, nil
	}
	if n = accepted(p); !known {
		return n, &refusal{v1alpha1.ReasonPoolOverlaps, fmt.Sprintf("spec.subnets[%d]: the cluster's ServiceCIDRs, which it may overlap, cannot be read", n)}, nil
	}
	others = slices.Clone(c.occupied.services())
	for b, err := range c.allBlocks(ctx) {
		if err != nil {
			return 0, nil, err
		}
		others = append(others, orphansOf(b)...)
	}
	n, why = decide(p.Name, pools, others)
	return n, why, nil
}

// grant accepts the first n subnets of a pool.
func (c *Controller) grant(ctx context.Context, p *v1alpha1.AddressPool, n int, s *poolState) error {
	before := accepted(p)
	if err := failpoint.Hit("operator.pool.accept.before"); err != nil {
		return err
	}
	if err := c.writeAccepted(ctx, p, n); err != nil {
		return err
	}
	if err := failpoint.Hit("operator.pool.accept.after"); err != nil {
		return err
	}
	pools, now, err := c.readPools(ctx, p)
	if err != nil || now == nil {
		return err
	}
	if _, other, why := conflict(p.Name, pools); other != nil {
		s.refuse(p, why, c.now().Add(time.Second+rand.N(4*time.Second)))
		return c.revoke(ctx, p, before, s)
	}
	s.verified = n
	c.o.Logger.Info("subnets accepted", "pool", p.Name, "subnets", n, "of", len(p.Spec.Subnets))
	c.events.Eventf(p, nil, corev1.EventTypeNormal, "SubnetsAccepted", "Accept", "%d of %d subnets are cut into blocks", n, len(p.Spec.Subnets))
	return nil
}

// resolveOverlap ends that two pools have the same subnet. No block of it is cut
// until one of them has lost it: the one of which no block was cut, and the
// younger if that is so for both.
func (c *Controller) resolveOverlap(ctx context.Context, p, other *v1alpha1.AddressPool, own int, why *refusal, s *poolState) error {
	now := c.now()
	if s.conflictSince.IsZero() {
		s.conflictSince = now
		c.o.Logger.Warn("two pools have a subnet; neither gives blocks of it", "pool", p.Name, "other", other.Name, "because", why.message)
	}
	s.refuse(p, why, now.Add(overlapGrace/4))
	if now.Sub(s.conflictSince) < overlapGrace {
		return nil
	}
	s.until = now.Add(askAgain)
	if byAge(*p, *other) < 0 {
		if cut, err := c.cutFrom(ctx, other.Name, 0); err != nil || !cut {
			return err // the other one loses it
		}
	}
	return c.revoke(ctx, p, own, s)
}

// revoke accepts only the first n subnets of a pool, unless a block was cut of
// the rest.
func (c *Controller) revoke(ctx context.Context, p *v1alpha1.AddressPool, n int, s *poolState) error {
	l, err := layout(p, n)
	if err != nil {
		return fmt.Errorf("AddressPool %s: %w", p.Name, err)
	}
	if cut, err := c.cutFrom(ctx, p.Name, l.Blocks()); err != nil || cut {
		return err
	}
	c.o.Logger.Warn("a subnet is another pool's too; taking it back", "pool", p.Name, "because", s.why.message)
	s.conflictSince, s.verified = time.Time{}, min(s.verified, n)
	if err := c.writeAccepted(ctx, p, n); err != nil {
		return err
	}
	c.reconsider(p.Name)
	return nil
}

// cutFrom tells, past the cache, whether there is a block of a pool from an
// index on.
func (c *Controller) cutFrom(ctx context.Context, name string, from int64) (bool, error) {
	for b, err := range c.allBlocks(ctx, client.MatchingFields{"poolName": name}) {
		if err != nil {
			return false, fmt.Errorf("look for blocks of AddressPool %s: %w", name, err)
		}
		if b.Index >= from {
			return true, nil
		}
	}
	return false, nil
}

// writeAccepted writes how many subnets are accepted, unless somebody wrote to
// the pool meanwhile.
func (c *Controller) writeAccepted(ctx context.Context, p *v1alpha1.AddressPool, n int) error {
	before := p.DeepCopy()
	p.Status.AcceptedSubnets = int32(n)
	err := c.client.Status().Patch(ctx, p, ifUnchanged(before), client.FieldOwner(v1alpha1.OwnerOperator))
	if err != nil {
		return fmt.Errorf("accept %d subnets of AddressPool %s: %w", n, p.Name, err)
	}
	return nil
}
