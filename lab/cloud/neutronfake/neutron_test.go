package neutronfake_test

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

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
)

const (
	absent  = "00000000-0000-4000-8000-000000000000"
	project = "5f1c0a0e9d0b4e0f8d8f2c7d6b5a4930"
)

// client is a client of a cloud's services.
type client struct {
	t     *testing.T
	cloud *neutronfake.Cloud
	url   string
	token string
	net   neutronfake.Network
	sub   neutronfake.Subnet
}

// served serves a cloud with one network and one subnet.
func served(t *testing.T, o neutronfake.Options) *client {
	t.Helper()
	c := neutronfake.New(o)
	n := c.AddNetwork(neutronfake.Network{Name: "blue"})
	s := c.AddSubnet(neutronfake.Subnet{Network: n.ID, CIDR: netip.MustParsePrefix("10.0.0.0/29"), Gateway: netip.MustParseAddr("10.0.0.1")})
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	return &client{t: t, cloud: c, url: server.URL, net: n, sub: s}
}

// do makes a request and returns status and body.
func (c *client) do(method, path, body string, header ...string) (int, map[string]any, http.Header) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if c.token != "" {
		r.Header.Set("X-Auth-Token", c.token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	var out map[string]any
	if json.Unmarshal(b, &out) != nil {
		out = map[string]any{"text": string(b)}
	}
	return resp.StatusCode, out, resp.Header
}

// fill replaces placeholders in test tables: $NET, $SUB, $PROJECT, $PORT.
func (c *client) fill(s, port string) string {
	return strings.NewReplacer("$NET", c.net.ID, "$SUB", c.sub.ID, "$PROJECT", project, "$PORT", port, "$ABSENT", absent).Replace(s)
}

// post creates a port, which must succeed, and returns its ID.
func (c *client) post(attributes string) string {
	c.t.Helper()
	status, body, _ := c.do("POST", "/v2.0/ports", c.fill(`{"port": {"network_id": "$NET", "project_id": "$PROJECT"`+attributes+`}}`, ""))
	if status != 201 {
		c.t.Fatalf("create port: HTTP %d: %v", status, body)
	}
	return body["port"].(map[string]any)["id"].(string)
}

// Errors have Neutron's status, type and message.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		request, body string
		status        int
		kind, message string
	}{
		{"POST /v2.0/ports", `{`, 400, "HTTPBadRequest", "Body contains invalid data"},
		{"POST /v2.0/ports", `{}`, 400, "HTTPBadRequest", "Unable to find 'port' in request body"},
		{"POST /v2.0/ports", `{"ports": []}`, 400, "HTTPBadRequest", "Resources required"},
		{"POST /v2.0/ports", `{"port": {}}`, 400, "HTTPBadRequest", "Failed to parse request. Required attribute 'network_id' not specified"},
		{"POST /v2.0/ports", `{"port": {"network_id": "$NET"}}`, 400, "HTTPBadRequest", "Running without keystone AuthN requires that tenant_id is specified"},
		{"POST /v2.0/ports", `{"port": {"network_id": "$NET", "subnet": 1}}`, 400, "HTTPBadRequest", "Unrecognized attribute(s) 'subnet'"},
		{"POST /v2.0/ports", `{"port": {"network_id": "$NET", "status": "ACTIVE"}}`, 400, "HTTPBadRequest", "Attribute 'status' not allowed in POST"},
		{"POST /v2.0/ports", `{"port": {"network_id": "blue", "project_id": "$PROJECT"}}`, 400, "HTTPBadRequest", "Invalid input for network_id. Reason: 'blue' is not a valid UUID."},
		{"POST /v2.0/ports", `{"port": {"network_id": "$NET", "mac_address": "x"}}`, 400, "HTTPBadRequest", "Invalid input for mac_address. Reason: 'x' is not a valid MAC address."},
		{"POST /v2.0/ports", `{"port": {"network_id": "$ABSENT", "project_id": "$PROJECT"}}`, 404, "NetworkNotFound", "Network $ABSENT could not be found."},
		{"POST /v2.0/ports", `{"port": {"network_id": "$ABSENT", "project_id": "$PROJECT", "fixed_ips": [{"subnet_id": "$SUB"}]}}`, 400, "InvalidInput", "Invalid input for operation: IP allocation requires subnets for network."},
		{"POST /v2.0/ports", `{"port": {"network_id": "$NET", "project_id": "$PROJECT", "fixed_ips": [{"subnet_id": "$ABSENT"}]}}`, 404, "SubnetNotFound", "Subnet $ABSENT could not be found."},
		{"POST /v2.0/ports", `{"port": {"network_id": "$NET", "project_id": "$PROJECT", "security_groups": ["$ABSENT"]}}`, 404, "SecurityGroupNotFound", "Security group $ABSENT does not exist"},
		{"POST /v2.0/ports", `{"port": {"network_id": "$NET", "project_id": "$PROJECT", "fixed_ips": [{"ip_address": "10.0.0.2"}]}}`, 409, "IpAddressAlreadyAllocated", "IP address 10.0.0.2 already allocated in subnet $SUB"},
		{"POST /v2.0/ports", `{"port": {"network_id": "$NET", "project_id": "$PROJECT", "fixed_ips": [{"subnet_id": "$SUB", "ip_address": "10.0.0.9"}]}}`, 400, "InvalidIpForSubnet", "IP address 10.0.0.9 is not a valid IP for the specified subnet."},
		{"POST /v2.0/ports", `{"port": {"network_id": "$NET", "project_id": "$PROJECT", "fixed_ips": [{"ip_address": "10.0.0.9"}]}}`, 400, "InvalidIpForNetwork", "IP address 10.0.0.9 is not a valid IP for any of the subnets on the specified network."},
		{"POST /v2.0/ports", `{"port": {"network_id": "$NET", "project_id": "$PROJECT", "mac_address": "02:00:00:00:00:0A"}}`, 409, "MacAddressInUse", "Unable to complete operation for network $NET. The mac address 02:00:00:00:00:0a is in use."},
		{"PUT /v2.0/ports/$ABSENT", `{"port": {"name": "x"}}`, 404, "PortNotFound", "Port $ABSENT could not be found."},
		{"PUT /v2.0/ports/$PORT", `{"port": {"network_id": "$NET"}}`, 400, "HTTPBadRequest", "Cannot update read-only attribute network_id"},
		{"PUT /v2.0/ports/$PORT", `{"port": {"subnet": "x"}}`, 400, "HTTPBadRequest", "Unrecognized attribute(s) 'subnet'"},
		{"PUT /v2.0/ports/$PORT", `{"name": "x"}`, 400, "HTTPBadRequest", "Unable to find 'port' in request body"},
		{"DELETE /v2.0/ports/$ABSENT", "", 404, "PortNotFound", "Port $ABSENT could not be found."},
		{"GET /v2.0/ports/$ABSENT", "", 404, "PortNotFound", "Port $ABSENT could not be found."},
		{"GET /v2.0/networks/$ABSENT", "", 404, "NetworkNotFound", "Network $ABSENT could not be found."},
		{"GET /v2.0/subnets/$ABSENT", "", 404, "SubnetNotFound", "Subnet $ABSENT could not be found."},
		{"GET /v2.0/ports?device=x", "", 400, "HTTPBadRequest", "['device'] is invalid attribute for filtering"},
		{"GET /v2.0/ports?limit=x", "", 400, "BadRequest", "Bad limit request: Limit must be an integer 0 or greater and not 'x'."},
		{"GET /v2.0/ports?limit=1&marker=$ABSENT", "", 404, "PortNotFound", "Port $ABSENT could not be found."},
		{"GET /v2.0/routers", "", 404, "HTTPNotFound", "The resource could not be found."},
		{"GET /v2.0/ports/", "", 404, "HTTPNotFound", "The resource could not be found."},
		{"GET /", "", 404, "HTTPNotFound", "The resource could not be found."},
	} {
		c := served(t, neutronfake.Options{})
		port := c.post(`, "mac_address": "02:00:00:00:00:0a"`)
		method, path, _ := strings.Cut(tc.request, " ")
		status, body, _ := c.do(method, c.fill(path, port), c.fill(tc.body, port))
		want := map[string]any{"type": tc.kind, "message": c.fill(tc.message, port), "detail": ""}
		if got := body["NeutronError"]; status != tc.status || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s %s:\ngot  %d %v\nwant %d %v", tc.request, tc.body, status, got, tc.status, want)
		}
		if n := len(c.cloud.Ports()); n != 1 {
			t.Errorf("%s %s: %d ports exist afterwards, want 1", tc.request, tc.body, n)
		}
	}
}

