package rest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/httpreply"
)

// After a lost, late or truncated reply the port may exist, and is found by its device.
func TestLostReplies(t *testing.T) {
	each(t, func(t *testing.T, open func() service) {
		for _, tc := range []struct {
			name  string
			fault httpreply.Fault
			there bool
		}{
			{"hung up before", httpreply.Fault{HangUp: true}, false},
			{"hung up after", httpreply.Fault{HangUp: true, After: true}, true},
			{"a proxy's time-out after", httpreply.Fault{Status: 504, After: true}, true},
			{"cut off", httpreply.Fault{After: true, Falsify: func(b []byte) []byte { return b[:len(b)/2] }}, true},
			{"empty", httpreply.Fault{After: true, Falsify: vpcporttest.Instead("")}, true},
		} {
			s := open()
			n := s.NewPort("u-1")
			tc.fault.Method, tc.fault.Times = http.MethodPost, 1
			s.fake.Inject(tc.fault)
			vpcporttest.WantError(t, tc.name, s.create(t, n), vpcport.Transient, "")
			found, err := s.Provider.Ports(t.Context(), vpcport.Filter{Devices: []string{n.Device}})
			if err != nil || len(found) == 1 != tc.there {
				t.Errorf("%s: found %v, %v; want it there: %t", tc.name, found, err, tc.there)
			}
			err = s.create(t, n)
			if tc.there {
				vpcporttest.WantError(t, tc.name+", asked for again", err, vpcport.MACTaken, n.MAC.String())
			} else if err != nil {
				t.Errorf("%s, asked for again: %v", tc.name, err)
			}
		}
	})
}

// The message of an error cannot fill logs.
func TestMessagesAreBounded(t *testing.T) {
	each(t, func(t *testing.T, open func() service) {
		s := open()
		s.fake.Inject(httpreply.Fault{Status: 400, Type: strings.Repeat("T", 1000), Message: strings.Repeat("é\n\x1b[31m", 5000)})
		_, err := s.Provider.Get(t.Context(), vpcporttest.Absent)
		e := vpcporttest.WantError(t, "Get", err, vpcport.Invalid, "")
		if n := len([]rune(e.Message)); n > 512 || strings.ContainsAny(e.Message, "\n\x1b") || len([]rune(e.Type)) > 64 {
			t.Errorf("the message has %d characters: %q", n, e.Message)
		}
	})
}

// A request without a reply ends, even if its caller would wait forever.
func TestTimeout(t *testing.T) {
	each(t, func(t *testing.T, open func() service) {
		s := open()
		s.fake.Inject(httpreply.Fault{Delay: time.Hour})
		_, err := s.impatient.Get(t.Context(), vpcporttest.Absent)
		e := vpcporttest.WantError(t, "Get", err, vpcport.Transient, "")
		if want := s.name + " GET ports: no reply in time"; e.Error() != want {
			t.Errorf("got %v, want %s", &e, want)
		}
	})
}

// The operation of an error has no IDs in it, since metrics count by it.
func TestOperations(t *testing.T) {
	each(t, func(t *testing.T, open func() service) {
		s := open()
		host, port := s.Host, s.Make(t)
		s.fake.Inject(httpreply.Fault{Method: http.MethodPut, Status: 504})
		_, get := s.Provider.Get(t.Context(), vpcporttest.Absent)
		_, put := s.Provider.Update(t.Context(), port.ID, 0, vpcport.Change{Host: &host})
		_, network := s.Provider.Network(t.Context(), vpcporttest.Absent)
		var got []string
		for _, err := range []error{get, put, network} {
			got = append(got, err.(*vpcport.Error).Op) //nolint:errorlint // a provider's errors are of this type
		}
		if want := fmt.Sprintf("[%[1]s GET ports %[1]s PUT ports %[1]s GET %[2]s]", s.name, s.networks); fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
	})
}

