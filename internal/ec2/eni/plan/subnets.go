package plan

import (
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// Candidates tells in which subnets new ENIs may be made. IDs count before
// Tags, and both before Any; without any of them it is the primary ENI's subnet.
type Candidates struct {
	IDs  []string
	Tags map[string]string
	Any  bool // every subnet of VPC and zone

	VPC, Zone    string // as configured, or else the instance's; empty while not known
	InstanceZone string
	Primary      string // subnet of the primary ENI
}

// Has tells whether new ENIs may be made in a subnet. Never in a zone that is
// configured and not the instance's: what is made there can be attached to
// nothing here (EC2 User Guide, "Elastic network interfaces").
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

// HasTags tells whether a subnet carries all of some tags.
func HasTags(s cloud.Subnet, tags map[string]string) bool {
	for k, v := range tags {
		if s.Tags[k] != v {
			return false
		}
	}
	return true
}
