//go:build e2e

package neutron

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/lab/openstack"
	"github.com/berthnet/berth/test/harness"
)

// answer is Neutron's to a request as it came.
type answer struct {
	status int
	text   string
	port   map[string]any
	ports  []map[string]any
}

func (w *world) ask(t *testing.T, method, path string, body any, headers ...string) answer {
	t.Helper()
	text, err := json.Marshal(body)
	harness.OK(t, err)
	if body == nil {
		text = nil
	}
	r, err := http.NewRequestWithContext(t.Context(), method, w.Endpoint()+"/v2.0/"+path, strings.NewReader(string(text)))
	harness.OK(t, err)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	harness.OK(t, err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	harness.OK(t, err)
	out := answer{status: resp.StatusCode, text: string(all)}
	var b struct {
		Port  map[string]any
		Ports []map[string]any
	}
	_ = json.Unmarshal(all, &b)
	out.port, out.ports = b.Port, b.Ports
	return out
}

func TestAnswers(t *testing.T) {
	w := of(t, openstack.OVN, false)
	n := w.network(t, name())
	s := w.subnet(t, n.ID, "web", netip.MustParsePrefix("192.168.0.0/24"))
	base := func(more ...any) map[string]any {
		p := map[string]any{"network_id": n.ID, "project_id": w.Project(), "fixed_ips": []any{map[string]any{"subnet_id": s.ID}}}
		for i := 0; i+1 < len(more); i += 2 {
			p[more[i].(string)] = more[i+1]
		}
		return p
	}
	one := func(p map[string]any) map[string]any { return map[string]any{"port": p} }
	many := func(p ...map[string]any) map[string]any { return map[string]any{"ports": p} }
	short := func(a answer) string {
		var b strings.Builder
		fmt.Fprintf(&b, "%d", a.status)
		ports := a.ports
		if a.port != nil {
			ports = append(ports, a.port)
		}
		for _, p := range ports {
			for _, k := range []string{"revision_number", "status", "binding:host_id", "binding:vif_type", "binding:vif_details", "tags", "mac_address", "device_id"} {
				fmt.Fprintf(&b, " %s=%v", strings.TrimPrefix(k, "binding:"), p[k])
			}
		}
		if len(ports) == 0 {
			b.WriteString(" " + a.text)
		}
		return b.String()
	}
	say := func(what string, a answer) answer { t.Helper(); t.Logf("%s: %s", what, short(a)); return a }
	id := func(a answer) string { return fmt.Sprint(a.port["id"]) }
	get := func(what, id string) { t.Helper(); say("  GET after "+what, w.ask(t, "GET", "ports/"+id, nil)) }

	say("1 tags in POST", w.ask(t, "POST", "ports", one(base("tags", []string{"x"}))))
	a := say("create", w.ask(t, "POST", "ports", one(base())))
	get("create", id(a))
	p := id(a)
	for range 2 {
		say("name, unbound", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"name": "a"})))
		get("name, unbound", p)
	}
	say("device, unbound", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"device_id": "x"})))
	get("device, unbound", p)
	say("nothing", w.ask(t, "PUT", "ports/"+p, one(map[string]any{})))
	get("nothing", p)
	say("groups", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"security_groups": []any{}})))
	get("groups", p)
	say("groups again", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"security_groups": []any{}})))
	get("groups again", p)
	say("bind", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"binding:host_id": "node-a"})))
	get("bind", p)
	say("device", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"device_id": "d"})))
	get("device", p)
	say("same device", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"device_id": "d"})))
	get("same device", p)
	say("same host", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"binding:host_id": "node-a"})))
	get("same host", p)
	say("other host", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"binding:host_id": "node-b"})))
	get("other host", p)
	say("nowhere", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"binding:host_id": "nowhere"})))
	get("nowhere", p)
	say("4 nowhere again", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"binding:host_id": "nowhere"})))
	get("nowhere again", p)
	for range 2 {
		say("device and host", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"binding:host_id": "node-a", "device_id": "z"})))
		get("device and host", p)
	}
	say("name, bound", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"name": "q"})))
	get("name, bound", p)
	say("device and no host", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"binding:host_id": "", "device_id": ""})))
	get("device and no host", p)
	say("no host when there is none", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"binding:host_id": ""})))
	get("no host when there is none", p)
	say("bind nowhere", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"binding:host_id": "nowhere"})))
	get("nowhere", p)
	say("name, failed", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"name": "r"})))
	get("name, failed", p)
	say("no host", w.ask(t, "PUT", "ports/"+p, one(map[string]any{"binding:host_id": ""})))
	get("no host", p)
	a = say("create bound", w.ask(t, "POST", "ports", one(base("binding:host_id", "node-a"))))
	get("create bound", id(a))
	b := say("3 bulk, bound, one nowhere", w.ask(t, "POST", "ports", many(base("binding:host_id", "node-a", "device_id", "a"), base("binding:host_id", "nowhere", "device_id", "b"), base("device_id", "c"))))
	say("7 two devices", w.ask(t, "GET", "ports?device_id=a&device_id=b", nil))
	for _, q := range b.ports {
		get("bulk", fmt.Sprint(q["id"]))
	}
	say("8 MAC twice in a bulk", w.ask(t, "POST", "ports", many(base("mac_address", "02:00:00:00:00:01"), base("mac_address", "02:00:00:00:00:01"))))
	say("10 MAC 02:", w.ask(t, "POST", "ports", one(base("mac_address", "02:00:00:00:00:02"))))
	say("10 MAC 00:", w.ask(t, "POST", "ports", one(base("mac_address", "00:00:00:00:00:00"))))
	for _, size := range []int{114_000, 115_000, 120_000} {
		a := w.ask(t, "POST", "ports", one(base("description", strings.Repeat("d", size))))
		t.Logf("6 body of %d: %d %s", size, a.status, a.text[:min(len(a.text), 200)])
	}
	for _, ids := range []int{100, 150, 190, 200, 220, 400} {
		a := w.ask(t, "GET", "ports?"+strings.Repeat("id="+absent+"&", ids), nil)
		t.Logf("6 URL with %d IDs: %d %s", ids, a.status, a.text[:min(len(a.text), 200)])
	}
	for _, q := range w.ask(t, "GET", "ports?network_id="+n.ID, nil).ports {
		w.ask(t, "DELETE", "ports/"+fmt.Sprint(q["id"]), nil)
	}
}
