package enisource

import (
	"context"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/source"
)

// Supplier gets the node its addresses and gives back those in excess. It hands
// them over by Publish, or by Offer.
//
// Kick, LastError, OtherGroups, PrefixDelegation, Template and Why are called with the Source locked:
// they return at once and call nothing of the Source.
type Supplier interface {
	// Seed hands over the stored inventory, before Run.
	Seed(inv eni.Inventory)
	// Run supplies until ctx ends, and returns only then.
	Run(ctx context.Context) error
	// Kick says that pods came, went or wait, or that addresses became usable.
	Kick()
	// LastError is the current trouble and what to do about it; empty without.
	LastError() string
	// OtherGroups are ENIs that are to have the security groups of the primary ENI and have
	// others, and whether they will be given these. compared: the supplier looks for them.
	OtherGroups() (enis []string, followed, compared bool)
	// PrefixDelegation tells whether ENIs are to be filled with prefixes.
	PrefixDelegation() bool
	// Template names the object whose settings new ENIs have; empty: none has any.
	Template() string
	// Why tells why pods that wait get nothing, as far as the supply goes; the
	// reason is Growing when more is on its way. served: there is an inventory.
	Why(served bool) *source.Exhausted
}

// Growing is the reason of a supply that has been asked and has not failed.
const Growing = "growing"
