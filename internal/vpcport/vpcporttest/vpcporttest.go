// Package vpcporttest is the contract of vpcport.Provider as tests: every provider passes
// them, against a fake and against the real thing.
//
//	vpcporttest.go  what a test is given, and the list
//	create.go       new ports
//	list.go         networks and listings
//	change.go       binding, changes, deletion
//	http.go         what providers over HTTP have in common
package vpcporttest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// Bed is a provider with a network that nobody else uses.
type Bed struct {
	Provider vpcport.Provider
	Network  string // the ID of a network, of which Name is the only one of that name
	Name     string
	// Subnet is the ID of an IPv4 subnet of the network with CIDR, of which at least 32
	// addresses are free, Free among them; and Small that of one in which Room are.
	Subnet  string
	CIDR    netip.Prefix
	Gateway netip.Addr
	Free    netip.Addr
	Small   string
	Room    int
	// Group is the ID of a security group.
	Group string
	// Host has an agent, which plugs as Plug says; at NoHost there is none.
	Host, NoHost string
	// Plug has no VLAN where the provider chooses one.
	Plug vpcport.Plug
	// NoMTU: networks do not tell theirs. NoPlugging: a port that is bound is active, whether
	// it is plugged or not.
	NoMTU, NoPlugging bool
	// Absent is an ID of the form of the provider's that is of nothing.
	Absent string
	// SetQuota leaves room for so many ports more; nil where it cannot be set.
	SetQuota func(t *testing.T, more int)
	// Later has a listing show what was done; nil where it does at once.
	Later func()
}

// Run runs the contract. Each test has a bed of its own from open, in which nothing is.
func Run(t *testing.T, open func(t *testing.T) Bed) {
	t.Helper()
	for _, tc := range []struct {
		name string
		test func(t *testing.T, b Bed)
	}{
		{"Network", network}, {"NoNetwork", noNetwork}, {"Project", projectID},
		{"Create", create}, {"CreateBound", createBound}, {"CreateAt", createAt}, {"CreateIsAllOrNothing", createAllOrNothing},
		{"CreateRefuses", createRefuses}, {"MACTaken", macTaken}, {"SubnetFull", subnetFull}, {"Quota", quota},
		{"List", list}, {"ListNothing", listNothing}, {"Get", get},
		{"Bind", bind}, {"BindingFails", bindingFails}, {"Change", change}, {"Stale", stale}, {"Gone", gone}, {"Delete", remove},
		{"Cancelled", cancelled},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, open(t)) })
	}
}

// newPort asks for the port of the nth NIC of a test.
func (b Bed) newPort(t *testing.T, n int) vpcport.NewPort {
	t.Helper()
	return vpcport.NewPort{
		NetworkID: b.Network, Name: fmt.Sprintf("default/nic-%d", n), Device: b.device(t, n),
		Addresses: []vpcport.NewAddress{{SubnetID: b.Subnet}},
	}
}

// device is that of the nth NIC of a test. Names of tests tell the tests' apart, where
// they share a provider.
func (b Bed) device(t *testing.T, n int) string {
	t.Helper()
	return vpcport.Device("contract", fmt.Sprintf("%x-%d", t.Name(), n))
}

// made makes a port, which goes with the test.
func (b Bed) made(t *testing.T, edit ...func(*vpcport.NewPort)) vpcport.Port {
	t.Helper()
	want := b.newPort(t, 0)
	for _, e := range edit {
		e(&want)
	}
	return b.create(t, []vpcport.NewPort{want})[0]
}

func (b Bed) create(t *testing.T, want []vpcport.NewPort) []vpcport.Port {
	t.Helper()
	out, err := b.Provider.Create(t.Context(), want)
	if err != nil {
		t.Fatalf("making %d ports: %v", len(want), err)
	}
	if len(out) != len(want) {
		t.Fatalf("asked for %d ports, got %d", len(want), len(out))
	}
	for _, p := range out {
		b.goes(t, p.ID)
	}
	return out
}

// goes deletes a port after the test.
func (b Bed) goes(t *testing.T, id string) {
	t.Helper()
	t.Cleanup(func() {
		if err := b.Provider.Delete(context.Background(), id); err != nil {
			t.Errorf("deleting port %s after the test: %v", id, err)
		}
	})
}

// plugs reports whether a port is to be plugged as the host's are.
func (b Bed) plugs(p vpcport.Port) bool {
	is := p.Binding.Plug
	if b.Plug.Kind == vpcport.VLAN {
		if is.VLAN < 1 || is.VLAN > 4094 {
			return false
		}
		is.VLAN = 0
	}
	return p.Binding.Result == vpcport.Bound && is == b.Plug
}

// ids are those of the ports that a filter lets through, in order.
func (b Bed) ids(t *testing.T, f vpcport.Filter) []string {
	t.Helper()
	if b.Later != nil {
		b.Later()
	}
	ports, err := b.Provider.Ports(t.Context(), f)
	if err != nil {
		t.Fatalf("listing %+v: %v", f, err)
	}
	return idsOf(ports)
}

func idsOf(ports []vpcport.Port) []string {
	out := []string{}
	for _, p := range ports {
		out = append(out, p.ID)
	}
	slices.Sort(out)
	return out
}

// wantClass checks what a call failed with.
func wantClass(t *testing.T, what string, err error, want vpcport.Class) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one of class %v", what, want)
		return
	}
	if got := vpcport.ClassOf(err); got != want {
		t.Errorf("%s: class %v, want %v: %v", what, got, want, err)
	}
}

// aMAC is the nth MAC address of a test.
func aMAC(t *testing.T, n int) mac.Addr {
	t.Helper()
	return vpcport.DerivedMAC("contract", fmt.Sprintf("%s %d", t.Name(), n), 0)
}
