package local

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ctl/bundle"
	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/web"
	"github.com/berthnet/berth/test/harness"
)

// The bundle has the policies of a node that enforces them, and does not ask others.
func TestPoliciesOfANode(t *testing.T) {
	enabled := "true"
	mux := http.NewServeMux()
	mux.HandleFunc(introspect.SettingsPath, func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, introspect.Settings{Settings: []introspect.Setting{{Name: "network-policies", Value: enabled}}})
	})
	mux.HandleFunc(introspect.NetworkPoliciesPath, func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, introspect.NetworkPolicies{Enabled: true, Attachments: []introspect.PolicyAttachment{{Namespace: "shop", Pod: "web-0"}}})
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	collect := func() map[string][]byte {
		var only []archive.Part
		for _, p := range Parts(t.Context(), bundle.NodeOptions{Address: strings.TrimPrefix(server.URL, "http://"), Timeout: 5 * time.Second, Root: t.TempDir()}) {
			if p.Name == "network policies" {
				only = append(only, p)
			}
		}
		var out bytes.Buffer
		a := archive.New(&out, "x", "node-1", archive.Limits{File: 1 << 20, Total: 8 << 20}, time.Now)
		harness.OK(t, a.Collect(t.Context(), 1, only))
		_, err := a.Close()
		harness.OK(t, err)
		files, index, err := archive.Open(&out)
		harness.OK(t, err)
		if len(index.Errors) > 0 {
			t.Errorf("%+v", index.Errors)
		}
		return files
	}
	if got := collect()["network-policies.json"]; !bytes.Contains(got, []byte(`"pod": "web-0"`)) {
		t.Errorf("%s", got)
	}
	enabled = "false"
	if got := collect()["network-policies.json"]; got != nil {
		t.Errorf("%s", got)
	}
}
