package neutron_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
)

// The plug of a port follows from Neutron's binding.
func TestBindings(t *testing.T) {
	for _, tc := range []struct {
		name string
		host neutronfake.Host
		want vpcport.Binding
	}{
		{"OVN", neutronfake.Host{}, vpcport.Binding{Result: vpcport.Bound, Plug: ovn}},
		{"Open vSwitch's agent", neutronfake.Host{Agent: true}, vpcport.Binding{Result: vpcport.Bound, Plug: vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int"}}},
		{"hybrid", neutronfake.Host{Agent: true, Hybrid: true, Bridge: "br-x"}, vpcport.Binding{Result: vpcport.Bound, Plug: vpcport.Plug{Kind: vpcport.OVSHybrid, Bridge: "br-x"}}},
		{"few words", neutronfake.Host{VIF: neutronfake.VIF{Type: "ovs"}}, vpcport.Binding{Result: vpcport.Bound, Plug: vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int"}}},
		{"SR-IOV", neutronfake.Host{VIF: neutronfake.VIF{Type: "hw_veb"}}, vpcport.Binding{Result: vpcport.BindingFailed}},
		{"vhost-user", neutronfake.Host{VIF: neutronfake.VIF{Type: "vhostuser"}}, vpcport.Binding{Result: vpcport.BindingFailed}},
		{"a bridge that cannot be", neutronfake.Host{Bridge: "../../etc"}, vpcport.Binding{Result: vpcport.BindingFailed}},
		{"a long bridge", neutronfake.Host{Bridge: "br-0123456789abc"}, vpcport.Binding{Result: vpcport.BindingFailed}},
		{"details of another type", neutronfake.Host{VIF: neutronfake.VIF{Type: "ovs", Details: map[string]any{"ovs_hybrid_plug": "maybe"}}}, vpcport.Binding{Result: vpcport.BindingFailed}},
	} {
		b := newBed(t, neutronfake.Options{})
		b.cloud.AddHost("node-b", tc.host)
		p := b.make(t, func(n *vpcport.NewPort) { n.Host = "node-b" })
		if p.Binding != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, p.Binding, tc.want)
		}
	}
}

// A port becomes active when it is bound and plugged. A request for the same host retries a failed
// binding.
func TestLifeOfAPort(t *testing.T) {
	b := newBed(t, neutronfake.Options{Clock: start()})
	p := b.make(t)
	if want := time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC); !p.CreatedAt.Equal(want) {
		t.Errorf("made at %v, want %v", p.CreatedAt, want)
	}
	host := "node-z"
	for _, want := range []vpcport.BindingResult{vpcport.BindingFailed, vpcport.Bound} {
		var err error
		if p, err = b.provider.Update(t.Context(), p.ID, p.Revision, vpcport.Change{Host: &host}); err != nil || p.Binding.Result != want {
			t.Fatalf("got %+v, %v; want %v", p.Binding, err, want)
		}
		b.cloud.AddHost("node-z", neutronfake.Host{}) // its agent has come
	}
	b.cloud.Plug(p.ID, "node-z")
	for _, want := range []vpcport.Status{vpcport.StatusActive, vpcport.StatusDown} {
		p, err := b.provider.Get(t.Context(), p.ID)
		if err != nil || p.Status != want {
			t.Errorf("status %v, %v; want %v", p.Status, err, want)
		}
		b.cloud.Unplug(p.ID)
	}
	for text, want := range map[string]vpcport.Status{"BUILD": vpcport.StatusBuild, "ERROR": vpcport.StatusError, "N/A": vpcport.StatusDown} {
		b.cloud.Edit(p.ID, func(o *neutronfake.Port) { o.Status = text })
		if p, err := b.provider.Get(t.Context(), p.ID); err != nil || p.Status != want {
			t.Errorf("status %v of %s, %v", p.Status, text, err)
		}
	}
}

// A change does not overwrite the change of another client, unless it has revision 0.
func TestConcurrentChanges(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	p := b.make(t)
	b.cloud.Edit(p.ID, func(o *neutronfake.Port) { o.Device = "theirs" })
	host := "node-a"
	_, err := b.provider.Update(t.Context(), p.ID, p.Revision, vpcport.Change{Host: &host})
	e := vpcporttest.WantError(t, "Update", err, vpcport.Stale, p.ID)
	if want := fmt.Sprintf("Neutron PUT ports: RevisionNumberConstraintFailed (412): Constrained to %d, but current revision is %d", p.Revision, p.Revision+1); e.Error() != want {
		t.Errorf("got %v\nwant %s", &e, want)
	}
	now, err := b.provider.Get(t.Context(), p.ID)
	if err != nil || now.Device != "theirs" || now.Host != "" {
		t.Errorf("got %+v, %v", now, err)
	}
	if _, err := b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host}); err != nil {
		t.Errorf("in any case: %v", err)
	}
	b.cloud.Remove(p.ID)
	_, err = b.provider.Update(t.Context(), p.ID, now.Revision, vpcport.Change{Host: &host})
	vpcporttest.WantError(t, "Update of what another deleted", err, vpcport.PortGone, p.ID)
}