// The server rejects requests that are too large before Neutron sees them.
func TestOversizedRequests(t *testing.T) {
	c := served(t, neutronfake.Options{})
	if status, body, _ := c.do("POST", "/v2.0/ports", strings.Repeat(" ", 114689)); status != 413 || body["text"] != "Request is too large." {
		t.Errorf("large body: status %d, reply %v; want 413", status, body)
	}
	if status, _, _ := c.do("GET", "/v2.0/ports?name="+strings.Repeat("a", 8190), ""); status != 414 {
		t.Errorf("long URL: status %d, want 414", status)
	}
}

// Bulk creation creates all ports or none.
func TestBulkCreationIsAtomic(t *testing.T) {
	c := served(t, neutronfake.Options{})
	one := `{"network_id": "$NET", "project_id": "$PROJECT"}`
	many := func(n int) string {
		return c.fill(`{"ports": [`+strings.TrimSuffix(strings.Repeat(one+",", n), ",")+`]}`, "")
	}
	if status, body, _ := c.do("POST", "/v2.0/ports", many(6)); status != 409 || len(c.cloud.Ports()) != 0 {
		t.Errorf("six ports in a subnet for five: status %d, reply %v, %d ports; want 409 and none", status, body, len(c.cloud.Ports()))
	}
	c.cloud.SetQuota(4)
	if status, body, _ := c.do("POST", "/v2.0/ports", many(5)); status != 409 || len(c.cloud.Ports()) != 0 {
		t.Errorf("five ports with a quota of four: status %d, reply %v, %d ports; want 409 and none", status, body, len(c.cloud.Ports()))
	}
	c.cloud.SetQuota(-1)
	if status, body, _ := c.do("POST", "/v2.0/ports", many(5)); status != 201 || len(body["ports"].([]any)) != 5 {
		t.Errorf("five ports in a subnet for five: status %d, reply %v; want 201", status, body)
	}
	ips := map[netip.Addr]bool{}
	for _, p := range c.cloud.Ports() {
		ips[p.FixedIPs[0].IP] = true
	}
	if len(ips) != 5 || ips[c.sub.Gateway] {
		t.Errorf("addresses of the ports = %v, want five without the gateway", ips)
	}
}

