package neutron_test

import (
	"net/http/httptest"
	"net/netip"
	"testing"

	fake "github.com/berthnet/berth/internal/lab/cloud/neutron"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/internal/vpcport/portfake"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
)

const (
	networkID = "11111111-0000-4000-8000-000000000001"
	webID     = "22222222-0000-4000-8000-000000000001"
	smallID   = "22222222-0000-4000-8000-000000000002"
	groupID   = "33333333-0000-4000-8000-000000000001"
	absentID  = "99999999-0000-4000-8000-000000000009"
)

// The contract over HTTP, against the lab's server.
func TestContract(t *testing.T) {
	for name, plug := range map[string]vpcport.Plug{
		"OVN": {Kind: vpcport.OVS, Bridge: "br-int", OVN: true}, "hybrid": {Kind: vpcport.OVSHybrid, Bridge: "br-int"},
	} {
		t.Run(name, func(t *testing.T) {
			vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed { t.Helper(); return bed(t, plug) })
		})
	}
}

func bed(t *testing.T, plug vpcport.Plug) vpcporttest.Bed {
	t.Helper()
	books := portfake.New(portfake.Options{})
	web := vpcport.Subnet{ID: webID, Name: "web", CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1")}
	small := vpcport.Subnet{ID: smallID, CIDR: netip.MustParsePrefix("192.168.1.0/29"), Gateway: netip.MustParseAddr("192.168.1.1")}
	books.AddNetwork(vpcport.Network{ID: networkID, Name: "blue", MTU: 1442, Subnets: []vpcport.Subnet{web, small}})
	books.AddGroup(groupID)
	books.AddHost("node-a", plug)
	server := httptest.NewServer(fake.NewServer(books))
	t.Cleanup(server.Close)
	client, err := neutron.New(neutron.Options{Endpoint: server.URL, Project: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	return vpcporttest.Bed{
		Provider: client, Network: networkID, Name: "blue", Subnet: webID, CIDR: web.CIDR, Gateway: web.Gateway, Free: netip.MustParseAddr("192.168.0.77"),
		Small: smallID, Room: 5, Group: groupID, Host: "node-a", NoHost: "node-z", Plug: plug, Absent: absentID,
		SetQuota: func(_ *testing.T, more int) { books.SetQuota(len(books.All()) + more) },
	}
}
