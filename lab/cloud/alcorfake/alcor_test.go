package alcorfake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/clock"
)

const absent = "00000000-0000-4000-8000-000000000000"

// fixture is a cloud with one VPC.
type fixture struct {
	t       *testing.T
	cloud   *Cloud
	network Network
	subnet  Subnet
	group   string
}

func newFixture(t *testing.T, o Options) *fixture {
	t.Helper()
	b := &fixture{t: t, cloud: New(o)}
	b.network = b.cloud.AddNetwork(Network{Name: "blue"})
	b.subnet = b.cloud.AddSubnet(Subnet{Name: "web", Network: b.network.ID, CIDR: netip.MustParsePrefix("10.0.0.0/29"), Gateway: netip.MustParseAddr("10.0.0.1")})
	b.group = b.cloud.AddGroup()
	b.cloud.AddHost("node-a", Host{})
	return b
}

// call sends a request below the first project. NET, SUB and GROUP in path and body are replaced by the
// IDs of the fixture's network, subnet and group.
func (b *fixture) call(method, path, body string) (int, map[string]any) {
	b.t.Helper()
	fill := strings.NewReplacer("NET", b.network.ID, "SUB", b.subnet.ID, "GROUP", b.group)
	r := httptest.NewRequest(method, "/project/"+firstProject+fill.Replace(path), strings.NewReader(fill.Replace(body)))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	b.cloud.ServeHTTP(w, r)
	var out map[string]any
	raw, err := io.ReadAll(w.Result().Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &out); err != nil {
			b.t.Fatalf("%s %s: reply %s is not JSON: %v", method, path, raw, err)
		}
	}
	return w.Code, out
}

// Invalid requests fail with the status and the reason of Alcor's exception.
func TestRefusals(t *testing.T) {
	within := func(exception string, status int, text, message, path string) string {
		return fmt.Sprintf(`org.springframework.web.client.HttpClientErrorException$%s: %d : [{"timestamp":"2026-11-23T08:00:00.000+0000","status":%d,"error":%q,"message":%q,"path":%q}]`, exception, status, status, text, message, path)
	}
	for _, tc := range []struct {
		method, path, body string
		status             int
		message            string
	}{
		{"GET", "/ports/" + absent, "", 404, "Port not found"},
		{"PUT", "/ports/" + absent, `{"port":{"name":"x"}}`, 404, "Port not found"},
		{"DELETE", "/ports/" + absent, "", 404, "Port not found"},
		{"POST", "/ports", `{"port":{"name":"x"}}`, 412, "Network id is required"},
		{"POST", "/ports", `{"port":{"network_id":""}}`, 412, "Network id is required"},
		{"POST", "/ports/bulk", `{"ports":[{"name":"x"}]}`, 500, "No message available"},
		{"POST", "/ports", `{"ports":[]}`, 500, "No message available"},
		{"POST", "/ports", `{"port":null}`, 500, "No message available"},
		{"POST", "/ports/bulk", `{"port":{}}`, 500, "No message available"},
		{"POST", "/ports", `{"port":`, 400, "JSON parse error: unexpected end of JSON input"},
		{"POST", "/ports", `{"port":{"network_id":"NET","mac_address":"x"}}`, 412, "Mac address invalid"},
		{"POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{}]}}`, 412, "Fixed ips invalid"},
		{"POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{"subnet_id":""}]}}`, 412, "Fixed ips invalid"},
		{"POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{"ip_address":"10.0.0"}]}}`, 412, "Fixed ips invalid"},
		{"POST", "/ports", `{"port":{"network_id":"` + absent + `"}}`, 500, "Get VpcEntity exception"},
		{"POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{"subnet_id":"` + absent + `"}]}}`, 500, "Get SubnetEntity exception"},
		{"POST", "/ports", `{"port":{"network_id":"NET","security_groups":["` + absent + `"]}}`, 500, "Get SecurityGroupEntity exception"},
		{"POST", "/ports", `{"port":{"network_id":"NET","binding:host_id":"node-z"}}`, 500, "Get node information exception"},
		{"POST", "/ports", `{"port":{"network_id":"NET","binding:host_id":""}}`, 500, "Get node information exception"},
		{"POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB","ip_address":"10.0.0.1"}]}}`, 500, within("PreconditionFailed", 412, "Precondition Failed", "Ip address conflict with exist", "/ips")},
		{"POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB","ip_address":"10.0.0.7"}]}}`, 500, within("BadRequest", 400, "Bad Request", "Ip address invalid", "/ips")},
		{"PATCH", "/ports/" + absent, "", 405, "Request method 'PATCH' not supported"},
		{"GET", "/routers", "", 404, "No message available"},
	} {
		b := newFixture(t, Options{Clock: clock.NewFake(time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC))})
		status, out := b.call(tc.method, tc.path, tc.body)
		path := "/project/" + firstProject + tc.path
		want := map[string]any{"timestamp": "2026-11-23T08:00:00.000+0000", "status": float64(tc.status), "error": http.StatusText(tc.status), "message": tc.message, "path": path}
		if d := cmp.Diff(want, out); status != tc.status || d != "" {
			t.Errorf("%s %s %s: status %d, reply (-want +got):\n%s", tc.method, tc.path, tc.body, status, d)
		}
		if n := len(b.cloud.Ports()); n != 0 {
			t.Errorf("%s %s %s: %d ports exist afterwards, want 0", tc.method, tc.path, tc.body, n)
		}
	}
}