// Each status that a server or a proxy may send has a class, and is not repeated.
func TestStatuses(t *testing.T) {
	each(t, func(t *testing.T, open func() service) {
		for _, tc := range []struct {
			status, after int
			class         vpcport.Class
		}{
			{302, 0, vpcport.Invalid}, {401, 0, vpcport.Unauthorized}, {403, 0, vpcport.Forbidden}, {404, 0, vpcport.Transient}, {408, 0, vpcport.Transient},
			{413, 0, vpcport.TooLarge}, {414, 0, vpcport.TooLarge}, {429, 0, vpcport.Throttled}, {429, 3, vpcport.Throttled}, {500, 0, vpcport.Transient},
			{502, 0, vpcport.Transient}, {503, 0, vpcport.Transient}, {503, 30, vpcport.Throttled}, {504, 0, vpcport.Transient},
		} {
			for _, message := range []string{"", "<html>" + http.StatusText(tc.status) + "</html>"} {
				s := open()
				s.fake.Inject(httpreply.Fault{Status: tc.status, Message: message, Plain: true, RetryAfter: tc.after})
				_, err := s.Provider.Get(t.Context(), vpcporttest.Absent)
				for call, err := range map[string]error{"Create": s.create(t, s.NewPort("u-1")), "Get": err} {
					what := fmt.Sprintf("%s replies %d %q", call, tc.status, message)
					if vpcport.ClassOf(err) != tc.class {
						t.Errorf("%s: %v", what, err)
					}
					e, ok := err.(*vpcport.Error) //nolint:errorlint // a provider's errors are of this type
					if !ok || e.Status != tc.status || e.RetryAfter != time.Duration(tc.after)*time.Second || e.Message == "" || strings.Contains(e.Message, "<") {
						t.Errorf("%s: got %+v", what, e)
					}
				}
				if n := s.fake.Count(http.MethodPost, s.prefix+"ports"); n != 1 {
					t.Errorf("%d: %d requests", tc.status, n)
				}
			}
		}
	})
}

// A 404 of a proxy does not mean that the port is deleted.
func TestDeleteBelievesNoProxy(t *testing.T) {
	each(t, func(t *testing.T, open func() service) {
		s := open()
		p := s.Make(t)
		for _, body := range []string{"<html>no backend</html>", `{"status":404,"error":"Not Found","message":"No message available","path":"/"}`, ""} {
			s.fake.Inject(httpreply.Fault{Method: http.MethodDelete, Status: 404, Message: body, Plain: true, Times: 1})
			vpcporttest.WantError(t, "by a proxy", s.Provider.Delete(t.Context(), p.ID), vpcport.Transient, "")
		}
		if err := s.Provider.Delete(t.Context(), p.ID); err != nil || s.ports() != 0 {
			t.Errorf("by the service: %v, %d ports", err, s.ports())
		}
	})
}

// Redirects are errors and are not followed: they would leak the token.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var requests atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer other.Close()
	each(t, func(t *testing.T, open func() service) {
		for _, status := range []int{301, 302, 307, 308} {
			s := open()
			s.fake.Inject(httpreply.Fault{Status: status, Header: map[string]string{"Location": other.URL + "/v2.0/"}})
			_, err := s.Provider.Get(t.Context(), vpcporttest.Absent)
			if e := vpcporttest.WantError(t, fmt.Sprint(status), err, vpcport.Invalid, ""); !strings.Contains(e.Message, other.URL) {
				t.Errorf("%d: %v does not say where to", status, &e)
			}
		}
	})
	if n := requests.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// An error has the name that caused it, if the reply or the request shows which it was. A refused
