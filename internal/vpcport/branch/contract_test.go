package branch_test

import (
	"net/netip"
	"testing"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
)

func (b *bed) contract() vpcporttest.Bed {
	b.cloud.State.SetFree("subnet-small", 5)
	return vpcporttest.Bed{
		Provider: b.provider, Network: vpc, Name: vpc, Subnet: "subnet-a", CIDR: netip.MustParsePrefix("10.0.0.0/20"), Gateway: netip.MustParseAddr("10.0.0.1"),
		Free: netip.MustParseAddr("10.0.3.77"), Small: "subnet-small", Room: 5, Group: "sg-web", Host: "i-a", NoHost: "i-none",
		Plug: vpcport.Plug{Kind: vpcport.VLAN, Trunk: b.trunkMAC("i-a")}, NoMTU: true, NoPlugging: true, Absent: "eni-0000000000000dead",
	}
}

func TestContract(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed { return newBed(t).contract() })
}

// Listings may lag: replies take precedence.
func TestContractWithLaggingListings(t *testing.T) {
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed {
		b := newBed(t)
		out := b.contract()
		b.cloud.State.SetLag(lag)
		return out
	})
}