// Every request increments the revision, even one without changes; some replies show the previous
// revision. If-Match is enforced.
func TestRevisions(t *testing.T) {
	c := served(t, neutronfake.Options{})
	c.cloud.AddHost("node-a", neutronfake.Host{})
	port := c.post(`, "name": "a"`)
	put := func(body, match string) (int, any) {
		status, out, _ := c.do("PUT", "/v2.0/ports/"+port, body, "If-Match", match)
		if status == 200 {
			return status, out["port"].(map[string]any)["revision_number"]
		}
		return status, out["NeutronError"].(map[string]any)["message"]
	}
	for _, tc := range []struct {
		body, match string
		status      int
		want        any
	}{
		{`{"port": {"name": "a"}}`, "revision_number=1", 200, 2.0},
		{`{"port": {"name": "a"}}`, "revision_number=2", 200, 3.0},
		{`{"port": {"name": "c"}}`, "revision_number=1", 412, "Constrained to 1, but current revision is 3"},
		{`{"port": {"name": "c"}}`, "revision_number=x", 400, "Bad if-match request: Revision number etag must be in the format of revision_number=<int>."},
		{`{"port": {"name": "c"}}`, `"etag"`, 200, 4.0},
		{`{"port": {"name": "d"}}`, "", 200, 5.0},
		// The reply shows the state before the latest revision.
		{`{"port": {}}`, "", 200, 5.0},
		{`{"port": {"binding:host_id": ""}}`, "revision_number=6", 200, 6.0},
		{`{"port": {"binding:host_id": "node-a"}}`, "revision_number=7", 200, 8.0},
		{`{"port": {"binding:host_id": "node-a"}}`, "revision_number=9", 200, 9.0},
		{`{"port": {"binding:host_id": "node-a", "name": "e"}}`, "revision_number=10", 200, 11.0},
		{`{"port": {"binding:host_id": ""}}`, "revision_number=11", 200, 11.0},
		{`{"port": {"binding:host_id": "nowhere"}}`, "revision_number=12", 200, 13.0},
		{`{"port": {"name": "f"}}`, "revision_number=14", 200, 15.0},
		{`{"port": {"name": "g"}}`, "revision_number=16", 200, 17.0},
	} {
		if status, got := put(tc.body, tc.match); status != tc.status || got != tc.want {
			t.Errorf("PUT %s with If-Match %s: status %d, revision or error %v; want %d %v", tc.body, tc.match, status, got, tc.status, tc.want)
		}
	}
}

