package ec2

import (
	"strconv"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/vpcport"
)

// The tags of an ENI that is a port, besides eni.TagCluster and eni.TagNIC, whose value is
// the port's device.
const (
	TagTrunk       = "berth.dev/trunk"       // the ID of the trunk of which it is, or is to be, a branch
	TagVLAN        = "berth.dev/vlan"        // the ID of its VLAN there
	TagAssociation = "berth.dev/association" // the ID of the association of the two
)

// Owner is the value of eni.TagOwner by which ports are told from ENIs whose addresses are
// for pods.
const Owner = "berth-nic"

// owner is vpcport.Owner for an ENI that has the marks of this cluster's ports.
func (s Settings) owner(e cloud.ENI) string {
	if e.Tags[eni.TagCluster] == s.Cluster && e.Tags[eni.TagOwner] == Owner {
		return vpcport.Owner
	}
	return ""
}

// creationTags are those of a new ENI. They follow from what is asked for, so that a repeat
// is the same request.
func (s Settings) creationTags(device string) map[string]string {
	return map[string]string{eni.TagCluster: s.Cluster, eni.TagOwner: Owner, eni.TagNIC: device}
}

// intent are the tags of a branch to be.
func intent(trunk string, vlan int) map[string]string {
	return map[string]string{TagTrunk: trunk, TagVLAN: strconv.Itoa(vlan)}
}

// tagged is the association that an ENI's tags tell, with whatever they leave out as zero.
func tagged(e cloud.ENI) cloud.Association {
	vlan, err := strconv.Atoi(e.Tags[TagVLAN])
	if err != nil || vlan < 1 || vlan > maxVLAN {
		vlan = 0
	}
	return cloud.Association{ID: e.Tags[TagAssociation], TrunkID: e.Tags[TagTrunk], BranchID: e.ID, VLAN: vlan}
}
