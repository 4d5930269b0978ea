package branch

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// portOf converts an ENI to a port, with its association and the trunk of that; nil: unknown.
func (s Settings) portOf(e cloud.ENI, a cloud.Association, t *trunk) vpcport.Port {
	p := vpcport.Port{
		ID: e.ID, NetworkID: e.VPCID, Name: e.Description, Device: e.Tags[eni.TagNIC], Owner: s.owner(e), MAC: mac.Addr(e.MAC),
		Addresses: s.addresses(e), Groups: e.Groups,
	}
	if namespace := e.Tags[TagNamespace]; namespace != "" {
		p.Tags = []string{vpcport.NamespaceTag(s.Cluster, namespace)}
	}
	switch {
	case e.Attachment != nil:
		p.Host = e.Attachment.InstanceID
		p.Binding = failed("%s is attached to %s as an ENI of its own, and cannot be a branch", e.ID, e.Attachment.InstanceID)
	case e.Type == cloud.InterfaceBranch && (t == nil || a.VLAN == 0):
		// The instance is unknown: the port counts as unbound and is bound again.
	case e.Type == cloud.InterfaceBranch:
		p.Host, p.Status = t.Instance, vpcport.StatusActive
		p.Binding = vpcport.Binding{Result: vpcport.Bound, Plug: vpcport.Plug{Kind: vpcport.VLAN, Trunk: t.MAC.String(), VLAN: a.VLAN}}
	}
	return p
}

// addresses are the addresses of an ENI that belong to the port.
func (s Settings) addresses(e cloud.ENI) (out []vpcport.FixedIP) {
	add := func(a netip.Addr) { out = append(out, vpcport.FixedIP{SubnetID: e.SubnetID, IP: a}) }
	if s.Families.Has(ipfamily.IPv4) && e.Primary.IsValid() {
		add(e.Primary)
	}
	if s.Families.Has(ipfamily.IPv6) {
		for _, a := range e.IPv6 {
			add(a)
		}
	}
	return out
}

// failed is a failed binding with its reason.
func failed(format string, args ...any) vpcport.Binding {
	return vpcport.Binding{Result: vpcport.BindingFailed, Why: fmt.Sprintf(format, args...)}
}

// unbindable is a port whose binding to a host failed.
func unbindable(p vpcport.Port, host string, why string) vpcport.Port {
	p.Host, p.Status, p.Binding = host, vpcport.StatusDown, failed("%s", why)
	return p
}

// mayBePort reports whether an ENI may be a port: an ordinary ENI or a branch of this cluster with the
// tag of ports, even if that is empty. This excludes ENIs whose addresses are for pods, and ENIs of
// others.
func (s Settings) mayBePort(e cloud.ENI) bool {
	_, tagged := e.Tags[eni.TagNIC]
	return tagged && e.Tags[eni.TagCluster] == s.Cluster && (e.Type == "" || e.Type == cloud.InterfaceOrdinary || e.Type == cloud.InterfaceBranch)
}

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
