package neutron_test

import (
	"net/netip"
	"testing"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/test/harness/neutronscenes"
)

func (b *bed) contract(plug vpcport.Plug) vpcporttest.Bed {
	return vpcporttest.Bed{
		Provider: b.provider, Network: b.network.ID, Name: b.network.Name, Subnet: b.web.ID, CIDR: b.web.CIDR, Gateway: b.web.Gateway,
		Free: netip.MustParseAddr("192.168.0.77"), Small: b.small.ID, Room: 5, Group: b.group.ID, Host: "node-a", NoHost: "node-z", Plug: plug, Absent: vpcporttest.Absent,
		SetQuota: func(_ *testing.T, more int) { b.cloud.SetQuota(len(b.cloud.Ports()) + more) },
	}
}

func TestContract(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed { return newBed(t, neutronfake.Options{}).contract(ovn) })
}

// The contract holds behind Keystone, with small pages and the agent of Open vSwitch.
func TestContractBehindKeystone(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed {
		b := withKeystone(t, neutronfake.Options{MaxPage: 2}, neutronfake.User{Reader: true})
		b.cloud.AddHost("node-a", neutronfake.Host{Agent: true, Hybrid: true})
		return b.contract(vpcport.Plug{Kind: vpcport.OVSHybrid, Bridge: "br-int"})
	})
}

// Neutron may choose the MAC addresses.
func TestContractWithNeutronsMACs(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed {
		b := newBed(t, neutronfake.Options{})
		b.provider = b.open(t, func(s *neutron.Settings) { s.Project, s.ProviderMAC = project, true })
		return b.contract(ovn)
	})
}

// The lab's Neutron replies to every request of the provider. TestProviderWithNeutron of
// test/e2e/neutron compares the replies with those of a real Neutron.
func TestScenes(t *testing.T) {
	url, s := neutronscenes.OfLab(t, neutronfake.Host{})
	if n := len(neutronscenes.Play(t, url, s)); n < 40 {
		t.Errorf("%d exchanges", n)
	}
}
