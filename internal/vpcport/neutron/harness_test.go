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

// bed is a Neutron with a network, served, and a provider of it.
type bed struct {
	cloud      *neutronfake.Cloud
	server     *httptest.Server
	network    neutronfake.Network
	web, small neutronfake.Subnet
	group      neutronfake.Group
	provider   *neutron.Provider
}

const (
	project = "5f1c0a0e9d0b4e0f8d8f2c7d6b5a4930"
	absent  = "00000000-0000-4000-8000-000000000000"
)

var ovn = vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int", OVN: true}

// newBed is a Neutron without Keystone.
func newBed(t *testing.T, o neutronfake.Options) *bed {
	t.Helper()
	return open(t, o, func(s *neutron.Settings) { s.Project = project })
}

// withKeystone is a Neutron behind Keystone, with a user.
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
	// A /29 has six hosts, of which one is the gateway.
	b.small = b.cloud.AddSubnet(neutronfake.Subnet{Name: "small", Network: b.network.ID, CIDR: netip.MustParsePrefix("192.168.1.0/29"), Gateway: netip.MustParseAddr("192.168.1.1")})
	b.group = b.cloud.AddGroup(neutronfake.Group{Name: "web"})
	b.cloud.AddHost("node-a", neutronfake.Host{})
	b.server = httptest.NewServer(b.cloud)
	t.Cleanup(b.server.Close)
	b.provider = b.open(t, edit)
	return b
}

// open opens another provider of the same Neutron.
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

func (b *bed) newPort(uid string) vpcport.NewPort {
	return vpcport.NewPort{
		NetworkID: b.network.ID, Name: "default/" + uid, Device: vpcport.Device("blue", uid), MAC: vpcport.DerivedMAC("blue", uid, 0),
		Addresses: []vpcport.NewAddress{{SubnetID: b.web.ID}},
	}
}

// make makes a port that must be possible.
func (b *bed) make(t *testing.T, edit ...func(*vpcport.NewPort)) vpcport.Port {
	t.Helper()
	n := b.newPort("u-1")
	for _, e := range edit {
		e(&n)
	}
	out, err := b.provider.Create(t.Context(), []vpcport.NewPort{n})
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

func start() *clock.Fake { return clock.NewFake(time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)) }

// wantError checks class and what an error is about, and returns it.
func wantError(t *testing.T, what string, err error, class vpcport.Class, about string) vpcport.Error {
	t.Helper()
	if vpcport.ClassOf(err) != class || err == nil {
		t.Errorf("%s: class %v, want %v: %v", what, vpcport.ClassOf(err), class, err)
		return vpcport.Error{}
	}
	e := err.(*vpcport.Error) //nolint:errorlint // a provider's errors are of this type
	if e.About != about {
		t.Errorf("%s: it is about %q, want %q: %v", what, e.About, about, err)
	}
	return *e
}
