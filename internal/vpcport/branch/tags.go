package branch

import (
	"crypto/rand"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/vpcport"
)

// The tags of an ENI that is a port, besides eni.TagCluster and eni.TagNIC, whose value is
// the port's device.
const (
	TagTrunk       = "berth.dev/trunk"       // the ID of the trunk of which it is, or is to be, a branch
	TagVLAN        = "berth.dev/vlan"        // the ID of its VLAN there
	TagAssociation = "berth.dev/association" // the ID of the association of the two, once it is known
	TagNamespace   = "berth.dev/namespace"   // whose pods may name it, of one that somebody made for them
)

// asked begins the value of TagAssociation while an association is asked for. What follows
// is another each time, and so is the request.
const asked = "asked:"

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

// intentAnew are those of an ENI that may have been a branch before.
func intentAnew(trunk string, vlan int) map[string]string {
	tags := intent(trunk, vlan)
	tags[TagAssociation] = asked + rand.Text()
	return tags
}

// requestToken is the client token by which an association is asked for that an ENI's tags tell
// and have no ID of. It follows from them, so that whoever reads them can make the same request,
// which EC2 answers with the association that it has made by then.
func requestToken(e cloud.ENI, a cloud.Association) string {
	return token("associate", e.ID, a.TrunkID, strconv.Itoa(a.VLAN), e.Tags[TagAssociation])
}

// tagged is the association that an ENI's tags tell, with whatever they leave out as zero.
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
