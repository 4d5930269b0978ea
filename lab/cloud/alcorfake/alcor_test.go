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

// bed is a cloud with a VPC.
type bed struct {
	t       *testing.T
	cloud   *Cloud
	network Network
	subnet  Subnet
	group   string
}

func newBed(t *testing.T, o Options) *bed {
	t.Helper()
	b := &bed{t: t, cloud: New(o)}
	b.network = b.cloud.AddNetwork(Network{Name: "blue"})
	b.subnet = b.cloud.AddSubnet(Subnet{Name: "web", Network: b.network.ID, CIDR: netip.MustParsePrefix("10.0.0.0/29"), Gateway: netip.MustParseAddr("10.0.0.1")})
	b.group = b.cloud.AddGroup()
	b.cloud.AddHost("node-a", Host{})
	return b
}

// call makes a call below the first project. NET, SUB and GROUP in path and body stand for
// the bed's.
func (b *bed) call(method, path, body string) (int, map[string]any) {
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
			b.t.Fatalf("%s %s: %s: %v", method, path, raw, err)
		}
	}
	return w.Code, out
}

// Invalid requests are refused as by Alcor: with the status and the reason of the exception.
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
		b := newBed(t, Options{Clock: clock.NewFake(time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC))})
		status, out := b.call(tc.method, tc.path, tc.body)
		path := "/project/" + firstProject + tc.path
		want := map[string]any{"timestamp": "2026-11-23T08:00:00.000+0000", "status": float64(tc.status), "error": http.StatusText(tc.status), "message": tc.message, "path": path}
		if d := cmp.Diff(want, out); status != tc.status || d != "" {
			t.Errorf("%s %s %s: %d (-want +got):\n%s", tc.method, tc.path, tc.body, status, d)
		}
		if n := len(b.cloud.Ports()); n != 0 {
			t.Errorf("%s %s %s: left are %d ports", tc.method, tc.path, tc.body, n)
		}
	}
}

// A full subnet refuses one more port, and a MAC address is one port's in all VPCs.
func TestNoRoom(t *testing.T) {
	b := newBed(t, Options{})
	for range 5 {
		if status, out := b.call("POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB"}]}}`); status != 201 {
			t.Fatal(status, out)
		}
	}
	if _, out := b.call("POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB"}]}}`); !strings.Contains(out["message"].(string), "Ip address number not enough") {
		t.Errorf("got %v", out)
	}
	red := b.cloud.AddNetwork(Network{Name: "red"})
	b.cloud.AddPort(Port{Network: red.ID, MAC: "02:00:00:00:00:01"})
	b.cloud.Remove(b.cloud.Ports()[0].ID)
	if _, out := b.call("POST", "/ports", `{"port":{"network_id":"NET","mac_address":"02:00:00:00:00:01"}}`); !strings.Contains(out["message"].(string), "This mac address is not unique!!") {
		t.Errorf("got %v", out)
	}
}

