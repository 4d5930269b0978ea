package alcor_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
)

// A new port that is not the requested one is refused.
func TestCreateIsChecked(t *testing.T) {
	for _, tc := range []struct {
		name string
		lie  func(b *bed) func([]byte) []byte
	}{
		{"another project", func(*bed) func([]byte) []byte { return vpcporttest.Swap(project, vpcporttest.Absent) }},
		{"a path for an ID", func(*bed) func([]byte) []byte { return vpcporttest.Swap(`"port":{"id":"`, `"port":{"id":"../vpcs/`) }},
		{"null", func(*bed) func([]byte) []byte { return vpcporttest.Instead(`{"port":null}`) }},
		{"the wrong wrapper", func(*bed) func([]byte) []byte { return vpcporttest.Instead(`{"ports":[]}`) }},
		{"of another type", func(*bed) func([]byte) []byte { return vpcporttest.Instead(`{"port":"one"}`) }},
		{"too much", func(*bed) func([]byte) []byte { return vpcporttest.Instead(`{"port":` + strings.Repeat(" ", 65<<20)) }},
	} {
		b := newBed(t, alcorfake.Options{})
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodPost, After: true, Falsify: tc.lie(b)})
		n := b.newPort("u-1")
		n.Host, n.Groups = "node-a", []string{b.group}
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{n})
		vpcporttest.WantError(t, tc.name, err, vpcport.Bug, "")
	}
}

// An impossible port is refused.
func TestOnePortIsChecked(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	p := b.make(t)
	for name, lie := range map[string]func([]byte) []byte{
		"another": vpcporttest.Swap(p.ID, vpcporttest.Absent), "none": vpcporttest.Instead(`{"port":null}`), "a list": vpcporttest.Instead(`{"ports":[]}`), "a word": vpcporttest.Instead(`"port"`),
		"a broken MAC address": vpcporttest.Swap(p.MAC.String(), "x"), "one of many": vpcporttest.Swap(p.MAC.String(), "01:00:5e:00:00:01"),
		"no network": vpcporttest.Swap(b.network.ID, "a/b"),
	} {
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodGet, Times: 1, Falsify: lie})
		_, err := b.provider.Get(t.Context(), p.ID)
		vpcporttest.WantError(t, name, err, vpcport.Bug, "")
		b.cloud.HTTP.ClearFaults()
	}
}

// An impossible listing is refused.
func TestListingsAreChecked(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	p := b.make(t)
	for name, lie := range map[string]func([]byte) []byte{
		"none": vpcporttest.Instead(`{}`), "null": vpcporttest.Instead(`{"ports":null}`), "one": vpcporttest.Instead(`{"port":{}}`), "bare": vpcporttest.Instead(`[]`),
		"a broken address": vpcporttest.Swap("192.168.0.", "192.168.999."),
	} {
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodGet, Times: 1, Falsify: lie})
		_, err := b.provider.Ports(t.Context(), vpcport.Filter{IDs: []string{p.ID}})
		vpcporttest.WantError(t, name, err, vpcport.Bug, "")
		b.cloud.HTTP.ClearFaults()
	}
}

// Impossible VPCs and subnets are refused.
func TestNetworksAreChecked(t *testing.T) {
	for _, tc := range []struct {
		name, path string
		lie        func(b *bed) func([]byte) []byte
	}{
		{"another VPC", "/project/*/vpcs/*", func(b *bed) func([]byte) []byte { return vpcporttest.Swap(b.network.ID, vpcporttest.Absent) }},
		{"an MTU below 0", "/project/*/vpcs/*", func(*bed) func([]byte) []byte { return vpcporttest.Swap("1450", "-1") }},
		{"an MTU that is none", "/project/*/vpcs/*", func(*bed) func([]byte) []byte { return vpcporttest.Swap("1450", `"large"`) }},
		{"no subnets", "/project/*/subnets", func(*bed) func([]byte) []byte { return vpcporttest.Instead(`{}`) }},
		{"a broken prefix", "/project/*/subnets", func(*bed) func([]byte) []byte { return vpcporttest.Swap("192.168.0.0/24", "192.168.0.0") }},
		{"a gateway of the other family", "/project/*/subnets", func(*bed) func([]byte) []byte {
			return vpcporttest.Swap(`"gateway_ip":"192.168.0.1"`, `"gateway_ip":"fd00::1"`)
		}},
		{"a broken route", "/project/*/subnets", func(*bed) func([]byte) []byte {
			return vpcporttest.Swap(`"host_routes":[]`, `"host_routes":[{"destination":"10.0.0.0/8","nexthop":"router"}]`)
		}},
		{"a path for an ID", "/project/*/subnets", func(b *bed) func([]byte) []byte { return vpcporttest.Swap(b.web.ID, "../x") }},
	} {
		b := newBed(t, alcorfake.Options{})
		b.cloud.HTTP.Inject(alcorfake.Fault{Path: tc.path, Falsify: tc.lie(b)})
		_, err := b.provider.Network(t.Context(), b.network.ID)
		vpcporttest.WantError(t, tc.name, err, vpcport.Bug, "")
	}
}

