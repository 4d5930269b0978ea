package branch

import (
	"fmt"
	"net/netip"

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