// The deletion of a service's port fails.
func TestServicePortsStay(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	p := b.cloud.AddPort(neutronfake.Port{Network: b.network.ID, Owner: "network:dhcp"})
	vpcporttest.WantError(t, "Delete", b.provider.Delete(t.Context(), p.ID), vpcport.Conflict, p.ID)
}

// Neutron gives a port the gateway's address on request. Berth's own check of a pod's NICs, by the
// network that the provider describes, refuses such requests.
func TestNeutronGivesTheGatewaysAddress(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	n, err := b.provider.Network(t.Context(), "blue")
	if err != nil {
		t.Fatal(err)
	}
	known := nicrequest.Network{VPC: "blue"}
	for _, s := range n.Subnets {
		known.Subnets = append(known.Subnets, vpcport.Subnet{ID: s.ID, Name: s.Name, CIDR: s.CIDR, Gateway: s.Gateway})
	}
	asked := []nicrequest.NIC{{Addresses: []nicrequest.Address{{Subnet: "web", IP: b.web.Gateway}}}}
	if _, errs := nicrequest.Resolve(asked, known); len(errs) != 1 || !strings.Contains(errs[0].Detail, "gateway") {
		t.Errorf("asking for the gateway's address: %v", errs)
	}
	p := b.make(t, func(n *vpcport.NewPort) { n.Addresses[0].IP = b.web.Gateway })
	if !has(p, b.web.Gateway) {
		t.Errorf("got %v", p.Addresses)
	}
}

// has reports whether a port has an address.
func has(p vpcport.Port, ip netip.Addr) bool {
	return slices.ContainsFunc(p.Addresses, func(a vpcport.FixedIP) bool { return a.IP == ip })
}

// Without requested addresses, a port has one of each family.
func TestAddressesOfBothFamilies(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	six := b.cloud.AddSubnet(neutronfake.Subnet{Network: b.network.ID, CIDR: netip.MustParsePrefix("fd00:1::/64"), Gateway: netip.MustParseAddr("fd00:1::1"),
		Routes: []neutronfake.Route{{Destination: netip.MustParsePrefix("fd00:2::/64"), NextHop: netip.MustParseAddr("fd00:1::9")}}})
	p := b.make(t, func(n *vpcport.NewPort) { n.Addresses = nil })
	if len(p.Addresses) != 2 || !p.Addresses[0].IP.Is4() || p.Addresses[1].SubnetID != six.ID {
		t.Errorf("got %v", p.Addresses)
	}
	p = b.make(t, func(n *vpcport.NewPort) {
		n.MAC, n.Addresses = nil, []vpcport.NewAddress{{SubnetID: six.ID, IP: netip.MustParseAddr("fd00:1::77")}, {SubnetID: b.web.ID}}
	})
	if len(p.Addresses) != 2 || !has(p, netip.MustParseAddr("fd00:1::77")) {
		t.Errorf("got %v", p.Addresses)
	}
	n, err := b.provider.Network(t.Context(), "blue")
	i := slices.IndexFunc(n.Subnets, func(s vpcport.Subnet) bool { return s.ID == six.ID })
	if err != nil || i < 0 || len(n.Subnets[i].Routes) != 1 || n.Subnets[i].Routes[0].Gateway.String() != "fd00:1::9" {
		t.Errorf("got %+v, %v", n, err)
	}
}

// A network without subnets is distinguished from a missing one, which Neutron does not do for an
// administrator.
func TestNoNetworkOrNoSubnets(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	empty := b.cloud.AddNetwork(neutronfake.Network{Name: "empty"})
	n := b.newPort("u-1")
	n.NetworkID = empty.ID
	_, err := b.provider.Create(t.Context(), []vpcport.NewPort{n})
	vpcporttest.WantError(t, "a network without subnets", err, vpcport.Invalid, "")
	gone := b.newPort("u-2")
	gone.NetworkID = vpcporttest.Absent
	_, err = b.provider.Create(t.Context(), []vpcport.NewPort{n, gone})
	vpcporttest.WantError(t, "another that is not there", err, vpcport.NetworkGone, vpcporttest.Absent)
}

// Two networks with the same name are distinguished from none.
func TestNetworkByName(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	second := b.cloud.AddNetwork(neutronfake.Network{Name: "blue"})
	_, err := b.provider.Network(t.Context(), "blue")
	vpcporttest.WantError(t, "two of one name", err, vpcport.Invalid, "blue")
	if n, err := b.provider.Network(t.Context(), second.ID); err != nil || n.ID != second.ID || len(n.Subnets) != 0 {
		t.Errorf("by ID: %+v, %v", n, err)
	}
	like := b.cloud.AddNetwork(neutronfake.Network{Name: vpcporttest.Absent}) // a name that has the form of an ID
	if n, err := b.provider.Network(t.Context(), vpcporttest.Absent); err != nil || n.ID != like.ID {
		t.Errorf("by a name like an ID: %+v, %v", n, err)
	}
}

