package pace

import (
	"context"
	"crypto/rand"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// AssociateBranch implements cloud.API. Without a client token it makes one up, so that
// its own repetitions make one association only. A VLAN that there cannot be, and a token
// that was used for another request, are errors of class Bug.
func (p *paced) AssociateBranch(ctx context.Context, a cloud.Association, clientToken string) (cloud.Association, error) {
	if a.VLAN < 1 || a.VLAN > cloud.MaxVLAN {
		return cloud.Association{}, wrong(AssociateBranch, "VLAN %d asked for: expected 1 to %d", a.VLAN, cloud.MaxVLAN)
	}
	if clientToken == "" {
		clientToken = rand.Text()
	}
	return do(ctx, p, AssociateBranch, func(ctx context.Context) (cloud.Association, error) {
		return p.calls.AssociateBranch(ctx, a, clientToken)
	})
}

// DisassociateBranch implements cloud.API.
func (p *paced) DisassociateBranch(ctx context.Context, associationID string) error {
	return try(ctx, p, DisassociateBranch, func(ctx context.Context) error { return p.calls.DisassociateBranch(ctx, associationID) })
}

// SetGroups implements cloud.API. No group is an error of class Bug: EC2 would take the
// call for one that changes nothing.
func (p *paced) SetGroups(ctx context.Context, eniID string, groups []string) error {
	if len(groups) == 0 {
		return wrong(ModifyENI, "no security groups asked for %s: expected one at least", eniID)
	}
	return try(ctx, p, ModifyENI, func(ctx context.Context) error { return p.calls.SetGroups(ctx, eniID, groups) })
}
