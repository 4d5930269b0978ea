package neutron_test

import (
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
)

// bed is a served fake of Neutron with a network, and a provider that uses it.
type bed struct {
	cloud      *neutronfake.Cloud
	server     *httptest.Server
	network    neutronfake.Network
	web, small neutronfake.Subnet
	group      neutronfake.Group
	provider   *neutron.Provider
}

const project = "5f1c0a0e9d0b4e0f8d8f2c7d6b5a4930"

var ovn = vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int", OVN: true}

// newBed creates a Neutron without Keystone.
func newBed(t *testing.T, o neutronfake.Options) *bed {
	t.Helper()
	return open(t, o, func(s *neutron.Settings) { s.Project = project })
}

// withKeystone creates a Neutron behind Keystone, with a user.
func withKeystone(t *testing.T, o neutronfake.Options, u neutronfake.User) *bed {
	t.Helper()
	u.Name, u.Password = "berth", "correct horse"
	return open(t, o, func(s *neutron.Settings) {
		s.TLS.Insecure = true
		s.Credentials = &neutron.Credentials{Password: &neutron.Password{User: "berth", Password: "correct horse", Project: "berth"}}
	}, u)
}

func open(t *testing.T, o neutronfake.Options, edit func(*neutron.Settings), users ...neutronfake.User) *bed {
	t.Helper()
	b := &bed{cloud: neutronfake.New(o)}
	for _, u := range users {
		b.cloud.Keystone.AddUser(u)
	}
	b.network = b.cloud.AddNetwork(neutronfake.Network{Name: "blue"})
	b.web = b.cloud.AddSubnet(neutronfake.Subnet{Name: "web", Network: b.network.ID, CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1")})
	// A /29 has six host addresses, one of which is the gateway's.
	b.small = b.cloud.AddSubnet(neutronfake.Subnet{Name: "small", Network: b.network.ID, CIDR: netip.MustParsePrefix("192.168.1.0/29"), Gateway: netip.MustParseAddr("192.168.1.1")})
	b.group = b.cloud.AddGroup(neutronfake.Group{Name: "web"})
	b.cloud.AddHost("node-a", neutronfake.Host{})
	b.server = httptest.NewServer(b.cloud)
	t.Cleanup(b.server.Close)
	b.provider = b.open(t, edit)
	return b
}

// open opens another provider for the same Neutron.
func (b *bed) open(t *testing.T, edit func(*neutron.Settings)) *neutron.Provider {
	t.Helper()
	s := neutron.Settings{Endpoint: b.server.URL, Timeout: 20 * time.Second}
	edit(&s)
	p, err := neutron.Open(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func start() *clock.Fake { return clock.NewFake(time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)) }

func (b *bed) newPort(uid string) vpcport.NewPort { return b.contract(ovn).NewPort(uid) }

// make creates a port, which must succeed.
func (b *bed) make(t *testing.T, edit ...func(*vpcport.NewPort)) vpcport.Port {
	t.Helper()
	return b.contract(ovn).Make(t, edit...)
}
