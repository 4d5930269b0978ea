package neutron_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
)

// client is of a server that does as told.
func client(t *testing.T, do http.HandlerFunc) *neutron.Client {
	t.Helper()
	server := httptest.NewServer(do)
	t.Cleanup(server.Close)
	c, err := neutron.New(neutron.Options{Endpoint: server.URL, Project: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// said is an error as Neutron writes it.
func said(kind, message string) string {
	return fmt.Sprintf(`{"NeutronError": {"type": %q, "message": %q, "detail": ""}}`, kind, message)
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		status int
		body   string
		want   vpcport.Class
		about  string
	}{
		{400, said("InvalidIpForSubnet", "IP address 10.9.9.9 is not a valid IP for the specified subnet."), vpcport.Invalid, "10.9.9.9"},
		{400, said("HTTPBadRequest", "Unrecognized attribute(s) 'a'"), vpcport.Invalid, ""},
		{401, `{"error": {"code": 401, "title": "Unauthorized"}}`, vpcport.Unauthorized, ""},
		{403, said("PolicyNotAuthorized", "rule:create_port:mac_address is disallowed by policy"), vpcport.Forbidden, ""},
		{404, said("NetworkNotFound", "Network "+networkID+" could not be found."), vpcport.NetworkGone, networkID},
		{404, said("SubnetNotFound", "Subnet "+webID+" could not be found."), vpcport.ReferenceGone, webID},
		{404, said("SecurityGroupNotFound", "Security group "+groupID+" does not exist"), vpcport.ReferenceGone, groupID},
		{404, said("PortNotFound", "Port "+absentID+" could not be found."), vpcport.PortGone, absentID},
		{404, "<html>no such page</html>", vpcport.Bug, ""},
		{409, said("IpAddressGenerationFailure", "No more IP addresses available on network "+networkID+"."), vpcport.SubnetFull, networkID},
		{409, said("IpAddressGenerationFailureAllSubnets", "No more IP addresses available."), vpcport.SubnetFull, ""},
		{409, said("IpAddressAlreadyAllocated", "IP address fd00::5 already allocated in subnet "+webID), vpcport.AddressTaken, "fd00::5"},
		{409, said("MacAddressInUse", "Unable to complete operation for network "+networkID+". The mac address 02:00:00:00:00:01 is in use."), vpcport.MACTaken, "02:00:00:00:00:01"},
		{409, said("OverQuota", "Quota exceeded for resources: ['port']."), vpcport.OverQuota, ""},
		{409, said("PortInUse", "Unable to complete operation on port "+absentID), vpcport.Conflict, absentID},
		{412, said("RevisionNumberConstraintFailed", "Constrained to 1, but current revision is 2"), vpcport.Stale, ""},
		{412, "Constrained to 1, but current revision is 2", vpcport.Stale, ""},
		{413, "too large", vpcport.TooLarge, ""},
		{429, "slowly", vpcport.Throttled, ""},
		{500, said("HTTPInternalServerError", "Request Failed: internal server error"), vpcport.Transient, ""},
		{502, "<html>Bad Gateway</html>", vpcport.Transient, ""},
		{503, said("OverQuota", "of a server that is beside itself"), vpcport.Transient, ""},
		{302, "", vpcport.Bug, ""},
	} {
		c := client(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(tc.status)
			_, _ = w.Write([]byte(tc.body))
		})
		_, err := c.Create(t.Context(), []vpcport.NewPort{{NetworkID: networkID}})
		var about string
		if e, ok := err.(*vpcport.Error); ok { //nolint:errorlint // what calls return is one
			about = e.About
		}
		if vpcport.ClassOf(err) != tc.want || about != tc.about {
			t.Errorf("%d %s: %v about %q; want %v about %q: %v", tc.status, tc.body, vpcport.ClassOf(err), about, tc.want, tc.about, err)
		}
	}
}

// A server that says when to come back is one that has too much to do, within bounds.
func TestRetryAfter(t *testing.T) {
	for _, tc := range []struct {
		status int
		says   string
		want   time.Duration
	}{
		{429, "7", 7 * time.Second}, {503, "7", 7 * time.Second}, {500, "7", 0}, {429, "100000000000000000000", 0}, {429, "86400", 5 * time.Minute}, {429, "-1", 0}, {429, "soon", 0},
	} {
		c := client(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", tc.says)
			w.WriteHeader(tc.status)
		})
		_, err := c.Get(t.Context(), absentID)
		e, ok := err.(*vpcport.Error) //nolint:errorlint // what calls return is one
		if !ok || e.RetryAfter != tc.want || tc.want > 0 && e.Class != vpcport.Throttled {
			t.Errorf("%d, Retry-After %s: %+v, want %v", tc.status, tc.says, err, tc.want)
		}
	}
}

