//go:build e2e

package neutron_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// A real Neutron without Keystone (auth_strategy noauth), and a host at which it has an
// agent.
const (
	neutronVariable = "BERTH_NEUTRON"      // its URL, such as http://127.0.0.1:9696
	hostVariable    = "BERTH_NEUTRON_HOST" // a host's name; node-a when not set
)

// The lab answers every request of the provider as a real Neutron does: with the same
// status, type and words of errors, and attributes.
func TestLabAnswersAsNeutron(t *testing.T) {
	if os.Getenv(neutronVariable) == "" {
		t.Fatalf("%s is not set: expected the URL of a real Neutron without Keystone", neutronVariable)
	}
	want := play(t, os.Getenv(neutronVariable), realStage(t))
	url, s := labStage(t)
	got := play(t, url, s)
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		if g.Request != w.Request || g.Match != w.Match || !equal(g.Body, w.Body) {
			t.Fatalf("exchange %d\nwith the lab   %s\nwith Neutron   %s", i, text(g), text(w))
		}
		why := within("the answer", g.Answer, w.Answer)
		if g.Status != w.Status {
			why = "another status"
		}
		if why != "" {
			t.Errorf("exchange %d, %s: %s\nof the lab   %d %s\nof Neutron   %d %s", i, g.Request, why, g.Status, text(g.Answer), w.Status, text(w.Answer))
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d exchanges with the lab, %d with Neutron", len(got), len(want))
	}
}

// within tells what of an answer of the lab is not so in Neutron's, which may have more
// attributes; empty: nothing.
func within(at string, got, want any) string {
	switch g := got.(type) {
	case map[string]any:
		w, ok := want.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s is an object", at)
		}
		for k, v := range g {
			if _, has := w[k]; !has {
				return fmt.Sprintf("%s.%s is not there", at, k)
			}
			if why := within(at+"."+k, v, w[k]); why != "" {
				return why
			}
		}
		return ""
	case []any:
		w, ok := want.([]any)
		if !ok || len(w) != len(g) {
			return fmt.Sprintf("%s has %d items", at, len(g))
		}
		for i := range g {
			if why := within(fmt.Sprintf("%s[%d]", at, i), g[i], w[i]); why != "" {
				return why
			}
		}
		return ""
	}
	if !equal(got, want) {
		return fmt.Sprintf("%s is %v, not %v", at, got, want)
	}
	return ""
}

func equal(a, b any) bool { return text(a) == text(b) }

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// realStage is a network of its own at a real Neutron.
func realStage(t *testing.T) stage {
	t.Helper()
	base := os.Getenv(neutronVariable) + "/v2.0/"
	api := func(method, path, body string) map[string]any {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		out := map[string]any{}
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, b)
		}
		_ = json.Unmarshal(b, &out)
		return out
	}
	made := func(kind, attributes string) string {
		t.Helper()
		out := api("POST", kind+"s", `{"`+strings.ReplaceAll(kind, "-", "_")+`": {"project_id": "`+project+`", `+attributes+`}}`)
		id, _ := out[strings.ReplaceAll(kind, "-", "_")].(map[string]any)["id"].(string)
		t.Cleanup(func() {
			r, _ := http.NewRequestWithContext(context.Background(), "DELETE", base+kind+"s/"+id, nil)
			if resp, err := http.DefaultClient.Do(r); err == nil {
				_ = resp.Body.Close()
			}
		})
		return id
	}
	s := stage{host: "node-a", quota: func(n int) { api("PUT", "quotas/"+project, fmt.Sprintf(`{"quota": {"port": %d}}`, n)) }}
	if h := os.Getenv(hostVariable); h != "" {
		s.host = h
	}
	s.group = made("security-group", `"name": "observed"`)
	s.network = made("network", `"name": "observed"`)
	s.web = made("subnet", `"name": "web", "network_id": "`+s.network+`", "ip_version": 4, "cidr": "192.168.0.0/24", "enable_dhcp": true`)
	s.small = made("subnet", `"name": "small", "network_id": "`+s.network+`", "ip_version": 4, "cidr": "192.168.1.0/30", "enable_dhcp": true`)
	return s
}