// With OVN, a port that is plugged before it is bound does not become active.
func TestBindAndPlug(t *testing.T) {
	for _, tc := range []struct {
		name        string
		host        neutronfake.Host
		plugFirst   bool
		at          string
		status, vif string
	}{
		{"OVN", neutronfake.Host{}, false, "node-a", "ACTIVE", "ovs"},
		{"OVN, plugged first", neutronfake.Host{}, true, "node-a", "DOWN", "ovs"},
		{"Open vSwitch agent, plugged first", neutronfake.Host{Agent: true}, true, "node-a", "ACTIVE", "ovs"},
		{"plugged on another host", neutronfake.Host{}, false, "node-b", "DOWN", "ovs"},
		{"no agent", neutronfake.Host{VIF: neutronfake.VIF{Type: "binding_failed"}}, false, "node-a", "DOWN", "binding_failed"},
	} {
		c := served(t, neutronfake.Options{})
		c.cloud.AddHost("node-a", tc.host)
		port := c.post("")
		if tc.plugFirst {
			c.cloud.Plug(port, tc.at)
		}
		c.do("PUT", "/v2.0/ports/"+port, `{"port": {"binding:host_id": "node-a"}}`)
		if !tc.plugFirst {
			c.cloud.Plug(port, tc.at)
		}
		p := c.cloud.Ports()[0]
		if p.Status != tc.status || p.VIF.Type != tc.vif {
			t.Errorf("%s: status %s, VIF type %s; want %s, %s", tc.name, p.Status, p.VIF.Type, tc.status, tc.vif)
		}
		c.do("PUT", "/v2.0/ports/"+port, `{"port": {"binding:host_id": ""}}`)
		if p := c.cloud.Ports()[0]; p.Status != "DOWN" || p.VIF.Type != "unbound" {
			t.Errorf("%s: after unbinding status %s, VIF type %s; want DOWN, unbound", tc.name, p.Status, p.VIF.Type)
		}
	}
}

// Consecutive pages cover all ports, with the requested fields only.
func TestPages(t *testing.T) {
	c := served(t, neutronfake.Options{})
	var all []string
	for range 5 {
		all = append(all, c.post(`, "device_id": "d"`))
	}
	slices.Sort(all)
	var got []string
	next := "/v2.0/ports?limit=2&fields=id&device_id=d&device_id=e&name="
	for requests := 0; next != "" && requests < 5; requests++ {
		_, body, _ := c.do("GET", next, "")
		for _, o := range body["ports"].([]any) {
			if len(o.(map[string]any)) != 1 {
				t.Errorf("port %v has more than the requested field", o)
			}
			got = append(got, o.(map[string]any)["id"].(string))
		}
		next = ""
		if links, ok := body["ports_links"].([]any); ok {
			next = strings.TrimPrefix(links[0].(map[string]any)["href"].(string), c.url)
		}
	}
	if !slices.Equal(got, all) {
		t.Errorf("ports of all pages = %v, want %v", got, all)
	}
}

