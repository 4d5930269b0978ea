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
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
)

const (
	// recheckRefused is how often a subnet that was refused is checked again. Most of
	// what may change the answer is an event as well.
	recheckRefused = 30 * time.Second
	// overlapGrace is how long two pools are seen with the same accepted subnet
	// before one loses it. By then the operator that accepted the second of them
	// has revoked it, unless it crashed.
	overlapGrace = 5 * time.Second
)

// acceptance accepts the subnets of pools. A subnet is accepted in the pool's status, and all
// pools are read again before a block is cut from it: of two operators that accept
// overlapping subnets at once, the one that writes later sees the other's subnet, and revokes
// its own. An operator cuts no subnet that it has not read so itself, however it was accepted.
// The one worker of pools uses it.
type acceptance struct {
	api         *api
	queue       *queue.Queue // of pools
	withholding *withholding

	states map[string]*poolState
}

// poolState is what is known of a pool's subnets.
type poolState struct {
	uid      types.UID
	verified int // how many of the accepted subnets, from the first on, are no other pool's; only they are cut

	seen int64 // generation of the spec with which refused requests were last reconciled

	why           *refusal // why no further subnet is accepted
	generation    int64    // of the spec that was refused
	until         time.Time
	conflictSince time.Time // since when an accepted subnet is another pool's too; zero: it is not
}

// isDecided reports whether nothing needs to be found out about a pool now.
func (s *poolState) isDecided(p *v1alpha1.AddressPool, now time.Time) bool {
	if s.uid != p.UID || s.verified != accepted(p) && s.why == nil {
		return false
	}
	return s.verified == len(p.Spec.Subnets) || s.why != nil && s.generation == p.Generation && now.Before(s.until)
}

// refuse sets why a subnet is not cut, and until when that is not checked again.
func (s *poolState) refuse(p *v1alpha1.AddressPool, why *refusal, until time.Time) {
	s.why, s.generation, s.until = why, p.Generation, until
}

// stateOf returns the state of a pool, which is new if another pool has the name now.
func (a *acceptance) stateOf(p *v1alpha1.AddressPool) *poolState {
	s := a.states[p.Name]
	if s == nil || s.uid != p.UID {
		s = &poolState{uid: p.UID}
		a.states[p.Name] = s
	}
	return s
}

// forget drops a pool that is gone, and reports whether it was known.
func (a *acceptance) forget(name string) (known bool) {
	if _, known = a.states[name]; known {
		delete(a.states, name)
		a.reconsider(name)
	}
	return known
}

// reconsider reconciles the pools that were refused a subnet, except one that has fewer
// subnets now, or is gone.
func (a *acceptance) reconsider(changed string) {
	for name, s := range a.states {
		if name != changed && s.why != nil {
			s.until = time.Time{}
			a.queue.Add(name)
		}
	}
}

// accept finds out which subnets of a pool may be cut: those that were accepted before and are
// no other pool's, and those that it accepts now. It returns the pool as it is then; nil: it is
// gone.
func (a *acceptance) accept(ctx context.Context, p *v1alpha1.AddressPool) (*v1alpha1.AddressPool, *poolState, error) {
	s, now := a.stateOf(p), a.api.clock.Now()
	if s.isDecided(p, now) {
		return p, s, nil
	}
	pools, p, err := a.readPools(ctx, p)
	if err != nil || p == nil {
		return nil, nil, err
	}
	own, other, why := conflict(p.Name, pools)
	s.verified = max(s.verified, own) // the count shrinks only where this operator has not verified it
	if s.verified = min(s.verified, accepted(p)); other != nil && s.verified < accepted(p) {
		return p, s, a.resolveOverlap(ctx, p, other, own, why, s)
	}
	s.conflictSince = time.Time{}
	n, why, err := a.decide(ctx, p, pools)
	if err != nil {
		return nil, nil, err
	}
	s.refuse(p, why, now.Add(recheckRefused))
	if n == accepted(p) {
		return p, s, nil
	}
	return p, s, a.grant(ctx, p, n, s)
}

// readPools reads all pools from the API server, and p as it is among them; nil: it is gone.
func (a *acceptance) readPools(ctx context.Context, p *v1alpha1.AddressPool) ([]v1alpha1.AddressPool, *v1alpha1.AddressPool, error) {
	pools, err := objects.List[v1alpha1.AddressPoolList](ctx, a.api.live)
	if err != nil {
		return nil, nil, fmt.Errorf("accept AddressPool %s: %w", p.Name, err)
	}
	for i := range pools.Items {
		if now := &pools.Items[i]; now.UID == p.UID && now.DeletionTimestamp == nil {
			return pools.Items, now.DeepCopy(), nil
		}
	}
	return nil, nil, nil
}

