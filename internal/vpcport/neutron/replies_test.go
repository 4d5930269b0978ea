package neutron_test

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
)

// New ports that are not the requested ones are refused.
func TestCreateIsChecked(t *testing.T) {
	for _, tc := range []struct {
		name string
		lie  func(b *bed) func([]byte) []byte
	}{
		{"one port twice", func(*bed) func([]byte) []byte {
			return func(b []byte) []byte { return bytes.ReplaceAll(b, ids(b)[1], ids(b)[0]) }
		}},
		{"a path for an ID", func(*bed) func([]byte) []byte {
			return func(b []byte) []byte { return bytes.ReplaceAll(b, ids(b)[0], []byte("../networks/x")) }
		}},
		{"too few", func(*bed) func([]byte) []byte { return func([]byte) []byte { return []byte(`{"ports": []}`) } }},
	} {
		b := newBed(t, neutronfake.Options{})
		b.cloud.HTTP.Inject(neutronfake.Fault{Method: http.MethodPost, After: true, Falsify: tc.lie(b)})
		first, second := b.newPort("u-1"), b.newPort("u-2")
		first.Host, first.Groups = "node-a", []string{b.group.ID}
		if _, err := b.provider.Create(t.Context(), []vpcport.NewPort{first, second}); vpcport.ClassOf(err) != vpcport.Bug {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// ids are those of the ports in a reply.
func ids(body []byte) (out [][]byte) {
	for _, part := range bytes.Split(body, []byte(`"id":"`))[1:] {
		id, _, _ := bytes.Cut(part, []byte(`"`))
		out = append(out, bytes.Clone(id))
	}
	return out
}

// Replies in another order than the requests are accepted.
func TestCreateIsSorted(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	b.cloud.HTTP.Inject(neutronfake.Fault{Method: http.MethodPost, After: true, Falsify: func(body []byte) []byte {
		first, second, _ := bytes.Cut(bytes.TrimSuffix(bytes.TrimPrefix(body, []byte(`{"ports":[`)), []byte(`]}`)), []byte(`},{"admin_state_up"`))
		return []byte(`{"ports":[{"admin_state_up"` + string(second) + "," + string(first) + `}]}`)
	}})
	want := []vpcport.NewPort{b.newPort("u-1"), b.newPort("u-2")}
	got, err := b.provider.Create(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range got {
		if p.Device != want[i].Device || p.MAC.String() != want[i].MAC.String() {
			t.Errorf("%d: asked for %s, got %s", i, want[i].Device, p.Device)
		}
	}
}

// Impossible replies to Get and Update are refused.
func TestOnePortIsChecked(t *testing.T) {
	host := "node-a"
	for _, tc := range []struct {
		name        string
		lie         func(p vpcport.Port) func([]byte) []byte
		get, update vpcport.Class
	}{
		{"another port", func(p vpcport.Port) func([]byte) []byte { return vpcporttest.Swap(p.ID, vpcporttest.Absent) }, vpcport.Bug, vpcport.Bug},
		{"another host", func(vpcport.Port) func([]byte) []byte { return vpcporttest.Swap(`"node-a"`, `"node-b"`) }, vpcport.Unknown, vpcport.Bug},
		{"an old revision", func(vpcport.Port) func([]byte) []byte {
			return vpcporttest.Swap(`"revision_number":`, `"revision_number":-`)
		}, vpcport.Unknown, vpcport.Bug},
		{"a time that is none", func(vpcport.Port) func([]byte) []byte { return vpcporttest.Swap(`"created_at":"`, `"created_at":"x`) }, vpcport.Unknown, vpcport.Unknown},
	} {
		b := newBed(t, neutronfake.Options{})
		p := b.make(t)
		b.cloud.HTTP.Inject(neutronfake.Fault{Path: "/v2.0/ports/*", After: true, Falsify: tc.lie(p)})
		_, gerr := b.provider.Get(t.Context(), p.ID)
		_, uerr := b.provider.Update(t.Context(), p.ID, p.Revision, vpcport.Change{Host: &host})
		if vpcport.ClassOf(gerr) != tc.get || vpcport.ClassOf(uerr) != tc.update {
			t.Errorf("%s: Get %v, Update %v", tc.name, gerr, uerr)
		}
	}
}

// Impossible listings are refused.
func TestListingsAreChecked(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	mine := b.make(t)
	theirs := b.cloud.AddPort(neutronfake.Port{Network: b.network.ID, Device: "vm", Owner: "compute:nova"})
	hw := mine.MAC
	for _, tc := range []struct {
		name string
		f    vpcport.Filter
		lie  func([]byte) []byte
	}{
		{"an ID that was not asked for", vpcport.Filter{IDs: []string{mine.ID}}, vpcporttest.Swap(mine.ID, theirs.ID)},
		{"a device that was not asked for", vpcport.Filter{Devices: []string{mine.Device}}, vpcporttest.Swap(mine.Device, "vm")},
		{"a MAC address that was not asked for", vpcport.Filter{MACs: []mac.Addr{hw}}, vpcporttest.Swap(hw.String(), "fa:16:3e:00:00:01")},
		{"an owner that was not asked for", vpcport.Filter{Owner: vpcport.Owner}, vpcporttest.Swap(vpcport.Owner, "compute:nova")},
		{"a network that was not asked for", vpcport.Filter{NetworkID: b.network.ID}, vpcporttest.Swap(b.network.ID, vpcporttest.Absent)},
		{"links that are none", vpcport.Filter{NetworkID: b.network.ID}, func([]byte) []byte { return []byte(`{"ports": [], "ports_links": 7}`) }},
		{"more, without end", vpcport.Filter{NetworkID: b.network.ID}, vpcporttest.Swap(`{"ports":`, `{"ports_links":[{"rel":"next"}],"ports":`)},
	} {
		b.cloud.HTTP.ClearFaults()
		b.cloud.HTTP.Inject(neutronfake.Fault{Method: http.MethodGet, After: true, Falsify: tc.lie})
		if tc.name == "more, without end" {
			b.cloud.HTTP.ClearFaults()
			b.cloud.HTTP.Inject(neutronfake.Fault{Method: http.MethodGet, After: true, Falsify: func([]byte) []byte {
				return []byte(`{"ports_links":[{"rel":"next"}],"ports":[{"id":"` + mine.ID + `"}]}`)
			}})
		}
		if ports, err := b.provider.Ports(t.Context(), tc.f); vpcport.ClassOf(err) != vpcport.Bug {
			t.Errorf("%s: %v, %v", tc.name, ports, err)
		}
	}
}

// Impossible networks and subnets are refused.
func TestNetworksAreChecked(t *testing.T) {
	b := newBed(t, neutronfake.Options{})
	for _, tc := range []struct {
		name, path string
		lie        func([]byte) []byte
	}{
		{"a subnet of another network", "/v2.0/subnets", vpcporttest.Swap(b.network.ID, vpcporttest.Absent)},
		{"a subnet that begins in its middle", "/v2.0/subnets", vpcporttest.Swap("192.168.0.0/24", "192.168.0.9/24")},
	} {
		b.cloud.HTTP.ClearFaults()
		b.cloud.HTTP.Inject(neutronfake.Fault{Path: tc.path, After: true, Falsify: tc.lie})
		by := b.network.ID
		if n, err := b.provider.Network(t.Context(), by); vpcport.ClassOf(err) != vpcport.Bug {
			t.Errorf("%s: %+v, %v", tc.name, n, err)
		}
	}
}