// Invalid requests are not sent.
func TestWhatIsNotAskedFor(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	ctx := t.Context()
	none := func(_ any, err error) error { return err }
	for name, tc := range map[string]struct {
		err   error
		class vpcport.Class
	}{
		"no port":             {none(b.provider.Get(ctx, "")), vpcport.Bug},
		"a path":              {none(b.provider.Get(ctx, "../vpcs")), vpcport.PortGone},
		"deletion of all":     {b.provider.Delete(ctx, ""), vpcport.Bug},
		"a change of nothing": {none(b.provider.Update(ctx, vpcporttest.Absent, 0, vpcport.Change{})), vpcport.Bug},
		"no network":          {none(b.provider.Network(ctx, "")), vpcport.Bug},
		"an empty device":     {none(b.provider.Ports(ctx, vpcport.Filter{Devices: []string{""}})), vpcport.Bug},
		"a broken MAC":        {none(b.provider.Ports(ctx, vpcport.Filter{MACs: []mac.Addr{{1}}})), vpcport.Bug},
		"too many":            {none(b.provider.Ports(ctx, vpcport.Filter{IDs: make([]string, 101)})), vpcport.Bug},
		"ports of no network": {none(b.provider.Create(ctx, []vpcport.NewPort{{NetworkID: "a/b"}})), vpcport.Bug},
		"several at once":     {none(b.provider.Create(ctx, []vpcport.NewPort{b.newPort("u-1"), b.newPort("u-2")})), vpcport.TooLarge},
		"none at once":        {none(b.provider.Create(ctx, nil)), vpcport.TooLarge},
	} {
		if vpcport.ClassOf(tc.err) != tc.class {
			t.Errorf("%s: %v, want class %v", name, tc.err, tc.class)
		}
	}
	if err := b.provider.Delete(ctx, "a/b"); err != nil {
		t.Errorf("deleting what cannot be there: %v", err)
	}
	if calls := b.cloud.HTTP.Calls(); len(calls) != 0 {
		t.Errorf("asked %+v", calls)
	}
}

// A long listing goes in URLs that servers read.
func TestListings(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	f := vpcport.Filter{NetworkID: b.network.ID, Owner: vpcport.Owner}
	for i := range 100 {
		n := b.newPort(strings.Repeat("u", 80) + string(rune('A'+i%26)) + strings.Repeat("-", i/26))
		n.MAC, n.Addresses[0].IP = nil, netip.MustParseAddr("192.168.0.2")
		for range i {
			n.Addresses[0].IP = n.Addresses[0].IP.Next()
		}
		if _, err := b.provider.Create(t.Context(), []vpcport.NewPort{n}); err != nil {
			t.Fatal(err)
		}
		f.Devices = append(f.Devices, n.Device)
	}
	found, err := b.provider.Ports(t.Context(), f)
	if err != nil || len(found) != 100 {
		t.Errorf("found %d, %v", len(found), err)
	}
	for _, c := range b.cloud.HTTP.Calls() {
		if len(c.Path)+len(c.Query) > 8000 {
			t.Errorf("a URL of %d bytes", len(c.Path)+len(c.Query))
		}
	}
}

// Invalid ports of other clients do not break listings.
func TestStrangersPortThatCannotBe(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	p := b.make(t)
	other := b.make(t, func(n *vpcport.NewPort) {
		n.Device, n.MAC = vpcport.Device("blue", "u-2"), vpcport.DerivedMAC("blue", "u-2", 0)
	})
	for name, lie := range map[string]func([]byte) []byte{
		"its address": vpcporttest.Swap(other.Addresses[0].IP.String(), "none"), "its MAC address": vpcporttest.Swap(other.MAC.String(), "none"),
	} {
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodGet, Times: 1, Falsify: lie})
		got, err := b.provider.Ports(t.Context(), vpcport.Filter{NetworkID: b.network.ID, MACs: []mac.Addr{p.MAC}})
		if err != nil || len(got) != 1 || got[0].ID != p.ID {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		b.cloud.HTTP.ClearFaults()
	}
}
