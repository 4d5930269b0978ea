package vpcporttest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// A network is found by its ID and by its name, with its subnets.
func network(t *testing.T, b Bed) {
	for _, by := range []string{b.Network, b.Name} {
		n, err := b.Provider.Network(t.Context(), by)
		if err != nil {
			t.Fatalf("network %s: %v", by, err)
		}
		if n.ID != b.Network || n.Name != b.Name || (n.MTU > 0) == b.NoMTU {
			t.Errorf("network %s: got %s, named %q, MTU %d", by, n.ID, n.Name, n.MTU)
		}
		i := slices.IndexFunc(n.Subnets, func(s vpcport.Subnet) bool { return s.ID == b.Subnet })
		if i < 0 || n.Subnets[i].CIDR != b.CIDR || n.Subnets[i].Gateway != b.Gateway {
			t.Errorf("network %s: the subnets %+v, want %s with %v and the gateway %v among them", by, n.Subnets, b.Subnet, b.CIDR, b.Gateway)
		}
		if !slices.IsSortedFunc(n.Subnets, func(x, y vpcport.Subnet) int { return strings.Compare(x.ID, y.ID) }) {
			t.Errorf("network %s: its subnets are in no order: %+v", by, n.Subnets)
		}
	}
}

func noNetwork(t *testing.T, b Bed) {
	for _, by := range []string{b.Absent, "no network has this name"} {
		_, err := b.Provider.Network(t.Context(), by)
		wantClass(t, "network "+by, err, vpcport.NetworkGone)
	}
}

// A port in a listing matches all fields of the filter.
func list(t *testing.T, b Bed) {
	var ports []vpcport.Port
	for n := range 4 {
		ports = append(ports, b.create(t, []vpcport.NewPort{b.newPort(t, n)})...)
	}
	all := idsOf(ports)
	devices := []string{ports[0].Device, ports[1].Device, ports[2].Device, ports[3].Device}
	for _, tc := range []struct {
		name string
		f    vpcport.Filter
		want []string
	}{
		{"by IDs", vpcport.Filter{IDs: []string{ports[2].ID, ports[0].ID}}, idsOf([]vpcport.Port{ports[0], ports[2]})},
		{"by IDs, one of which is of nothing", vpcport.Filter{IDs: []string{b.Absent, ports[0].ID}}, []string{ports[0].ID}},
		{"by devices", vpcport.Filter{Devices: devices[:2]}, idsOf(ports[:2])},
		{"by MAC addresses", vpcport.Filter{NetworkID: b.Network, MACs: []mac.Addr{ports[1].MAC, ports[3].MAC}}, idsOf([]vpcport.Port{ports[1], ports[3]})},
		{"by owner, network and devices", vpcport.Filter{Owner: vpcport.Owner, NetworkID: b.Network, Devices: devices}, all},
		{"by another owner", vpcport.Filter{Owner: "compute:nova", Devices: devices}, []string{}},
		{"by another network", vpcport.Filter{NetworkID: b.Absent, Devices: devices}, []string{}},
		{"by devices and another ID", vpcport.Filter{IDs: []string{ports[3].ID}, Devices: devices[:2]}, []string{}},
	} {
		if d := cmp.Diff(tc.want, b.ids(t, tc.f)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
	if got := b.ids(t, vpcport.Filter{Owner: vpcport.Owner, NetworkID: b.Network}); slices.ContainsFunc(all, func(id string) bool { return !slices.Contains(got, id) }) {
		t.Errorf("by owner: got %v, want %v among them", got, all)
	}
}

// An empty filter is refused.
func listNothing(t *testing.T, b Bed) {
	_, err := b.Provider.Ports(t.Context(), vpcport.Filter{})
	wantClass(t, "a listing of everything", err, vpcport.Bug)
}

// Get shows a new port at once.
func get(t *testing.T, b Bed) {
	made := b.made(t)
	got, err := b.Provider.Get(t.Context(), made.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != made.ID || got.Device != made.Device || got.MAC.String() != made.MAC.String() || !slices.Equal(got.Addresses, made.Addresses) {
		t.Errorf("made %+v\ngot %+v", made, got)
	}
	_, err = b.Provider.Get(t.Context(), b.Absent)
	wantClass(t, "a port that is not there", err, vpcport.PortGone)
}

// All calls are in one project, which has an ID. A call whose context has ended has the class of a lost
// reply.
func projectID(t *testing.T, b Bed) {
	first, err := b.Provider.Project(t.Context())
	if err != nil || first == "" {
		t.Fatalf("project %q, %v", first, err)
	}
	if again, err := b.Provider.Project(t.Context()); err != nil || again != first {
		t.Errorf("project %q, then %q, %v", first, again, err)
	}
}

func cancelled(t *testing.T, b Bed) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Provider.Get(ctx, b.Absent)
	wantClass(t, "Get", err, vpcport.Transient)
	_, err = b.Provider.Create(ctx, []vpcport.NewPort{b.newPort(t, 0)})
	wantClass(t, "Create", err, vpcport.Transient)
	wantClass(t, "Delete", b.Provider.Delete(ctx, b.Absent), vpcport.Transient)
}

// WantListings checks that listings by devices, IDs, both and the owner return exactly the ports with these IDs. All ports
// have one of these devices.
func WantListings(t *testing.T, p vpcport.Provider, devices, ids []string) {
	t.Helper()
	want := slices.Sorted(slices.Values(ids))
	for name, f := range map[string]vpcport.Filter{"devices": {Devices: devices}, "IDs": {IDs: ids}, "owner": {Owner: vpcport.Owner}, "both": {IDs: ids, Devices: devices}} {
		ports, err := p.Ports(t.Context(), f)
		var got []string
		for _, p := range ports {
			got = append(got, p.ID)
		}
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("by %s: %d ports, %v; got %v, want %v", name, len(ports), err, got, want)
		}
	}
}