// request makes no port.
func TestAbout(t *testing.T) {
	type edit func(s *service, n *vpcport.NewPort)
	taken, hw := netip.MustParseAddr("192.168.0.7"), vpcport.DerivedMAC("blue", "u-1", 0)
	address := func(ip string) edit {
		return func(_ *service, n *vpcport.NewPort) { n.Addresses[0].IP = netip.MustParseAddr(ip) }
	}
	groups := func(list ...string) edit {
		return func(s *service, n *vpcport.NewPort) { n.Groups = append(list, s.Group) }
	}
	subnet := func(id string) edit { return func(_ *service, n *vpcport.NewPort) { n.Addresses[0].SubnetID = id } }
	full := func(s *service, n *vpcport.NewPort) { n.Addresses[0].SubnetID = s.Small }
	each(t, func(t *testing.T, open func() service) {
		for _, tc := range []struct {
			name, only string // only: the service; empty: each
			edit       edit
			class      vpcport.Class
			about      string
		}{
			{"network", "", func(_ *service, n *vpcport.NewPort) { n.NetworkID = vpcporttest.Absent }, vpcport.NetworkGone, vpcporttest.Absent},
			{"subnet", "", subnet(vpcporttest.Absent), vpcport.ReferenceGone, vpcporttest.Absent},
			{"group", "Neutron", groups(vpcporttest.Absent), vpcport.ReferenceGone, vpcporttest.Absent},
			{"group, or subnet", "Alcor", groups(vpcporttest.Absent), vpcport.ReferenceGone, ""},
			{"invalid group", "Neutron", groups("web"), vpcport.Invalid, "web"},
			{"address", "", address(taken.String()), vpcport.AddressTaken, taken.String()},
			{"address outside", "Neutron", address("10.0.0.1"), vpcport.Invalid, "10.0.0.1"},
			{"broadcast address", "Neutron", address("192.168.0.255"), vpcport.Invalid, "192.168.0.255"},
			{"an address or another thing", "Alcor", address("10.0.0.1"), vpcport.Invalid, ""},
			{"MAC address", "", func(_ *service, n *vpcport.NewPort) { n.MAC = hw }, vpcport.MACTaken, hw.String()},
			{"full subnet", "", full, vpcport.SubnetFull, "small"},
			{"full subnet among others", "Neutron", full, vpcport.SubnetFull, ""},
		} {
			s := open()
			if tc.only != "" && tc.only != s.name {
				continue
			}
			s.Make(t, func(n *vpcport.NewPort) { n.Addresses[0].IP = taken })
			for i := range s.Room {
				s.Make(t, func(n *vpcport.NewPort) {
					n.Addresses[0].SubnetID, n.MAC, n.Device = s.Small, vpcport.DerivedMAC("blue", fmt.Sprint("small-", i), 0), "small"
				})
			}
			near, bad := s.NewPort("u-3"), s.NewPort("u-2")
			near.Addresses[0].IP = netip.MustParseAddr("192.168.0.77") // begins with the characters of the taken one
			tc.edit(&s, &bad)
			ports := []vpcport.NewPort{near, bad}
			if tc.about == "small" {
				ports, tc.about = ports[1:], s.Small
			} else if s.Provider.Traits().MaxBatch == 1 {
				ports = ports[1:]
			}
			before := s.ports()
			e := vpcporttest.WantError(t, tc.name, s.create(t, ports...), tc.class, tc.about)
			if s.name == "Neutron" && tc.class == vpcport.SubnetFull && e.Type != "IpAddressGenerationFailure" {
				t.Errorf("%s: got %v", tc.name, &e)
			}
			if s.ports() != before {
				t.Errorf("%s: %d ports, want %d", tc.name, s.ports(), before)
			}
		}
	})
}

