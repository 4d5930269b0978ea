package neutronscenes

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Requests sends requests to a Neutron that reveal how it counts revisions and reports bindings, and returns a line
// for each: the request, the status of the reply, and for each port in the reply its status and binding, with its
// revision in the reply and in a later lookup. They are only for comparison: the provider does not make some of these
// requests.
func Requests(t *testing.T, url string, s Stage) []string {
	t.Helper()
	r := &requests{t: t, url: url + "/v2.0/"}
	create := func(more string) string {
		return fmt.Sprintf(`{"network_id": %q, "project_id": %q, "fixed_ips": [{"subnet_id": %q}]%s}`, s.Network, s.Project, s.Web, more)
	}
	here, there := fmt.Sprintf(`"binding:host_id": %q`, s.Host), `"binding:host_id": "no-such-host"`
	one := r.ask("create", "POST", "ports", `{"port": `+create("")+`}`)
	defer r.drop(one)
	for _, change := range []string{
		`"name": "a"`, `"name": "a"`, `"device_id": "d"`, ``, `"security_groups": []`, `"security_groups": []`,
		here, `"device_id": "e"`, `"device_id": "e"`, here, here + `, "device_id": "f"`, `"security_groups": ["` + s.Group + `"]`, there, there, `"name": "b"`,
		here + `, "device_id": "g"`, `"binding:host_id": ""`, `"binding:host_id": ""`, here, `"binding:host_id": "", "device_id": ""`,
	} {
		r.ask("change to "+change, "PUT", "ports/"+one[0], `{"port": {`+change+`}}`)
	}
	defer r.drop(r.ask("create bound", "POST", "ports", `{"port": `+create(", "+here)+`}`))
	defer r.drop(r.ask("create many", "POST", "ports", `{"ports": [`+strings.Join([]string{
		create(`, "device_id": "1", ` + here), create(`, "device_id": "2", ` + there), create(`, "device_id": "3"`),
	}, ", ")+`]}`))
	r.ask("two devices", "GET", "ports?device_id=1&device_id=2", "")
	twice := create(`, "mac_address": "02:00:00:00:00:01"`)
	r.ask("one MAC address twice", "POST", "ports", `{"ports": [`+twice+`, `+twice+`]}`)
	defer r.drop(r.ask("a MAC address of one's own", "POST", "ports", `{"port": `+twice+`}`))
	r.ask("no MAC address", "POST", "ports", `{"port": `+create(`, "mac_address": "00:00:00:00:00:00"`)+`}`)
	return r.lines
}

type requests struct {
	t     *testing.T
	url   string
	lines []string
}

// ask sends a request, records the reply, and returns the IDs of its ports.
func (r *requests) ask(what, method, path, body string) (ids []string) {
	r.t.Helper()
	status, text, ports := r.do(method, path, body)
	line := fmt.Sprintf("%s: %d", anID.ReplaceAllString(what, "<id>"), status)
	slices.SortFunc(ports, func(a, b map[string]any) int {
		return strings.Compare(fmt.Sprint(a["device_id"]), fmt.Sprint(b["device_id"]))
	})
	for _, p := range ports {
		id := fmt.Sprint(p["id"])
		ids = append(ids, id)
		line += ";"
		_, _, now := r.do("GET", "ports/"+id, "")
		for _, n := range append([]map[string]any{p}, now...) {
			if d, ok := n["binding:vif_details"].(map[string]any); ok {
				delete(d, "datapath_type") // a property of the node, not of Neutron
			}
			details, _ := json.Marshal(n["binding:vif_details"])
			line += fmt.Sprintf(" [%v %v at %q %s %s]", n["revision_number"], n["status"], n["binding:host_id"], n["binding:vif_type"], details)
		}
	}
	if len(ports) == 0 {
		line += " " + anID.ReplaceAllString(text, "<id>")
	}
	r.lines = append(r.lines, line)
	return ids
}

func (r *requests) do(method, path, body string) (status int, text string, ports []map[string]any) {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	var b struct {
		Port         map[string]any
		Ports        []map[string]any
		NeutronError map[string]any
	}
	if json.Unmarshal(all, &b) == nil && b.Port != nil {
		b.Ports = append(b.Ports, b.Port)
	}
	if b.NeutronError != nil {
		all, _ = json.Marshal(b.NeutronError)
	}
	return resp.StatusCode, string(all), b.Ports
}

func (r *requests) drop(ids []string) {
	for _, id := range ids {
		r.do("DELETE", "ports/"+id, "")
	}
}
