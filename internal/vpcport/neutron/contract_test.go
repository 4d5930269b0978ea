package neutron_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

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

// The same behind Keystone, with Neutron's own small pages and the agent of Open vSwitch.
func TestContractBehindKeystone(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed {
		b := withKeystone(t, neutronfake.Options{MaxPage: 2}, neutronfake.User{Reader: true})
		b.cloud.AddHost("node-a", neutronfake.Host{Agent: true, Hybrid: true})
		return b.contract(vpcport.Plug{Kind: vpcport.OVSHybrid, Bridge: "br-int"})
	})
}

// The same with MAC addresses that Neutron chooses.
func TestContractWithNeutronsMACs(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed {
		b := newBed(t, neutronfake.Options{})
		b.provider = b.open(t, func(s *neutron.Settings) { s.Project, s.ProviderMAC = project, true })
		return b.contract(ovn)
	})
}

func TestHTTP(t *testing.T) {
	vpcporttest.RunHTTP(t, func(t *testing.T) vpcporttest.Service {
		b := newBed(t, neutronfake.Options{Clock: start()})
		return vpcporttest.Service{
			Name: "Neutron", Networks: "networks", Bed: b.contract(ovn),
			Inject: func(f vpcporttest.Fault) {
				kind := ""
				if f.Message != "" {
					kind = strings.Repeat("T", 1000)
				}
				b.cloud.HTTP.Inject(neutronfake.Fault{
					Method: f.Method, Times: f.Times, Delay: f.Delay, After: f.After, HangUp: f.HangUp, Status: f.Status, Type: kind, Message: f.Message, Falsify: f.Falsify,
				})
			},
			Impatient: func() vpcport.Provider {
				return b.open(t, func(s *neutron.Settings) { s.Project, s.Timeout = project, 20*time.Millisecond })
			},
		}
	})
}

// Every request that the provider makes, with every answer that there is, goes as it
// should with the lab's Neutron. TestProviderWithNeutron of test/e2e/neutron compares the
// answers with those of a real one.
func TestScenes(t *testing.T) {
	url, s := neutronscenes.OfLab(t, neutronfake.Host{})
	if n := len(neutronscenes.Play(t, url, s)); n < 40 {
		t.Errorf("%d exchanges", n)
	}
}
