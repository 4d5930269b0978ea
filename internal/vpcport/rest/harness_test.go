package rest_test

import (
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/alcor"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
	"github.com/berthnet/berth/lab/cloud/httpreply"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
)

// service is a provider and the fake that it talks to, whose clock stands still.
type service struct {
	vpcporttest.Bed
	name      string // in errors
	networks  string // the collection of networks
	prefix    string // of paths
	network   string // the path of the request for a network by its ID
	fake      *httpreply.Front
	ports     func() int       // there are
	impatient vpcport.Provider // gives up after 20 ms
}

// services open a service each. It has the network blue with the subnets web and small, which has five
// addresses, a group, and a host.
var services = map[string]func(t *testing.T) service{
	"Alcor": func(t *testing.T) service {
		t.Helper()
		cloud := alcorfake.New(alcorfake.Options{Clock: start()})
		network := cloud.AddNetwork(alcorfake.Network{Name: "blue"})
		subnet := func(name, cidr string) string {
			p := netip.MustParsePrefix(cidr)
			return cloud.AddSubnet(alcorfake.Subnet{Name: name, Network: network.ID, CIDR: p, Gateway: p.Addr().Next()}).ID
		}
		cloud.AddHost("node-a", alcorfake.Host{})
		server := httptest.NewServer(cloud)
		t.Cleanup(server.Close)
		open := func(timeout time.Duration) vpcport.Provider {
			p, err := alcor.Open(alcor.Settings{Endpoint: server.URL, Project: "3dda2801-d675-4688-a63f-dcda8d327f50", Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			return p
		}
		s := bed(open, network.ID, subnet("web", "192.168.0.0/24"), subnet("small", "192.168.1.0/29"), cloud.AddGroup())
		s.name, s.networks, s.prefix, s.network, s.fake = "Alcor", "vpcs", "/project/*/", "/project/*/vpcs/*", cloud.HTTP
		s.ports = func() int { return len(cloud.Ports()) }
		return s
	},
	"Neutron": func(t *testing.T) service {
		t.Helper()
		cloud := neutronfake.New(neutronfake.Options{Clock: start()})
		network := cloud.AddNetwork(neutronfake.Network{Name: "blue"})
		subnet := func(name, cidr string) string {
			p := netip.MustParsePrefix(cidr)
			return cloud.AddSubnet(neutronfake.Subnet{Name: name, Network: network.ID, CIDR: p, Gateway: p.Addr().Next()}).ID
		}
		cloud.AddHost("node-a", neutronfake.Host{})
		server := httptest.NewServer(cloud)
		t.Cleanup(server.Close)
		open := func(timeout time.Duration) vpcport.Provider {
			p, err := neutron.Open(neutron.Settings{Endpoint: server.URL, Project: "5f1c0a0e9d0b4e0f8d8f2c7d6b5a4930", Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			return p
		}
		s := bed(open, network.ID, subnet("web", "192.168.0.0/24"), subnet("small", "192.168.1.0/29"), cloud.AddGroup(neutronfake.Group{Name: "web"}).ID)
		s.name, s.networks, s.prefix, s.network, s.fake = "Neutron", "networks", "/v2.0/", "/v2.0/networks", cloud.HTTP
		s.ports = func() int { return len(cloud.Ports()) }
		return s
	},
}

func bed(open func(timeout time.Duration) vpcport.Provider, network, web, small, group string) service {
	return service{
		Bed:       vpcporttest.Bed{Provider: open(20 * time.Second), Network: network, Subnet: web, Small: small, Room: 5, Group: group, Host: "node-a"},
		impatient: open(20 * time.Millisecond),
	}
}

func start() clock.Clock { return clock.NewFake(time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)) }

// each runs a test with each service. A test may open several.
func each(t *testing.T, test func(t *testing.T, open func() service)) {
	t.Helper()
	for name, open := range services {
		t.Run(name, func(t *testing.T) { test(t, func() service { return open(t) }) })
	}
}

// create asks for the ports.
func (s service) create(t *testing.T, ports ...vpcport.NewPort) error {
	t.Helper()
	_, err := s.Provider.Create(t.Context(), ports)
	return err
}
