package alcor_test

import (
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/alcor"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
)

const project = "3dda2801-d675-4688-a63f-dcda8d327f50"

// bed is a served fake of Alcor with a VPC, and a provider that uses it.
type bed struct {
	cloud      *alcorfake.Cloud
	server     *httptest.Server
	network    alcorfake.Network
	web, small alcorfake.Subnet
	group      string
	provider   *alcor.Provider
}

func newBed(t *testing.T, o alcorfake.Options) *bed {
	t.Helper()
	b := &bed{cloud: alcorfake.New(o)}
	b.network = b.cloud.AddNetwork(alcorfake.Network{Name: "blue"})
	b.web = b.cloud.AddSubnet(alcorfake.Subnet{Name: "web", Network: b.network.ID, CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1")})
	// A /29 has six host addresses, one of which is the gateway's.
	b.small = b.cloud.AddSubnet(alcorfake.Subnet{Name: "small", Network: b.network.ID, CIDR: netip.MustParsePrefix("192.168.1.0/29"), Gateway: netip.MustParseAddr("192.168.1.1")})
	b.group = b.cloud.AddGroup()
	b.cloud.AddHost("node-a", alcorfake.Host{})
	b.server = httptest.NewServer(b.cloud)
	t.Cleanup(b.server.Close)
	b.provider = b.open(t)
	t.Cleanup(func() {
		if ignored := b.cloud.Ignored(); len(ignored) > 0 {
			t.Errorf("requests with parts that Alcor does not support: %v", ignored)
		}
	})
	return b
}

// open opens another provider for the same Alcor.
func (b *bed) open(t *testing.T, edit ...func(*alcor.Settings)) *alcor.Provider {
	t.Helper()
	s := alcor.Settings{Endpoint: b.server.URL, Project: project, Timeout: 20 * time.Second}
	for _, e := range edit {
		e(&s)
	}
	p, err := alcor.Open(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func start() *clock.Fake { return clock.NewFake(time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)) }

func (b *bed) newPort(uid string) vpcport.NewPort { return b.contract("vpc-ns").NewPort(uid) }

// make creates a port, which must succeed.
func (b *bed) make(t *testing.T, edit ...func(*vpcport.NewPort)) vpcport.Port {
	t.Helper()
	return b.contract("vpc-ns").Make(t, edit...)
}
