package pace

import (
	"context"
	"crypto/rand"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// AssociateBranch implements cloud.API. Without a client token it generates one, so that its own attempts
// make one association. An invalid VLAN, and a token of another request, are errors of class Bug.
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

// SetGroups implements cloud.API. An empty list of groups is an error of class Bug, because EC2 would ignore
// it.
func (p *paced) SetGroups(ctx context.Context, eniID string, groups []string) error {
	if len(groups) == 0 {
		return wrong(ModifyENI, "no security groups asked for %s: expected one at least", eniID)
	}
	return try(ctx, p, ModifyENI, func(ctx context.Context) error { return p.calls.SetGroups(ctx, eniID, groups) })
}