// Invalid requests are not sent: servers ignore empty values, and IDs are parts of URLs.
func TestInvalidRequestsAreNotSent(t *testing.T) {
	each(t, func(t *testing.T, open func() service) {
		s, ctx := open(), t.Context()
		for _, f := range []vpcport.Filter{{}, {IDs: []string{""}}, {Devices: []string{"a", ""}}, {MACs: []mac.Addr{{1}}}, {IDs: make([]string, 101)}} {
			_, err := s.Provider.Ports(ctx, f)
			vpcporttest.WantError(t, fmt.Sprintf("%+v", f), err, vpcport.Bug, "")
		}
		host := "node-a"
		for id, want := range map[string]vpcport.Class{"": vpcport.Bug, "../networks/" + s.Network: vpcport.PortGone, "a?b": vpcport.PortGone, strings.Repeat("a", 65): vpcport.PortGone} {
			_, get := s.Provider.Get(ctx, id)
			_, update := s.Provider.Update(ctx, id, 0, vpcport.Change{Host: &host})
			if vpcport.ClassOf(get) != want || vpcport.ClassOf(update) != want {
				t.Errorf("%q: Get %v, Update %v; want %v", id, get, update, want)
			}
			if err := s.Provider.Delete(ctx, id); (err == nil) != (id != "") {
				t.Errorf("%q: Delete %v", id, err)
			}
		}
		_, update := s.Provider.Update(ctx, vpcporttest.Absent, 0, vpcport.Change{})
		_, network := s.Provider.Network(ctx, "")
		for what, err := range map[string]error{"an empty change": update, "no network": network, "a port of no network": s.create(t, vpcport.NewPort{}), "a path": s.create(t, vpcport.NewPort{NetworkID: "a/b"})} {
			vpcporttest.WantError(t, what, err, vpcport.Bug, "")
		}
		for _, n := range []int{0, s.Provider.Traits().MaxBatch + 1} {
			vpcporttest.WantError(t, fmt.Sprint(n, " ports"), s.create(t, make([]vpcport.NewPort, n)...), vpcport.TooLarge, "")
		}
		if calls := s.fake.Calls(); len(calls) != 0 {
			t.Errorf("sent %+v", calls)
		}
	})
}

// Listings are complete, by URLs that servers accept.
func TestLongListings(t *testing.T) {
	each(t, func(t *testing.T, open func() service) {
		s := open()
		var devices, ids []string
		for i := range 100 {
			ids = append(ids, s.Make(t, func(n *vpcport.NewPort) { n.Device, n.MAC = n.Device+strings.Repeat("u", 80)+fmt.Sprint("-", i), nil }).ID)
			devices = append(devices, s.NewPort("u-1").Device+strings.Repeat("u", 80)+fmt.Sprint("-", i))
		}
		s.fake.ResetCalls()
		vpcporttest.WantListings(t, s.Provider, devices, ids)
		calls := s.fake.Calls()
		for _, c := range calls {
			if n := len(c.Path) + len(c.Query); n > 8000 {
				t.Errorf("a URL of %d bytes", n)
			}
		}
		if len(calls) > 10 {
			t.Errorf("%d requests", len(calls))
		}
	})
}

// A new port that is not the requested one is refused.
func TestCreateIsChecked(t *testing.T) {
	hw := vpcport.DerivedMAC("blue", "u-1", 0).String()
	each(t, func(t *testing.T, open func() service) {
		for name, falsify := range map[string]func(s service) func([]byte) []byte{
			"another network":     func(s service) func([]byte) []byte { return vpcporttest.Swap(s.Network, vpcporttest.Absent) },
			"another device":      func(service) func([]byte) []byte { return vpcporttest.Swap("berth:blue:u-1", "berth:blue:u-9") },
			"another owner":       func(service) func([]byte) []byte { return vpcporttest.Swap("compute:berth", "compute:nova") },
			"another MAC address": func(service) func([]byte) []byte { return vpcporttest.Swap(hw, "fa:16:3e:00:00:01") },
			"no MAC address":      func(service) func([]byte) []byte { return vpcporttest.Swap(hw, "none") },
			"another subnet":      func(s service) func([]byte) []byte { return vpcporttest.Swap(s.Subnet, s.Small) },
			"no address":          func(service) func([]byte) []byte { return vpcporttest.Swap(`"fixed_ips":[{`, `"fixed_ips":[],"x":[{`) },
			"an invalid address":  func(service) func([]byte) []byte { return vpcporttest.Swap("192.168.0.", "192.168.300.") },
			"another host": func(service) func([]byte) []byte {
				return vpcporttest.Swap(`"binding:host_id":"node-a"`, `"binding:host_id":"another"`)
			},
			"other groups": func(s service) func([]byte) []byte { return vpcporttest.Swap(s.Group, vpcporttest.Absent) },
			"no reply":     func(service) func([]byte) []byte { return vpcporttest.Instead(`{}`) },
			"null":         func(service) func([]byte) []byte { return vpcporttest.Instead(`{"port":null,"ports":null}`) },
			"another type": func(service) func([]byte) []byte { return vpcporttest.Instead(`{"port":"one","ports":"one"}`) },
			"a long reply": func(service) func([]byte) []byte {
				return vpcporttest.Instead(`{"port":` + strings.Repeat(" ", 65<<20))
			},
		} {
			s := open()
			s.fake.Inject(httpreply.Fault{Method: http.MethodPost, After: true, Falsify: falsify(s)})
			n := s.NewPort("u-1")
			n.Host, n.Groups = s.Host, []string{s.Group}
			vpcporttest.WantError(t, name, s.create(t, n), vpcport.Bug, "")
		}
	})
}

