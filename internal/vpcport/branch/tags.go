package branch

import (
	"crypto/rand"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/vpcport"
)

// The tags of a port's ENI, in addition to eni.TagCluster and eni.TagNIC. The value of eni.TagNIC is
// the device of the port.
const (
	TagTrunk       = "berth.dev/trunk"       // the ID of the trunk, before and after the association
	TagVLAN        = "berth.dev/vlan"        // the VLAN ID on the trunk
	TagAssociation = "berth.dev/association" // the ID of the association, once known
	TagNamespace   = "berth.dev/namespace"   // the namespace whose pods may name a port that was made for them
)

// asked begins the value of TagAssociation while the ID is unknown. Random text follows, so that no two
// requests are equal.
const asked = "asked:"

// Owner is the value of eni.TagOwner of ports. ENIs whose addresses are for pods have another.
const Owner = "berth-nic"

// owner is vpcport.Owner for an ENI with the tags of this cluster's ports.
func (s Settings) owner(e cloud.ENI) string {
	if e.Tags[eni.TagCluster] == s.Cluster && e.Tags[eni.TagOwner] == Owner {
		return vpcport.Owner
	}
	return ""
}

// creationTags are the tags of a new ENI. They follow from the request, so that a repeat is equal.
func (s Settings) creationTags(device string) map[string]string {
	return map[string]string{eni.TagCluster: s.Cluster, eni.TagOwner: Owner, eni.TagNIC: device}
}

// intent are the tags of a future branch.
func intent(trunk string, vlan int) map[string]string {
	return map[string]string{TagTrunk: trunk, TagVLAN: strconv.Itoa(vlan)}
}

// intentAnew are the tags of a future branch that may have been a branch before.
func intentAnew(trunk string, vlan int) map[string]string {
	tags := intent(trunk, vlan)
	tags[TagAssociation] = asked + rand.Text()
	return tags
}

// requestToken is the client token of the request for an association that is in an ENI's tags without
// its ID. It follows from the tags, so that a later process can repeat the request: EC2 replies with
// the association.
func requestToken(e cloud.ENI, a cloud.Association) string {
	return token("associate", e.ID, a.TrunkID, strconv.Itoa(a.VLAN), e.Tags[TagAssociation])
}

// tagged is the association in an ENI's tags. Missing parts are zero.
func tagged(e cloud.ENI) cloud.Association {
	vlan, err := strconv.Atoi(e.Tags[TagVLAN])
	if err != nil || vlan < 1 || vlan > cloud.MaxVLAN {
		vlan = 0
	}
	id := e.Tags[TagAssociation]
	if strings.HasPrefix(id, asked) {
		id = ""
	}
	return cloud.Association{ID: id, TrunkID: e.Tags[TagTrunk], BranchID: e.ID, VLAN: vlan}
}
