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
	// askAgain is how often a subnet that was refused is looked at again. Most
	// of what may change that is an event besides.
	askAgain = 30 * time.Second
	// truce is how long two pools were seen to have a subnet both before one
	// gives way: by then whoever accepted one of them took it back, or is gone.
	truce = 5 * time.Second
)

// standing is what is known of a pool's subnets. Only the one worker that looks
// at pools has it.
type standing struct {
	uid      types.UID
	verified int // of the accepted subnets, the first ones, that no other pool has; only they are cut

	seen int64 // generation of the spec for which requests were looked at that the one before refused

	why         *refusal // why not more
	generation  int64    // of the spec that was refused
	until       time.Time
	clashedFrom time.Time // since when an accepted subnet was seen to be another's too; zero: it is not
}

// settled tells whether nothing is to be found out about a pool.
func (s *standing) settled(p *v1alpha1.AddressPool, now time.Time) bool {
	if s.uid != p.UID || s.verified != accepted(p) && s.why == nil {
		return false
	}
	return s.verified == len(p.Spec.Subnets) || s.why != nil && s.generation == p.Generation && now.Before(s.until)
}

// refuse notes why a subnet is not cut.
func (s *standing) refuse(p *v1alpha1.AddressPool, why *refusal, until time.Time) {
	s.why, s.generation, s.until = why, p.Generation, until
}

// standingOf is a pool's, begun anew for a new pool.
func (c *Controller) standingOf(p *v1alpha1.AddressPool) *standing {
	s := c.standings[p.Name]
	if s == nil || s.uid != p.UID {
		s = &standing{uid: p.UID}
		c.standings[p.Name] = s
	}
	return s
}

// reconsider has the pools that were refused a subnet looked at again, as one,
// which is not, gave something up.
func (c *Controller) reconsider(changed string) {
	for name, s := range c.standings {
		if name != changed && s.why != nil {
			s.until = time.Time{}
			c.again(&c.poolsQ, name)
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
func (c *Controller) accept(ctx context.Context, p *v1alpha1.AddressPool) (*v1alpha1.AddressPool, *standing, error) {
	s := c.standingOf(p)
	if s.settled(p, c.now()) {
		return p, s, nil
	}
	pools, p, err := c.readPools(ctx, p)
	if err != nil || p == nil {
		return nil, nil, err
	}
	own, other, why := clash(p.Name, pools)
	s.verified = max(s.verified, own) // a count never shrinks, but for those who did not read it
	if s.verified = min(s.verified, accepted(p)); other != nil && s.verified < accepted(p) {
		return p, s, c.giveWay(ctx, p, other, own, why, s)
	}
	s.clashedFrom = time.Time{}
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
	stray := straying(pools)
	var strays []holding
	blocks := &v1alpha1.AddressBlockList{}
	if err := c.client.List(ctx, blocks, client.UnsafeDisableDeepCopy); err != nil {
		return 0, nil, fmt.Errorf("list blocks: %w", err)
	}
	for i := range blocks.Items {
		strays = append(strays, stray(&blocks.Items[i])...)
	}
	n, why := decide(p.Name, pools, strays)
	if n == accepted(p) {
		return n, why, nil
	}
	strays = nil
	err := c.eachBlock(ctx, func(b *v1alpha1.AddressBlock) error {
		strays = append(strays, stray(b)...)
		return nil
	})
	n, why = decide(p.Name, pools, strays)
	return n, why, err
}

// grant accepts the first n subnets of a pool.
func (c *Controller) grant(ctx context.Context, p *v1alpha1.AddressPool, n int, s *standing) error {
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
	if _, other, why := clash(p.Name, pools); other != nil {
		s.refuse(p, why, c.now().Add(time.Second+rand.N(4*time.Second)))
		return c.takeBack(ctx, p, before, s)
	}
	s.verified = n
	c.o.Logger.Info("subnets accepted", "pool", p.Name, "subnets", n, "of", len(p.Spec.Subnets))
	c.events.Eventf(p, nil, corev1.EventTypeNormal, "SubnetsAccepted", "Accept", "%d of %d subnets are cut into blocks", n, len(p.Spec.Subnets))
	return nil
}

// giveWay ends that two pools have a subnet: nobody cuts it until one of them
// gave way, and that is one of which no block was cut; of two such the younger.
func (c *Controller) giveWay(ctx context.Context, p, other *v1alpha1.AddressPool, own int, why *refusal, s *standing) error {
	now := c.now()
	if s.clashedFrom.IsZero() {
		s.clashedFrom = now
		c.o.Logger.Warn("two pools have a subnet; neither gives blocks of it", "pool", p.Name, "other", other.Name, "because", why.message)
	}
	s.refuse(p, why, now.Add(truce/4))
	if now.Sub(s.clashedFrom) < truce {
		return nil
	}
	s.until = now.Add(askAgain)
	if byAge(*p, *other) < 0 {
		if cut, err := c.cutFrom(ctx, other.Name, 0); err != nil || !cut {
			return err // the other one gives way
		}
	}
	return c.takeBack(ctx, p, own, s)
}

// takeBack accepts only the first n subnets of a pool, unless a block was cut of
// the rest.
func (c *Controller) takeBack(ctx context.Context, p *v1alpha1.AddressPool, n int, s *standing) error {
	l, err := layout(p, n)
	if err != nil {
		return fmt.Errorf("AddressPool %s: %w", p.Name, err)
	}
	if cut, err := c.cutFrom(ctx, p.Name, l.Blocks()); err != nil || cut {
		return err
	}
	c.o.Logger.Warn("a subnet is another pool's too; taking it back", "pool", p.Name, "because", s.why.message)
	s.clashedFrom, s.verified = time.Time{}, min(s.verified, n)
	if err := c.writeAccepted(ctx, p, n); err != nil {
		return err
	}
	c.reconsider(p.Name)
	return nil
}

// cutFrom tells, past the cache, whether there is a block of a pool from an
// index on.
func (c *Controller) cutFrom(ctx context.Context, name string, from int64) (bool, error) {
	list := &v1alpha1.AddressBlockList{}
	for {
		if err := c.live.List(ctx, list, client.MatchingFields{"poolName": name}, client.Limit(pageSize), client.Continue(list.Continue)); err != nil {
			return false, fmt.Errorf("look for blocks of AddressPool %s: %w", name, err)
		}
		if slices.ContainsFunc(list.Items, func(b v1alpha1.AddressBlock) bool { return b.Index >= from }) {
			return true, nil
		}
		if list.Continue == "" {
			return false, nil
		}
	}
}

// writeAccepted writes how many subnets are accepted, unless somebody wrote to
// the pool meanwhile.
func (c *Controller) writeAccepted(ctx context.Context, p *v1alpha1.AddressPool, n int) error {
	before := p.DeepCopy()
	p.Status.AcceptedSubnets = int32(n)
	err := c.client.Status().Patch(ctx, p, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.OwnerOperator))
	if err != nil {
		return fmt.Errorf("accept %d subnets of AddressPool %s: %w", n, p.Name, err)
	}
	return nil
}