// Neutron accepts the largest request. Names are cut to the length that it allows.
func TestLargestBatch(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	groups := []string{}
	for range 16 {
		groups = append(groups, b.cloud.AddGroup(neutronfake.Group{}).ID)
	}
	want := make([]vpcport.NewPort, b.provider.Traits().MaxBatch)
	for i := range want {
		want[i] = b.newPort(fmt.Sprint("u-", i))
		want[i].Name, want[i].Host, want[i].Groups = strings.Repeat("é", 400), strings.Repeat("h", 253), groups
		want[i].Device += strings.Repeat("x", 100)
	}
	got, err := b.provider.Create(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got[0].Name); len(got) != len(want) || n != 254 {
		t.Errorf("%d ports, names of %d bytes", len(got), n)
	}
	if n := b.cloud.HTTP.Count(http.MethodPost, "/v2.0/ports"); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// A listing in small pages is complete.
func TestListingsInPages(t *testing.T) {
	b := newBed(t, neutronfake.Options{MaxPage: 7})
	var devices, ids []string
	for i := range 100 {
		devices = append(devices, fmt.Sprint("u-", i))
		ids = append(ids, b.cloud.AddPort(neutronfake.Port{Network: b.network.ID, Device: devices[i], Owner: vpcport.Owner}).ID)
	}
	vpcporttest.WantListings(t, b.provider, devices, ids)
}

// If the last port of a page is deleted before the next request, the listing fails as Transient.
func TestLastPortOfAPageIsDeleted(t *testing.T) {
	b := newBed(t, neutronfake.Options{MaxPage: 2})
	for range 5 {
		b.cloud.AddPort(neutronfake.Port{Network: b.network.ID})
	}
	second := b.cloud.Ports()[1].ID
	b.cloud.HTTP.Inject(neutronfake.Fault{Times: 1, After: true, Falsify: func(body []byte) []byte {
		b.cloud.Remove(second)
		return body
	}})
	_, err := b.provider.Ports(t.Context(), vpcport.Filter{NetworkID: b.network.ID})
	vpcporttest.WantError(t, "Ports", err, vpcport.Transient, "")
	if ports, err := b.provider.Ports(t.Context(), vpcport.Filter{NetworkID: b.network.ID}); err != nil || len(ports) != 4 {
		t.Errorf("once more: %d ports, %v", len(ports), err)
	}
}

// A listing may be older than the reply of Get.
func TestListingsMayBeOld(t *testing.T) {
	clock := start()
	b := newBed(t, neutronfake.Options{Clock: clock, Lag: 5 * time.Second})
	p := b.make(t)
	seen := func() int {
		ports, err := b.provider.Ports(t.Context(), vpcport.Filter{IDs: []string{p.ID}})
		if err != nil {
			t.Fatal(err)
		}
		return len(ports)
	}
	if _, err := b.provider.Get(t.Context(), p.ID); err != nil || seen() != 0 {
		t.Errorf("a look: %v; listed are %d", err, seen())
	}
	clock.Advance(5 * time.Second)
	if seen() != 1 {
		t.Error("not listed after the lag")
	}
}

// The error for a denied or hidden attribute has its policy rule.
func TestPolicy(t *testing.T) {
	for _, tc := range []struct{ rule, about, text string }{
		{"create_port", "", "rule:create_port"},
		{"create_port:mac_address", "", "rule:create_port:mac_address"},
		{"create_port:binding:host_id", "", "rule:create_port:binding:host_id"},
		{"get_port:binding:vif_type", "binding:vif_type", "get_port:binding:vif_type"},
		{"get_port:binding:vif_details", "binding:vif_type", "get_port:binding:vif_details"},
		{"get_port:binding:host_id", "binding:vif_type", "get_port:binding:host_id"},
	} {
		b := withKeystone(t, neutronfake.Options{}, neutronfake.User{Reader: true, Denied: []string{tc.rule}})
		n := b.newPort("u-1")
		n.Host = "node-a"
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{n})
		e := vpcporttest.WantError(t, tc.rule, err, vpcport.Forbidden, tc.about)
		if !strings.Contains(e.Message, tc.text) {
			t.Errorf("%s: %v", tc.rule, &e)
		}
	}
}

// A project cannot see ports of others.
func TestProjects(t *testing.T) {
	b := withKeystone(t, neutronfake.Options{}, neutronfake.User{Reader: true})
	theirs := b.cloud.AddPort(neutronfake.Port{Network: b.network.ID, Project: "theirs"})
	_, err := b.provider.Get(t.Context(), theirs.ID)
	vpcporttest.WantError(t, "Get", err, vpcport.PortGone, theirs.ID)
	if ports, err := b.provider.Ports(t.Context(), vpcport.Filter{IDs: []string{theirs.ID}}); err != nil || len(ports) != 0 {
		t.Errorf("listed %v, %v", ports, err)
	}
}
