//go:build e2e

package neutron

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/openstack"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/neutronscenes"
)

const absent = "00000000-0000-4000-8000-000000000000"

var (
	byOVN    = vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int", OVN: true}
	byHybrid = vpcport.Plug{Kind: vpcport.OVSHybrid, Bridge: "br-int"}
)

// provider opens a provider with some credentials, or without any.
func (w *world) provider(t *testing.T, credentials *neutron.Credentials) *neutron.Provider {
	t.Helper()
	s := neutron.Settings{Endpoint: w.Endpoint(), Credentials: credentials, Timeout: time.Minute}
	if credentials == nil {
		s.Project = w.Project()
	} else {
		s.TLS.Insecure = true // Keystone of the lab speaks no TLS
	}
	p, err := neutron.Open(s)
	harness.OK(t, err)
	t.Cleanup(p.Close)
	return p
}

// name is unique.
func name() string {
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return "t-" + hex.EncodeToString(b)
}

// goes deletes an object after the test.
func (w *world) goes(t *testing.T, kind, id string) {
	t.Helper()
	t.Cleanup(func() {
		if err := w.Delete(context.Background(), kind, id); err != nil {
			t.Errorf("delete %s %s after the test: %v", kind, id, err)
		}
	})
}

func (w *world) network(t *testing.T, name string) openstack.Network {
	t.Helper()
	n, err := w.AddNetwork(t.Context(), openstack.Network{Name: name})
	harness.OK(t, err)
	w.goes(t, "network", n.ID)
	return n
}

func (w *world) subnet(t *testing.T, network, name string, cidr netip.Prefix) openstack.Subnet {
	t.Helper()
	s, err := w.AddSubnet(t.Context(), openstack.Subnet{Name: name, Network: network, CIDR: cidr})
	harness.OK(t, err)
	return s // goes with its network
}

func (w *world) group(t *testing.T, name string) openstack.Group {
	t.Helper()
	g, err := w.AddGroup(t.Context(), name)
	harness.OK(t, err)
	w.goes(t, "security-group", g.ID)
	return g
}

// bed is a network for a test of the contract.
func (w *world) bed(t *testing.T, p vpcport.Provider, plug vpcport.Plug) vpcporttest.Bed {
	t.Helper()
	// The group is deleted last, since ports have it.
	group := w.group(t, name())
	network := w.network(t, name())
	web := w.subnet(t, network.ID, "web", netip.MustParsePrefix("192.168.0.0/24"))
	small := w.subnet(t, network.ID, "small", netip.MustParsePrefix("192.168.1.0/29"))
	return vpcporttest.Bed{
		Provider: p, Network: network.ID, Name: network.Name, Subnet: web.ID, CIDR: web.CIDR, Gateway: web.Gateway, Free: netip.MustParseAddr("192.168.0.77"),
		Small: small.ID, Room: 5, // six hosts, of which one is the gateway
		Group: group.ID, Host: nodeNames[0], NoHost: "node-z", Plug: plug, Absent: absent,
		SetQuota: func(t *testing.T, more int) {
			t.Helper()
			ports, err := w.Ports(t.Context(), network.ID)
			harness.OK(t, err)
			t.Cleanup(func() { harness.OK(t, w.SetQuota(context.Background(), -1)) })
			harness.OK(t, w.SetQuota(t.Context(), len(ports)+more))
		},
	}
}

// contract runs the contract of providers.
func contract(t *testing.T, w *world, p vpcport.Provider, plug vpcport.Plug) {
	t.Helper()
	vpcporttest.Run(t, func(t *testing.T) vpcporttest.Bed { return w.bed(t, p, plug) })
}

// compare compares the lab's Neutron with the real one: status, type and words of errors, and
// attributes of the answer to each request of the provider; and revisions and bindings.
func compare(t *testing.T, w *world, host neutronfake.Host) {
	t.Helper()
	s := neutronscenes.Stage{Host: nodeNames[0], Project: w.Project(), Quota: func(n int) { harness.OK(t, w.SetQuota(context.Background(), n)) }}
	s.Group, s.Network = w.group(t, neutronscenes.Name).ID, w.network(t, neutronscenes.Name).ID
	s.Web, s.Small = w.subnet(t, s.Network, "web", neutronscenes.Web).ID, w.subnet(t, s.Network, "small", neutronscenes.Small).ID
	url, ofLab := neutronscenes.OfLab(t, host)
	ofLab.Project = s.Project
	want, got := neutronscenes.Requests(t, w.Endpoint(), s), neutronscenes.Requests(t, url, ofLab)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("of Neutron (-) and the lab (+):\n%s", diff)
	}
	neutronscenes.Compare(t, neutronscenes.Play(t, url, ofLab), neutronscenes.Play(t, w.Endpoint(), s))
}