// Bulk creation mixes addresses up, as Alcor's does. It does not where each is certain.
func TestBulkMixesUp(t *testing.T) {
	ips := func(b *bed) (out []string) {
		for _, p := range b.cloud.Ports() {
			out = append(out, p.FixedIPs[0].IP.String()+" "+p.MAC)
		}
		slices.Sort(out)
		return out
	}
	b := newBed(t, Options{})
	if status, out := b.call("POST", "/ports/bulk", `{"ports":[{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB"}]},{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB"}]}]}`); status != 201 || len(out["ports"].([]any)) != 2 {
		t.Fatal(status, out)
	}
	if got := ips(b); got[0] != got[1] {
		t.Errorf("got %v, want one address and one MAC address for both", got)
	}
	b = newBed(t, Options{})
	if status, out := b.call("POST", "/ports/bulk", `{"ports":[{"network_id":"NET","mac_address":"02:00:00:00:00:01","fixed_ips":[{"subnet_id":"SUB","ip_address":"10.0.0.4"}]},{"network_id":"NET","mac_address":"02:00:00:00:00:02","fixed_ips":[{"subnet_id":"SUB","ip_address":"10.0.0.3"}]}]}`); status != 201 {
		t.Fatal(status, out)
	}
	if d := cmp.Diff([]string{"10.0.0.3 02:00:00:00:00:02", "10.0.0.4 02:00:00:00:00:01"}, ips(b)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	b = newBed(t, Options{})
	if status, _ := b.call("POST", "/ports/bulk", `{"ports":[{"network_id":"NET"},{"network_id":"`+absent+`"}]}`); status != 500 || len(b.cloud.Ports()) != 0 {
		t.Errorf("with one that cannot be: %d, left are %v", status, b.cloud.Ports())
	}
}

// A change merges, turns port security on unless told otherwise, and answers with the
// request.
func TestPut(t *testing.T) {
	b := newBed(t, Options{})
	p := b.cloud.AddPort(Port{Network: b.network.ID, Name: "n", Device: "d", Host: "node-a", Unsecured: true, Tags: []string{"t"}})
	status, out := b.call("PUT", "/ports/"+p.ID, `{"port":{"device_id":"e","name":null}}`)
	if d := cmp.Diff(map[string]any{"port": map[string]any{"device_id": "e"}}, out); status != 200 || d != "" {
		t.Errorf("%d (-want +got):\n%s", status, d)
	}
	now := b.cloud.Ports()[0]
	if now.Name != "n" || now.Device != "e" || now.Host != "node-a" || now.Unsecured || !slices.Equal(now.Tags, []string{"t"}) {
		t.Errorf("it is %+v", now)
	}
	if status, out := b.call("PUT", "/ports/bulk", `{"ports":[]}`); status != 200 || out != nil {
		t.Errorf("in bulk: %d, %v", status, out)
	}
	b.cloud.RemoveHost("node-a")
	if status, out := b.call("PUT", "/ports/"+p.ID, `{"port":{"name":"m"}}`); status != 500 || out["message"] != "Get node information exception" {
		t.Errorf("of a host that went: %d, %v", status, out)
	}
	if status, out := b.call("DELETE", "/ports/"+p.ID, ""); status != 500 {
		t.Errorf("deleted though its host went: %d, %v", status, out)
	}
	b.cloud.AddHost("node-a", Host{})
	if status, out := b.call("DELETE", "/ports/"+p.ID, ""); status != 200 || out != nil {
		t.Errorf("deleted: %d, %v", status, out)
	}
}

// Listings have ports of all projects, by any of several values of a field; what is no
// field is passed over.
func TestListings(t *testing.T) {
	b := newBed(t, Options{})
	for i, project := range []string{firstProject, "another", firstProject} {
		b.cloud.AddPort(Port{Network: b.network.ID, Project: project, Device: fmt.Sprint("d", i)})
	}
	for query, want := range map[string]int{
		"": 3, "?device_id=d0": 1, "?device_id=d0&device_id=d1": 2, "?device_id=d0&project_id=another": 0, "?project_id=another": 1, "?colour=blue": 3, "?id=": 0,
	} {
		if _, out := b.call("GET", "/ports"+query, ""); len(out["ports"].([]any)) != want {
			t.Errorf("%q: %d ports, want %d", query, len(out["ports"].([]any)), want)
		}
	}
	for path, want := range map[string]string{
		"/vpcs/" + absent: `{"network":null}`, "/subnets/" + absent: `{"subnet":null}`, "/vpcs?name=red": `{"vpcs":[]}`, "/subnets?network_id=" + absent: `{"subnets":[]}`,
	} {
		_, out := b.call("GET", path, "")
		got, err := json.Marshal(out)
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", path, got, err, want)
		}
	}
}

// Unknown fields are ignored, and reported to the test.
func TestIgnored(t *testing.T) {
	b := newBed(t, Options{})
	if status, out := b.call("POST", "/ports", `{"port":{"network_id":"NET","subnett":"x","veth_name":"v"},"ports":[]}`); status != 201 {
		t.Errorf("%d, %v", status, out)
	}
	if d := cmp.Diff([]string{"ports", "port.subnett"}, b.cloud.Ignored()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	r := httptest.NewRequest("POST", "/project/p/ports", bytes.NewReader(nil))
	r.Header.Set("Content-Type", "text/plain")
	w := httptest.NewRecorder()
	b.cloud.ServeHTTP(w, r)
	if w.Code != 415 {
		t.Errorf("text: %d", w.Code)
	}
}

// Many at once.
func TestConcurrency(t *testing.T) {
	b := newBed(t, Options{})
	b.subnet.CIDR = netip.MustParsePrefix("10.0.0.0/16")
	b.cloud.AddSubnet(b.subnet)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				status, out := b.call("POST", "/ports", `{"port":{"network_id":"NET","fixed_ips":[{"subnet_id":"SUB"}]}}`)
				if status != 201 {
					t.Errorf("%d %v", status, out)
					return
				}
				id := out["port"].(map[string]any)["id"].(string)
				if status, out := b.call("PUT", "/ports/"+id, `{"port":{"binding:host_id":"node-a"}}`); status != 200 {
					t.Errorf("%d %v", status, out)
				}
				b.cloud.Programmed(id, "node-a", true)
			}
		})
	}
	all.Wait()
	seen := map[string]bool{}
	for _, p := range b.cloud.Ports() {
		if ip := p.FixedIPs[0].IP.String(); seen[ip] || seen[p.MAC] || p.Status != "ACTIVE" {
			t.Errorf("%+v has what another has, or is not active", p)
		}
		seen[p.FixedIPs[0].IP.String()], seen[p.MAC] = true, true
	}
	if len(seen) != 320 {
		t.Errorf("%d addresses", len(seen))
	}
}