// aPort is a port as Neutron writes it, with a change.
func aPort(edit func(map[string]any)) string {
	p := map[string]any{
		"id": absentID, "network_id": networkID, "device_id": "berth:blue:u", "device_owner": vpcport.Owner, "mac_address": "02:00:00:00:00:01",
		"fixed_ips": []map[string]string{{"subnet_id": webID, "ip_address": "192.168.0.5"}}, "status": "DOWN", "revision_number": 1,
	}
	edit(p)
	text, _ := json.Marshal(p)
	return string(text)
}

// What cannot be is no answer: nothing of it reaches a pod.
func TestAnswersThatCannotBe(t *testing.T) {
	set := func(key string, value any) func(map[string]any) { return func(p map[string]any) { p[key] = value } }
	for name, edit := range map[string]func(map[string]any){
		"another network":      set("network_id", webID),
		"another device":       set("device_id", "berth:blue:v"),
		"another owner":        set("device_owner", "compute:nova"),
		"another MAC address":  set("mac_address", "02:00:00:00:00:02"),
		"everybody's":          set("mac_address", "ff:ff:ff:ff:ff:ff"),
		"no MAC address":       set("mac_address", ""),
		"another address":      set("fixed_ips", []map[string]string{{"subnet_id": webID, "ip_address": "192.168.0.6"}}),
		"another subnet":       set("fixed_ips", []map[string]string{{"subnet_id": smallID, "ip_address": "192.168.0.5"}}),
		"no address":           set("fixed_ips", []string{}),
		"no IP address":        set("fixed_ips", []map[string]string{{"subnet_id": webID, "ip_address": "here"}}),
		"an ID that is a path": set("id", "../networks"),
	} {
		reply := aPort(edit)
		c := client(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"ports": [%s]}`, reply)
		})
		_, err := c.Create(t.Context(), []vpcport.NewPort{newPort()})
		if vpcport.ClassOf(err) != vpcport.Bug {
			t.Errorf("%s: %v", name, err)
		}
	}
	as := aPort(func(map[string]any) {})
	c := client(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"ports": [%s]}`, as)
	})
	if _, err := c.Create(t.Context(), []vpcport.NewPort{newPort()}); err != nil {
		t.Errorf("an answer that can be: %v", err)
	}
}

func newPort() vpcport.NewPort {
	return vpcport.NewPort{NetworkID: networkID, Device: "berth:blue:u", MAC: []byte{2, 0, 0, 0, 0, 1}, Addresses: []vpcport.NewAddress{{SubnetID: webID, IP: address}}}
}

// Listings are read to their end, page by page, and a server that turns in circles is told
// from one that has many ports.
func TestPages(t *testing.T) {
	var circles atomic.Bool
	page := func(from int) string {
		var ports []string
		for i := from; i < from+500 && i < 1203; i++ {
			ports = append(ports, aPort(func(p map[string]any) { p["id"] = fmt.Sprintf("%08x-0000-4000-8000-000000000000", i) }))
		}
		return `{"ports": [` + strings.Join(ports, ", ") + `]}`
	}
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		from := 0
		if marker := r.URL.Query().Get("marker"); marker != "" && !circles.Load() {
			_, _ = fmt.Sscanf(marker, "%x-", &from)
			from++
		}
		_, _ = w.Write([]byte(page(from)))
	})
	ports, err := c.Ports(t.Context(), vpcport.Filter{Owner: vpcport.Owner})
	if err != nil || len(ports) != 1203 {
		t.Errorf("%d ports, %v; want 1203", len(ports), err)
	}
	circles.Store(true)
	if _, err := c.Ports(t.Context(), vpcport.Filter{Owner: vpcport.Owner}); vpcport.ClassOf(err) != vpcport.Bug {
		t.Errorf("the same page again: %v", err)
	}
}

// A reply without end is not read to it.
func TestReplyWithoutEnd(t *testing.T) {
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`{"port": {"name": "`))
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(strings.Repeat("a", 1<<16))); err != nil {
				return
			}
		}
	})
	if _, err := c.Get(t.Context(), absentID); err == nil || !strings.Contains(err.Error(), "the reply is longer than 16777216 bytes") {
		t.Errorf("got %v", err)
	}
}