// Creation fails when the subnet is full, and when any VPC has a port with the MAC address.
func TestFullSubnetAndDuplicateMAC(t *testing.T) {
	b := newFixture(t, Options{})
	for range 5 {
		if status, out := b.call("POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB"}]}}`); status != 201 {
			t.Fatal(status, out)
		}
	}
	if _, out := b.call("POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB"}]}}`); !strings.Contains(out["message"].(string), "Ip address number not enough") {
		t.Errorf("port in full subnet: reply %v, want address shortage", out)
	}
	red := b.cloud.AddNetwork(Network{Name: "red"})
	b.cloud.AddPort(Port{Network: red.ID, MAC: "02:00:00:00:00:01"})
	b.cloud.Remove(b.cloud.Ports()[0].ID)
	if _, out := b.call("POST", "/ports", `{"port":{"network_id":"NET","mac_address":"02:00:00:00:00:01"}}`); !strings.Contains(out["message"].(string), "This mac address is not unique!!") {
		t.Errorf("port with MAC address in use: reply %v, want not unique", out)
	}
}

// Bulk creation assigns all ports the same address and MAC address, as Alcor's does, unless each port
// requests its own.
func TestBulkCreationMixesUpAddresses(t *testing.T) {
	ips := func(b *fixture) (out []string) {
		for _, p := range b.cloud.Ports() {
			out = append(out, p.FixedIPs[0].IP.String()+" "+p.MAC)
		}
		slices.Sort(out)
		return out
	}
	b := newFixture(t, Options{})
	if status, out := b.call("POST", "/ports/bulk", `{"ports":[{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB"}]},{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB"}]}]}`); status != 201 || len(out["ports"].([]any)) != 2 {
		t.Fatal(status, out)
	}
	if got := ips(b); got[0] != got[1] {
		t.Errorf("bulk ports without requests have %v, want one address and one MAC address for both", got)
	}
	b = newFixture(t, Options{})
	if status, out := b.call("POST", "/ports/bulk", `{"ports":[{"network_id":"NET","mac_address":"02:00:00:00:00:01","fixed_ips":[{"subnet_id":"SUB","ip_address":"10.0.0.4"}]},{"network_id":"NET","mac_address":"02:00:00:00:00:02","fixed_ips":[{"subnet_id":"SUB","ip_address":"10.0.0.3"}]}]}`); status != 201 {
		t.Fatal(status, out)
	}
	if d := cmp.Diff([]string{"10.0.0.3 02:00:00:00:00:02", "10.0.0.4 02:00:00:00:00:01"}, ips(b)); d != "" {
		t.Errorf("bulk ports with requested addresses (-want +got):\n%s", d)
	}
	b = newFixture(t, Options{})
	if status, _ := b.call("POST", "/ports/bulk", `{"ports":[{"network_id":"NET"},{"network_id":"`+absent+`"}]}`); status != 500 || len(b.cloud.Ports()) != 0 {
		t.Errorf("bulk creation with an unknown network: status %d, ports %v; want 500 and no ports", status, b.cloud.Ports())
	}
}

