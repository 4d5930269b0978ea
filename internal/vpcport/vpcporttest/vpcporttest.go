// Package vpcporttest tests the contract of vpcport.Provider. Every provider must pass the tests, with a fake and with the real service.
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

// Bed is a provider with a network for one test.
type Bed struct {
	Provider vpcport.Provider
	Network  string // the ID of a network, which has the unique name Name
	Name     string
	// Subnet is the ID of an IPv4 subnet with CIDR and at least 32 free addresses, one of which is Free.
	// Small is the ID of a subnet with Room free addresses.
	Subnet  string
	CIDR    netip.Prefix
	Gateway netip.Addr
	Free    netip.Addr
	Small   string
	Room    int
	// Group is the ID of a security group.
	Group string
	// Host has an agent, which plugs as described by Plug; NoHost has none.
	Host, NoHost string
	// Plug has no VLAN if the provider chooses it.
	Plug vpcport.Plug
	// NoMTU: networks have no MTU. NoPlugging: a bound port is active even if it is not plugged.
	NoMTU, NoPlugging bool
	// Absent is a valid ID that does not exist.
	Absent string
	// SetQuota leaves room for the given number of new ports; nil: no quotas.
	SetQuota func(t *testing.T, more int)
	// Later waits until listings are current; nil: they do not lag.
	Later func()
}

// Run runs the tests. open gives each test an empty bed.
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

// newPort returns a request for the port of the nth NIC of a test.
func (b Bed) newPort(t *testing.T, n int) vpcport.NewPort {
	t.Helper()
	return vpcport.NewPort{
		NetworkID: b.Network, Name: fmt.Sprintf("default/nic-%d", n), Device: b.device(t, n),
		Addresses: []vpcport.NewAddress{{SubnetID: b.Subnet}},
	}
}

// device returns the device of the nth NIC of a test. It contains the test's name, because tests may share a provider.
func (b Bed) device(t *testing.T, n int) string {
	t.Helper()
	return vpcport.Device("contract", fmt.Sprintf("%x-%d", t.Name(), n))
}

// made creates a port and deletes it after the test.
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
		t.Fatalf("create %d ports: %v", len(want), err)
	}
	if len(out) != len(want) {
		t.Fatalf("requested %d ports, got %d", len(want), len(out))
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
			t.Errorf("delete port %s after the test: %v", id, err)
		}
	})
}

// plugs reports whether a port has the binding of the host.
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

// ids returns the IDs of the ports that match a filter, in order.
func (b Bed) ids(t *testing.T, f vpcport.Filter) []string {
	t.Helper()
	if b.Later != nil {
		b.Later()
	}
	ports, err := b.Provider.Ports(t.Context(), f)
	if err != nil {
		t.Fatalf("Ports(%+v) = %v", f, err)
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

// wantClass checks the class of an error.
func wantClass(t *testing.T, what string, err error, want vpcport.Class) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want class %v", what, want)
		return
	}
	if got := vpcport.ClassOf(err); got != want {
		t.Errorf("%s: class %v, want %v: %v", what, got, want, err)
	}
}

// aMAC returns the nth MAC address of a test.
func aMAC(t *testing.T, n int) mac.Addr {
	t.Helper()
	return vpcport.DerivedMAC("contract", fmt.Sprintf("%s %d", t.Name(), n), 0)
}
