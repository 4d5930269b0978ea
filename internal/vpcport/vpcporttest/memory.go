package vpcporttest

import (
	"net/netip"
	"testing"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

// InMemory returns a provider in memory with a network, a group and a host, and its bed.
func InMemory(o portfake.Options) (*portfake.Provider, Bed) {
	p, plug := portfake.New(o), vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int", OVN: true}
	subnet := func(id, name, cidr string) vpcport.Subnet {
		c := netip.MustParsePrefix(cidr)
		return vpcport.Subnet{ID: id, Name: name, CIDR: c, Gateway: c.Addr().Next()}
	}
	web, small := subnet("s-1", "web", "192.168.0.0/24"), subnet("s-2", "small", "192.168.1.0/29") // a /29 has five addresses besides the gateway
	p.AddNetwork(vpcport.Network{ID: "n-1", Name: "blue", MTU: 1442, Subnets: []vpcport.Subnet{web, small}})
	p.AddGroup("g-1")
	p.AddHost("node-a", plug)
	return p, Bed{
		Provider: p, Network: "n-1", Name: "blue", Subnet: web.ID, CIDR: web.CIDR, Gateway: web.Gateway, Free: netip.MustParseAddr("192.168.0.77"),
		Small: small.ID, Room: 5, Group: "g-1", Host: "node-a", NoHost: "node-z", Plug: plug, Absent: Absent,
		SetQuota: func(_ *testing.T, more int) { p.SetQuota(len(p.All()) + more) },
	}
}
