package cloud

import "context"

// MaxVLAN is the last ID of a VLAN that frames may carry; the first is 1 (IEEE 802.1Q).
const MaxVLAN = 4094

// Association makes an ENI a branch of a trunk: what the trunk's link carries with the
// VLAN's ID (IEEE 802.1Q) is the branch's.
type Association struct {
	ID       string
	TrunkID  string
	BranchID string
	VLAN     int // 1 to MaxVLAN
}

// Trunks are the calls about branches of trunks (EC2 API Reference,
// AssociateTrunkInterface and its like).
type Trunks interface {
	// AssociateBranch makes a detached ordinary ENI a branch of an attached trunk, by
	// a.TrunkID, a.BranchID and a.VLAN, and returns the association with its ID. The same
	// clientToken with the same request gives the association that the first call made. A
	// VLAN that another branch of the trunk has, and a branch that is associated already,
	// are errors of class Conflict; an instance with as many branches as its type may have
	// is one of class LimitReached.
	AssociateBranch(ctx context.Context, a Association, clientToken string) (Association, error)
	// DisassociateBranch makes a branch a detached ENI again. An association that there
	// is not is an error of class Gone.
	DisassociateBranch(ctx context.Context, associationID string) error
	// SetGroups replaces the security groups of an ENI; there must be one at least.
	SetGroups(ctx context.Context, eniID string, groups []string) error
}
