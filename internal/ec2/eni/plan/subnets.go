package plan

import (
	"cmp"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Candidates decides in which subnets new ENIs may be created. IDs take precedence over Tags, and both over Any;
// without any of them only the primary ENI's subnet is a candidate.
type Candidates struct {
	IDs  []string
	Tags map[string]string
	Any  bool // every subnet of VPC and zone

	VPC, Zone    string // as configured, otherwise the instance's; empty while unknown
	InstanceZone string
	Primary      string // subnet of the primary ENI
}

// Has reports whether new ENIs may be created in a subnet. It is false in a zone other than the instance's, even if
// that zone is configured: an ENI there cannot be attached to the instance (EC2 User Guide, "Elastic network
// interfaces").
func (c Candidates) Has(s cloud.Subnet) bool {
	if s.Zone != "" && (c.Zone != "" && s.Zone != c.Zone || c.InstanceZone != "" && s.Zone != c.InstanceZone) ||
		s.VPCID != "" && c.VPC != "" && s.VPCID != c.VPC {
		return false
	}
	switch {
	case len(c.IDs) > 0:
		return slices.Contains(c.IDs, s.ID)
	case len(c.Tags) > 0:
		return HasTags(s, c.Tags)
	case c.Any:
		return s.VPCID != "" && s.Zone != ""
	default:
		return s.ID == c.Primary
	}
}

// HasTags reports whether a subnet has all tags.
func HasTags(s cloud.Subnet, tags map[string]string) bool {
	for k, v := range tags {
		if s.Tags[k] != v {
			return false
		}
	}
	return true
}

// subnets holds the working copies of a node's subnets.
type subnets struct{ list []Subnet }

// of returns a subnet's working copy; an unknown subnet is unlimited.
func (b *subnets) of(id string) *Subnet {
	for i := range b.list {
		if b.list[i].ID == id {
			return &b.list[i]
		}
	}
	b.list = append(b.list, Subnet{ID: id, Free: Unlimited})
	return &b.list[len(b.list)-1]
}

// forNew returns the subnet for a new ENI, given the number of pods that lack addresses; nil if there is none. It
// prefers, in this order: a subnet with the primary's routes, unless only others have enough for waiting pods; an
// IPv6-only subnet, because it costs no IPv4 address; one with prefixes, if prefixes are wanted; the most free
// addresses; the lowest ID.
func (b *subnets) forNew(c *capacity, short int) *Subnet {
	var best *Subnet
	apart := b.onlyOtherRoutes(c, short)
	for i := range b.list {
		sn := &b.list[i]
		if sn.ForNew && len(c.lacking(sn)) == 0 && (best == nil || c.better(sn, best, apart)) {
			best = sn
		}
	}
	return best
}

// lacking returns the families of which a subnet has no address for a new ENI and its pods. An ENI takes one IPv4
// address for itself, so two must be free, or one if pods may use it or need no IPv4. In an IPv6-only subnet, which
// requires an instance built on Nitro, it needs none.
func (b *capacity) lacking(sn *Subnet) (lacks []ipfamily.Family) {
	four := b.policy.Families.Has(ipfamily.IPv4)
	least := 2 - b.bonus
	if !four {
		least = 1
	}
	short := sn.Free < least
	if sn.IPv6Native {
		short = four || !b.limits.Prefixes // only instances built on Nitro have prefixes
	}
	if short {
		lacks = append(lacks, ipfamily.IPv4)
	}
	if sn.NoIPv6 && b.policy.Families.Has(ipfamily.IPv6) {
		lacks = append(lacks, ipfamily.IPv6)
	}
	return lacks
}

// onlyOtherRoutes reports whether a new ENI gets enough addresses for waiting pods only in subnets whose routes
// differ from the primary's. A subnet with the primary's routes and too few addresses would waste one of the few ENIs
// of the instance. A warm target alone is no reason to use other routes.
func (b *subnets) onlyOtherRoutes(c *capacity, short int) bool {
	apart := false
	for i := range b.list {
		if sn := &b.list[i]; sn.ForNew && c.suffices(sn, short) {
			if !sn.OtherRoutes {
				return false
			}
			apart = true
		}
	}
	return apart
}

// suffices reports whether a new ENI in a subnet gets the missing addresses as far as it has room, and at least one
// address.
func (b *capacity) suffices(sn *Subnet, short int) bool {
	if len(b.lacking(sn)) > 0 || !b.policy.Families.Has(ipfamily.IPv4) {
		return len(b.lacking(sn)) == 0
	}
	free, unit := sn.Free-1, b.unit()
	if sn.NoPrefix {
		unit = 1
	}
	return free >= unit*min((short+unit-1)/unit, slots(ipfamily.IPv4, b.limits))
}

// better reports whether x is a better subnet for a new ENI than y. With apart, subnets with other routes than the
// primary's are preferred.
func (b *capacity) better(x, y *Subnet, apart bool) bool {
	if x.OtherRoutes != y.OtherRoutes {
		return x.OtherRoutes == apart
	}
	if x.IPv6Native != y.IPv6Native {
		return x.IPv6Native
	}
	px, py := b.hasPrefix(x), b.hasPrefix(y)
	if px != py {
		return px
	}
	return cmp.Or(cmp.Compare(y.Free, x.Free), cmp.Compare(x.ID, y.ID)) < 0
}

func (b *capacity) hasPrefix(sn *Subnet) bool {
	return b.byPrefix() && !sn.NoPrefix && sn.Free > b.unit()
}