// PUT merges fields, enables port security unless the request disables it, and returns the request.
func TestPutMergesFields(t *testing.T) {
	b := newFixture(t, Options{})
	p := b.cloud.AddPort(Port{Network: b.network.ID, Name: "n", Device: "d", Host: "node-a", Unsecured: true, Tags: []string{"t"}})
	status, out := b.call("PUT", "/ports/"+p.ID, `{"port":{"device_id":"e","name":null}}`)
	if d := cmp.Diff(map[string]any{"port": map[string]any{"device_id": "e"}}, out); status != 200 || d != "" {
		t.Errorf("PUT: status %d, reply (-want +got):\n%s", status, d)
	}
	now := b.cloud.Ports()[0]
	if now.Name != "n" || now.Device != "e" || now.Host != "node-a" || now.Unsecured || !slices.Equal(now.Tags, []string{"t"}) {
		t.Errorf("port after PUT = %+v, want device e, port security enabled, and other fields unchanged", now)
	}
	if status, out := b.call("PUT", "/ports/bulk", `{"ports":[]}`); status != 200 || out != nil {
		t.Errorf("bulk PUT: status %d, reply %v; want 200 without body", status, out)
	}
	b.cloud.RemoveHost("node-a")
	if status, out := b.call("PUT", "/ports/"+p.ID, `{"port":{"name":"m"}}`); status != 500 || out["message"] != "Get node information exception" {
		t.Errorf("PUT on a port of a removed host: status %d, reply %v; want 500", status, out)
	}
	if status, out := b.call("DELETE", "/ports/"+p.ID, ""); status != 500 {
		t.Errorf("DELETE on a port of a removed host: status %d, reply %v; want 500", status, out)
	}
	b.cloud.AddHost("node-a", Host{})
	if status, out := b.call("DELETE", "/ports/"+p.ID, ""); status != 200 || out != nil {
		t.Errorf("DELETE: status %d, reply %v; want 200 without body", status, out)
	}
}

// Lists include ports of all projects. Several values of a field are alternatives, and unknown fields
// are ignored.
func TestListFilters(t *testing.T) {
	b := newFixture(t, Options{})
	for i, project := range []string{firstProject, "another", firstProject} {
		b.cloud.AddPort(Port{Network: b.network.ID, Project: project, Device: fmt.Sprint("d", i)})
	}
	for query, want := range map[string]int{
		"": 3, "?device_id=d0": 1, "?device_id=d0&device_id=d1": 2, "?device_id=d0&project_id=another": 0, "?project_id=another": 1, "?colour=blue": 3, "?id=": 0,
	} {
		if _, out := b.call("GET", "/ports"+query, ""); len(out["ports"].([]any)) != want {
			t.Errorf("list with query %q: %d ports, want %d", query, len(out["ports"].([]any)), want)
		}
	}
	for path, want := range map[string]string{
		"/vpcs/" + absent: `{"network":null}`, "/subnets/" + absent: `{"subnet":null}`, "/vpcs?name=red": `{"vpcs":[]}`, "/subnets?network_id=" + absent: `{"subnets":[]}`,
	} {
		_, out := b.call("GET", path, "")
		got, err := json.Marshal(out)
		if err != nil || string(got) != want {
			t.Errorf("GET %s = %s, %v; want %s", path, got, err, want)
		}
	}
}

// Unknown fields are ignored and recorded.
func TestUnknownFieldsAreRecorded(t *testing.T) {
	b := newFixture(t, Options{})
	if status, out := b.call("POST", "/ports", `{"port":{"network_id":"NET","subnett":"x","veth_name":"v"},"ports":[]}`); status != 201 {
		t.Errorf("POST with unknown fields: status %d, reply %v; want 201", status, out)
	}
	if d := cmp.Diff([]string{"ports", "port.subnett"}, b.cloud.Ignored()); d != "" {
		t.Errorf("Ignored() (-want +got):\n%s", d)
	}
	r := httptest.NewRequest("POST", "/project/p/ports", bytes.NewReader(nil))
	r.Header.Set("Content-Type", "text/plain")
	w := httptest.NewRecorder()
	b.cloud.ServeHTTP(w, r)
	if w.Code != 415 {
		t.Errorf("POST of plain text: status %d, want 415", w.Code)
	}
}

func TestConcurrentPortCreation(t *testing.T) {
	b := newFixture(t, Options{})
	b.subnet.CIDR = netip.MustParsePrefix("10.0.0.0/16")
	b.cloud.AddSubnet(b.subnet)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				status, out := b.call("POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB"}]}}`)
				if status != 201 {
					t.Errorf("POST: status %d, reply %v", status, out)
					return
				}
				id := out["port"].(map[string]any)["id"].(string)
				if status, out := b.call("PUT", "/ports/"+id, `{"port":{"binding:host_id":"node-a"}}`); status != 200 {
					t.Errorf("PUT: status %d, reply %v", status, out)
				}
				b.cloud.Programmed(id, "node-a", true)
			}
		})
	}
	all.Wait()
	seen := map[string]bool{}
	for _, p := range b.cloud.Ports() {
		if ip := p.FixedIPs[0].IP.String(); seen[ip] || seen[p.MAC] || p.Status != "ACTIVE" {
			t.Errorf("port %+v is not active, or shares an address or MAC address with another port", p)
		}
		seen[p.FixedIPs[0].IP.String()], seen[p.MAC] = true, true
	}
	if len(seen) != 320 {
		t.Errorf("%d distinct addresses and MAC addresses, want 320", len(seen))
	}
}
