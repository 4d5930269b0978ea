package alcor_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/alcor"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
)

func (b *bed) contract(prefix string) vpcporttest.Bed {
	return vpcporttest.Bed{
		Provider: b.provider, Network: b.network.ID, Name: b.network.Name, Subnet: b.web.ID, CIDR: b.web.CIDR, Gateway: b.web.Gateway,
		Free: netip.MustParseAddr("192.168.0.77"), Small: b.small.ID, Room: 5, Group: b.group, Host: "node-a", NoHost: "node-z", Absent: vpcporttest.Absent,
		Plug: vpcport.Plug{Kind: vpcport.Netns, Netns: prefix + b.network.ID},
	}
}

func TestContract(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed { return newBed(t, alcorfake.Options{}).contract("vpc-ns") })
}

// The same of a release that names, writes and filters otherwise, beside ports of others
// that are not right.
func TestContractOfAnotherRelease(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed {
		b := newBed(t, alcorfake.Options{Lower: true, Networks: true, Unfiltered: true})
		b.cloud.AddPort(alcorfake.Port{Network: "x/y", MAC: "none", Device: "someone", Project: project})
		b.cloud.AddPort(alcorfake.Port{Network: b.network.ID, Owner: vpcport.Owner, Project: "another"})
		b.cloud.AddNetwork(alcorfake.Network{Name: "blue", Project: "another"})
		b.provider = b.open(t, func(s *alcor.Settings) { s.NetnsPrefix = "vpc-ns-" })
		return b.contract("vpc-ns-")
	})
}

// The same with MAC addresses that Alcor chooses.
func TestContractWithAlcorsMACs(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed {
		b := newBed(t, alcorfake.Options{})
		b.provider = b.open(t, func(s *alcor.Settings) { s.ProviderMAC = true })
		return b.contract("vpc-ns")
	})
}

func TestHTTP(t *testing.T) {
	vpcporttest.RunHTTP(t, func(t *testing.T) vpcporttest.Service {
		b := newBed(t, alcorfake.Options{Clock: start()})
		return vpcporttest.Service{
			Name: "Alcor", Networks: "vpcs", Bed: b.contract("vpc-ns"),
			Inject: func(f vpcporttest.Fault) {
				b.cloud.HTTP.Inject(alcorfake.Fault{
					Method: f.Method, Times: f.Times, Delay: f.Delay, After: f.After, HangUp: f.HangUp, Status: f.Status, Message: f.Message, Falsify: f.Falsify,
				})
			},
			Impatient: func() vpcport.Provider {
				return b.open(t, func(s *alcor.Settings) { s.Timeout = 20 * time.Millisecond })
			},
		}
	})
}
