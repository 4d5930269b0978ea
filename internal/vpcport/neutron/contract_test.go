package neutron_test

import (
	"net/netip"
	"testing"

	lab "github.com/berthnet/berth/internal/lab/cloud/neutron"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
)

func (b *bed) contract(plug vpcport.Plug) vpcporttest.Bed {
	return vpcporttest.Bed{
		Provider: b.provider, Network: b.network.ID, Name: b.network.Name, Subnet: b.web.ID, CIDR: b.web.CIDR, Gateway: b.web.Gateway,
		Free: netip.MustParseAddr("192.168.0.77"), Small: b.small.ID, Room: 5, Group: b.group.ID, Host: "node-a", NoHost: "node-z", Plug: plug, Absent: absent,
		SetQuota: func(_ *testing.T, more int) { b.cloud.SetQuota(len(b.cloud.Ports()) + more) },
	}
}

func TestContract(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed { return newBed(t, lab.Options{}).contract(ovn) })
}

// The same behind Keystone, with Neutron's own small pages and the agent of Open vSwitch.
func TestContractBehindKeystone(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed {
		b := withKeystone(t, lab.Options{MaxPage: 2}, lab.User{Reader: true})
		b.cloud.AddHost("node-a", lab.Host{Agent: true, Hybrid: true})
		return b.contract(vpcport.Plug{Kind: vpcport.OVSHybrid, Bridge: "br-int"})
	})
}

// The same with MAC addresses that Neutron chooses.
func TestContractWithNeutronsMACs(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed {
		b := newBed(t, lab.Options{})
		b.provider = b.open(t, func(s *neutron.Settings) { s.Project, s.ProviderMAC = project, true })
		return b.contract(ovn)
	})
}