// Keystone issues a token for valid credentials, and Neutron accepts it until it expires.
func TestTokens(t *testing.T) {
	now := clock.NewFake(time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC))
	c := served(t, neutronfake.Options{Clock: now, TokenLife: time.Minute})
	c.cloud.Keystone.AddUser(neutronfake.User{Name: "u", Password: "p", Credential: "ac", Secret: "s"})
	scope := `, "scope": {"project": {"name": "berth", "domain": {"name": "Default"}}}`
	password := func(name, word, scope string) string {
		return `{"auth": {"identity": {"methods": ["password"], "password": {"user": {"name": "` + name + `", "password": "` + word + `", "domain": {"name": "Default"}}}}` + scope + `}}`
	}
	for _, tc := range []struct {
		name, body string
		status     int
	}{
		{"password", password("u", "p", scope), 201},
		{"application credential", `{"auth": {"identity": {"methods": ["application_credential"], "application_credential": {"id": "ac", "secret": "s"}}}}`, 201},
		{"wrong password", password("u", "q", scope), 401},
		{"unknown user", password("v", "p", scope), 401},
		{"another project", password("u", "p", strings.ReplaceAll(scope, "berth", "other")), 401},
		{"no project", password("u", "p", ""), 401},
		{"unsupported method", `{"auth": {"identity": {"methods": ["token"]}}}`, 401},
		{"no method", `{"auth": {}}`, 400},
		{"invalid JSON", `auth`, 400},
	} {
		status, _, header := c.do("POST", "/v3/auth/tokens", tc.body)
		if status != tc.status || (header.Get("X-Subject-Token") != "") != (status == 201) {
			t.Errorf("%s: status %d, token %q; want status %d", tc.name, status, header.Get("X-Subject-Token"), tc.status)
		}
		if tc.name == "password" {
			c.token = header.Get("X-Subject-Token")
		}
	}
	get := func(what string, want int) {
		t.Helper()
		status, body, header := c.do("GET", "/v2.0/ports", "")
		if status != want || status == 401 && (body["error"] == nil || header.Get("WWW-Authenticate") == "") {
			t.Errorf("list ports %s: status %d, reply %v; want %d", what, status, body, want)
		}
	}
	get("with a token", 200)
	now.Advance(time.Minute)
	get("with an expired token", 401)
	if n := c.cloud.Keystone.Tokens(); n != 0 {
		t.Errorf("%d valid tokens, want 0", n)
	}
	c.token = ""
	get("without a token", 401)
	if status, _, _ := c.do("GET", "/v3/auth/tokens", ""); status != 405 {
		t.Errorf("GET of tokens: status %d, want 405", status)
	}
	if status, _, _ := c.do("GET", "/v3/users", ""); status != 404 {
		t.Errorf("GET of users: status %d, want 404", status)
	}
}

// A fault affects the configured calls, then ends.
func TestFaults(t *testing.T) {
	c := served(t, neutronfake.Options{})
	c.cloud.HTTP.Inject(neutronfake.Fault{Method: "POST", Path: "/v2.0/ports", Skip: 1, Times: 2, After: true, Status: 504, Message: "late", RetryAfter: 3})
	want := []int{201, 504, 504, 201}
	for i, w := range want {
		status, body, header := c.do("POST", "/v2.0/ports", c.fill(`{"port": {"network_id": "$NET", "project_id": "$PROJECT"}}`, ""))
		if status != w || w == 504 && (body["text"] != "late" || header.Get("Retry-After") != "3") {
			t.Errorf("call %d: status %d, reply %v; want %d", i, status, body, w)
		}
	}
	if n := len(c.cloud.Ports()); n != 4 {
		t.Errorf("%d ports, want 4 including those whose replies were lost", n)
	}
	c.cloud.HTTP.Inject(neutronfake.Fault{Method: "DELETE", HangUp: true}) // net/http retries a GET by itself
	if status, _, _ := c.do("DELETE", "/v2.0/ports/x", ""); status != 0 {
		t.Errorf("DELETE with a closed connection: status %d, want none", status)
	}
	c.cloud.HTTP.Inject(neutronfake.Fault{Falsify: func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("ports"), []byte("PORTS")) }})
	if _, body, _ := c.do("GET", "/v2.0/ports", ""); body["PORTS"] == nil {
		t.Errorf("falsified reply = %v, want PORTS", body)
	}
	c.cloud.HTTP.ClearFaults()
	if got := c.cloud.HTTP.Count("POST", "/v2.0/*"); got != 4 || c.cloud.HTTP.Calls()[1].Status != 504 || strings.Count(c.cloud.HTTP.Calls()[0].Body, `"network_id"`) != 1 {
		t.Errorf("%d POSTs, want 4; log = %+v", got, c.cloud.HTTP.Calls())
	}
	c.cloud.HTTP.ResetCalls()
	if n := len(c.cloud.HTTP.Calls()); n != 0 {
		t.Errorf("%d calls after ResetCalls, want 0", n)
	}
}

// Concurrent creations get distinct addresses.
func TestConcurrency(t *testing.T) {
	c := served(t, neutronfake.Options{})
	var wg sync.WaitGroup
	statuses := make([]int, 8)
	for i := range statuses {
		wg.Go(func() {
			statuses[i], _, _ = c.do("POST", "/v2.0/ports", c.fill(`{"port": {"network_id": "$NET", "project_id": "$PROJECT"}}`, ""))
			c.do("GET", "/v2.0/ports", "")
		})
	}
	wg.Wait()
	slices.Sort(statuses)
	if want := []int{201, 201, 201, 201, 201, 409, 409, 409}; !slices.Equal(statuses, want) {
		t.Errorf("statuses = %v, want %v", statuses, want)
	}
}