// Impossible ports, listings, networks and subnets are refused.
func TestRepliesAreChecked(t *testing.T) {
	each(t, func(t *testing.T, open func() service) {
		s := open()
		p := s.Make(t)
		swap, instead := vpcporttest.Swap, vpcporttest.Instead
		port, ports, subnets := s.prefix+"ports/*", s.prefix+"ports", s.prefix+"subnets"
		one := func() error { _, err := s.Provider.Get(t.Context(), p.ID); return err }
		list := func() error {
			_, err := s.Provider.Ports(t.Context(), vpcport.Filter{IDs: []string{p.ID}})
			return err
		}
		network := func() error { _, err := s.Provider.Network(t.Context(), s.Network); return err }
		for _, tc := range []struct {
			name    string
			call    func() error
			path    string // of the falsified reply
			falsify func([]byte) []byte
		}{
			{"another port", one, port, swap(p.ID, vpcporttest.Absent)},
			{"no port", one, port, instead(`{}`)},
			{"null for a port", one, port, instead(`{"port":null}`)},
			{"a list", one, port, instead(`{"ports":[]}`)},
			{"a word", one, port, instead(`"port"`)},
			{"no MAC address", one, port, swap(p.MAC.String(), "x")},
			{"a MAC address of many", one, port, swap(p.MAC.String(), "01:00:5e:00:00:01")},
			{"a long MAC address", one, port, swap(p.MAC.String(), "02:00:00:00:00:00:00:01")},
			{"an address with a zone", one, port, swap(p.Addresses[0].IP.String(), "fe80::1%eth0")},
			{"no list", list, ports, instead(`{}`)},
			{"null for a list", list, ports, instead(`{"ports":null}`)},
			{"a bare list", list, ports, instead(`[]`)},
			{"a list of another type", list, ports, instead(`{"ports":[1]}`)},
			{"a list with an invalid address", list, ports, swap("192.168.0.", "192.168.999.")},
			{"another network", network, s.network, swap(s.Network, vpcporttest.Absent)},
			{"a negative MTU", network, s.network, swap(`"mtu":`, `"mtu":-`)},
			{"an MTU of another type", network, s.network, swap(`"mtu":`, `"mtu":"large","x":`)},
			{"no subnets", network, subnets, instead(`{}`)},
			{"an invalid subnet ID", network, subnets, swap(s.Subnet, "../x")},
			{"a subnet without addresses", network, subnets, swap("192.168.0.0/24", "192.168.0.0")},
			{"a gateway of another family", network, subnets, swap(`"gateway_ip":"192.168.0.1"`, `"gateway_ip":"fd00::1"`)},
			{"a route to nowhere", network, subnets, swap(`"host_routes":[]`, `"host_routes":[{"destination":"10.0.0.0/8","nexthop":"nobody"}]`)},
		} {
			s.fake.ClearFaults()
			s.fake.Inject(httpreply.Fault{Path: tc.path, After: true, Falsify: tc.falsify})
			vpcporttest.WantError(t, tc.name, tc.call(), vpcport.Bug, "")
		}
	})
}
