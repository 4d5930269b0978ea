package rest_test

import (
	"net/http"
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
		network := cloud.AddNetwork(alcorfake.Network{Name: "blue"}).ID
		cloud.AddHost("node-a", alcorfake.Host{})
		subnet := func(name string, p netip.Prefix) string {
			return cloud.AddSubnet(alcorfake.Subnet{Name: name, Network: network, CIDR: p, Gateway: p.Addr().Next()}).ID
		}
		open := func(url string, timeout time.Duration) (vpcport.Provider, error) {
			return alcor.Open(alcor.Settings{Endpoint: url, Project: "3dda2801-d675-4688-a63f-dcda8d327f50", Timeout: timeout})
		}
		return service{
			name: "Alcor", networks: "vpcs", prefix: "/project/*/", network: "/project/*/vpcs/*", fake: cloud.HTTP, ports: func() int { return len(cloud.Ports()) },
			Bed: vpcporttest.Bed{Network: network, Group: cloud.AddGroup()},
		}.serve(t, cloud, subnet, open)
	},
	"Neutron": func(t *testing.T) service {
		t.Helper()
		cloud := neutronfake.New(neutronfake.Options{Clock: start()})
		network := cloud.AddNetwork(neutronfake.Network{Name: "blue"}).ID
		cloud.AddHost("node-a", neutronfake.Host{})
		subnet := func(name string, p netip.Prefix) string {
			return cloud.AddSubnet(neutronfake.Subnet{Name: name, Network: network, CIDR: p, Gateway: p.Addr().Next()}).ID
		}
		open := func(url string, timeout time.Duration) (vpcport.Provider, error) {
			return neutron.Open(neutron.Settings{Endpoint: url, Project: "5f1c0a0e9d0b4e0f8d8f2c7d6b5a4930", Timeout: timeout})
		}
		return service{
			name: "Neutron", networks: "networks", prefix: "/v2.0/", network: "/v2.0/networks", fake: cloud.HTTP, ports: func() int { return len(cloud.Ports()) },
			Bed: vpcporttest.Bed{Network: network, Group: cloud.AddGroup(neutronfake.Group{Name: "web"}).ID},
		}.serve(t, cloud, subnet, open)
	},
}

// serve adds the subnets, and the providers for the served fake.
func (s service) serve(t *testing.T, fake http.Handler, subnet func(name string, p netip.Prefix) string, open func(url string, timeout time.Duration) (vpcport.Provider, error)) service {
	t.Helper()
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	for timeout, p := range map[time.Duration]*vpcport.Provider{20 * time.Second: &s.Provider, 20 * time.Millisecond: &s.impatient} {
		var err error
		if *p, err = open(server.URL, timeout); err != nil {
			t.Fatal(err)
		}
	}
	s.Subnet, s.Small, s.Room, s.Host = subnet("web", netip.MustParsePrefix("192.168.0.0/24")), subnet("small", netip.MustParsePrefix("192.168.1.0/29")), 5, "node-a"
	return s
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
