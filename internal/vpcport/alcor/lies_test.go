package alcor_test

import (
	"bytes"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
)

// swap replaces a text in what is answered.
func swap(old, with string) func([]byte) []byte {
	return func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(old), []byte(with)) }
}

func instead(body string) func([]byte) []byte { return func([]byte) []byte { return []byte(body) } }

// Nothing is believed that is not what was asked for: neither of a new port, ...
func TestCreateIsChecked(t *testing.T) {
	for _, tc := range []struct {
		name string
		lie  func(b *bed) func([]byte) []byte
	}{
		{"another network", func(b *bed) func([]byte) []byte { return swap(b.network.ID, absent) }},
		{"another project", func(*bed) func([]byte) []byte { return swap(project, absent) }},
		{"another device", func(*bed) func([]byte) []byte { return swap("berth:blue:u-1", "berth:blue:u-9") }},
		{"another owner", func(*bed) func([]byte) []byte { return swap("compute:berth", "compute:nova") }},
		{"another MAC address", func(*bed) func([]byte) []byte {
			return swap(vpcport.DerivedMAC("blue", "u-1", 0).String(), "fa:16:3e:00:00:01")
		}},
		{"no MAC address", func(*bed) func([]byte) []byte { return swap(vpcport.DerivedMAC("blue", "u-1", 0).String(), "none") }},
		{"another subnet", func(b *bed) func([]byte) []byte { return swap(b.web.ID, b.small.ID) }},
		{"no address", func(*bed) func([]byte) []byte { return swap(`"fixed_ips":[{`, `"fixed_ips":[],"x":[{`) }},
		{"what is no address", func(*bed) func([]byte) []byte { return swap("192.168.0.", "192.168.300.") }},
		{"another host", func(*bed) func([]byte) []byte {
			return swap(`"binding:host_id":"node-a"`, `"binding:host_id":"node-b"`)
		}},
		{"other groups", func(b *bed) func([]byte) []byte { return swap(b.group, absent) }},
		{"a path for an ID", func(*bed) func([]byte) []byte { return swap(`"port":{"id":"`, `"port":{"id":"../vpcs/`) }},
		{"null", func(*bed) func([]byte) []byte { return instead(`{"port":null}`) }},
		{"the wrong wrapper", func(*bed) func([]byte) []byte { return instead(`{"ports":[]}`) }},
		{"of another type", func(*bed) func([]byte) []byte { return instead(`{"port":"one"}`) }},
		{"too much", func(*bed) func([]byte) []byte { return instead(`{"port":` + strings.Repeat(" ", 65<<20)) }},
	} {
		b := newBed(t, alcorfake.Options{})
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodPost, After: true, Falsify: tc.lie(b)})
		n := b.newPort("u-1")
		n.Host, n.Groups = "node-a", []string{b.group}
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{n})
		wantError(t, tc.name, err, vpcport.Bug, "")
	}
}

// ... nor of one port, ...
func TestOnePortIsChecked(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	p := b.make(t)
	for name, lie := range map[string]func([]byte) []byte{
		"another": swap(p.ID, absent), "none": instead(`{"port":null}`), "a list": instead(`{"ports":[]}`), "a word": instead(`"port"`),
		"a broken MAC address": swap(p.MAC.String(), "x"), "one of many": swap(p.MAC.String(), "01:00:5e:00:00:01"),
		"no network": swap(b.network.ID, "a/b"),
	} {
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodGet, Times: 1, Falsify: lie})
		_, err := b.provider.Get(t.Context(), p.ID)
		wantError(t, name, err, vpcport.Bug, "")
		b.cloud.HTTP.ClearFaults()
	}
}

// ... nor of listings, ...
func TestListingsAreChecked(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	p := b.make(t)
	for name, lie := range map[string]func([]byte) []byte{
		"none": instead(`{}`), "null": instead(`{"ports":null}`), "one": instead(`{"port":{}}`), "bare": instead(`[]`),
		"a broken address": swap("192.168.0.", "192.168.999."),
	} {
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodGet, Times: 1, Falsify: lie})
		_, err := b.provider.Ports(t.Context(), vpcport.Filter{IDs: []string{p.ID}})
		wantError(t, name, err, vpcport.Bug, "")
		b.cloud.HTTP.ClearFaults()
	}
}

// ... nor of VPCs and subnets.
func TestNetworksAreChecked(t *testing.T) {
	for _, tc := range []struct {
		name, path string
		lie        func(b *bed) func([]byte) []byte
	}{
		{"another VPC", "/project/*/vpcs/*", func(b *bed) func([]byte) []byte { return swap(b.network.ID, absent) }},
		{"an MTU below 0", "/project/*/vpcs/*", func(*bed) func([]byte) []byte { return swap("1450", "-1") }},
		{"an MTU that is none", "/project/*/vpcs/*", func(*bed) func([]byte) []byte { return swap("1450", `"large"`) }},
		{"no subnets", "/project/*/subnets", func(*bed) func([]byte) []byte { return instead(`{}`) }},
		{"a broken prefix", "/project/*/subnets", func(*bed) func([]byte) []byte { return swap("192.168.0.0/24", "192.168.0.0") }},
		{"a gateway of the other family", "/project/*/subnets", func(*bed) func([]byte) []byte { return swap(`"gateway_ip":"192.168.0.1"`, `"gateway_ip":"fd00::1"`) }},
		{"a broken route", "/project/*/subnets", func(*bed) func([]byte) []byte {
			return swap(`"host_routes":[]`, `"host_routes":[{"destination":"10.0.0.0/8","nexthop":"router"}]`)
		}},
		{"a path for an ID", "/project/*/subnets", func(b *bed) func([]byte) []byte { return swap(b.web.ID, "../x") }},
	} {
		b := newBed(t, alcorfake.Options{})
		b.cloud.HTTP.Inject(alcorfake.Fault{Path: tc.path, Falsify: tc.lie(b)})
		_, err := b.provider.Network(t.Context(), b.network.ID)
		wantError(t, tc.name, err, vpcport.Bug, "")
	}
}

// What is no one's to ask for is not asked for.
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
		"a change of nothing": {none(b.provider.Update(ctx, absent, 0, vpcport.Change{})), vpcport.Bug},
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

// A port of somebody else that cannot be read is in nobody's way.
func TestStrangersPortThatCannotBe(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	p := b.make(t)
	other := b.make(t, func(n *vpcport.NewPort) {
		n.Device, n.MAC = vpcport.Device("blue", "u-2"), vpcport.DerivedMAC("blue", "u-2", 0)
	})
	for name, lie := range map[string]func([]byte) []byte{
		"its address": swap(other.Addresses[0].IP.String(), "none"), "its MAC address": swap(other.MAC.String(), "none"),
	} {
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodGet, Times: 1, Falsify: lie})
		got, err := b.provider.Ports(t.Context(), vpcport.Filter{NetworkID: b.network.ID, MACs: []mac.Addr{p.MAC}})
		if err != nil || len(got) != 1 || got[0].ID != p.ID {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		b.cloud.HTTP.ClearFaults()
	}
}