// decide is the decision of that name. Blocks are read from the API server only where the
// cache's would change it.
func (a *acceptance) decide(ctx context.Context, p *v1alpha1.AddressPool, pools []v1alpha1.AddressPool) (int, *refusal, error) {
	orphansOf := orphanRanges(pools)
	servicesKnown := a.withholding.readServices(ctx)
	services := a.withholding.occupied.services()
	blocks, err := objects.List[v1alpha1.AddressBlockList](ctx, a.api.cached)
	if err != nil {
		return 0, nil, err
	}
	others := slices.Clone(services)
	for i := range blocks.Items {
		others = append(others, orphansOf(&blocks.Items[i])...)
	}
	n, why := decide(p.Name, pools, others)
	if n == accepted(p) {
		return n, why, nil
	}
	if n = accepted(p); !servicesKnown {
		return n, &refusal{v1alpha1.ReasonPoolOverlaps, fmt.Sprintf("spec.subnets[%d]: the cluster's ServiceCIDRs, which it may overlap, cannot be read", n)}, nil
	}
	others = slices.Clone(services)
	for b, err := range a.api.allBlocks(ctx) {
		if err != nil {
			return 0, nil, err
		}
		others = append(others, orphansOf(b)...)
	}
	n, why = decide(p.Name, pools, others)
	return n, why, nil
}

// grant accepts the first n subnets of a pool, and revokes them if another pool turns out to
// have one as well.
func (a *acceptance) grant(ctx context.Context, p *v1alpha1.AddressPool, n int, s *poolState) error {
	before := accepted(p)
	if err := failpoint.Hit("operator.pool.accept.before"); err != nil {
		return err
	}
	if err := a.writeAccepted(ctx, p, n); err != nil {
		return err
	}
	if err := failpoint.Hit("operator.pool.accept.after"); err != nil {
		return err
	}
	pools, now, err := a.readPools(ctx, p)
	if err != nil || now == nil {
		return err
	}
	if _, other, why := conflict(p.Name, pools); other != nil {
		s.refuse(p, why, a.api.clock.Now().Add(time.Second+rand.N(4*time.Second)))
		return a.revoke(ctx, p, before, s)
	}
	s.verified = n
	a.api.log.Info("subnets accepted", "pool", p.Name, "subnets", n, "of", len(p.Spec.Subnets))
	a.api.events.Eventf(p, nil, corev1.EventTypeNormal, "SubnetsAccepted", "Accept", "blocks are cut from %d of %d subnets", n, len(p.Spec.Subnets))
	return nil
}

// resolveOverlap ends that two pools have the same subnet accepted. No block is cut from it
// until one of them has lost it: the pool without a block of it, or else the younger.
func (a *acceptance) resolveOverlap(ctx context.Context, p, other *v1alpha1.AddressPool, own int, why *refusal, s *poolState) error {
	now := a.api.clock.Now()
	if s.conflictSince.IsZero() {
		s.conflictSince = now
		a.api.log.Warn("two pools have the same subnet; no block is cut from it", "pool", p.Name, "other", other.Name, "because", why.message)
	}
	s.refuse(p, why, now.Add(overlapGrace/4))
	if now.Sub(s.conflictSince) < overlapGrace {
		return nil
	}
	s.until = now.Add(recheckRefused)
	if byAge(*p, *other) < 0 {
		if cut, err := a.hasBlocks(ctx, other.Name, 0); err != nil || !cut {
			return err // the other pool loses it
		}
	}
	return a.revoke(ctx, p, own, s)
}

// revoke accepts only the first n subnets of a pool, unless a block was cut from the others.
func (a *acceptance) revoke(ctx context.Context, p *v1alpha1.AddressPool, n int, s *poolState) error {
	l, err := layout(p, n)
	if err != nil {
		return fmt.Errorf("AddressPool %s: %w", p.Name, err)
	}
	if cut, err := a.hasBlocks(ctx, p.Name, l.Blocks()); err != nil || cut {
		return err
	}
	a.api.log.Warn("revoking a subnet that another pool has too", "pool", p.Name, "because", s.why.message)
	s.conflictSince, s.verified = time.Time{}, min(s.verified, n)
	if err := a.writeAccepted(ctx, p, n); err != nil {
		return err
	}
	a.reconsider(p.Name)
	return nil
}

// hasBlocks asks the API server whether there is a block of a pool from an index on.
func (a *acceptance) hasBlocks(ctx context.Context, pool string, from int64) (bool, error) {
	for b, err := range a.api.allBlocks(ctx, client.MatchingFields{"poolName": pool}) {
		if err != nil {
			return false, fmt.Errorf("look for blocks of AddressPool %s: %w", pool, err)
		}
		if b.Index >= from {
			return true, nil
		}
	}
	return false, nil
}

// writeAccepted writes how many subnets of a pool are accepted. The error is a conflict if
// somebody wrote to the pool meanwhile.
func (a *acceptance) writeAccepted(ctx context.Context, p *v1alpha1.AddressPool, n int) error {
	before := p.DeepCopy()
	p.Status.AcceptedSubnets = int32(n)
	return objects.PatchStatus(ctx, a.api.cached, p, objects.IfUnchanged(before))
}
