package ctl

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/test/harness/hostile"
)

func TestNothingThatIsPrintedIsObeyed(t *testing.T) {
	for name, doc := range map[string]introspect.Document{"ENIs": document(t, "busy"), "pools": document(t, "pool")} {
		doc.Conditions = []introspect.Condition{{Type: "x"}}
		hostile.Fill(&doc)
		if name == "pools" {
			doc.IPAM = "pool"
		}
		at := serve(t, doc, hostile.Text)
		for _, args := range [][]string{{"ip-manager"}, {"status"}, {"ip-manager", "-o", "json"}, {"status", "-o", "json"}} {
			out, err := run(t, append(args, "--address", at)...)
			if args[0] == "ip-manager" && err != nil {
				t.Errorf("%s: %v: %v", name, args, err)
			}
			if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
				t.Errorf("%s: %v prints %q", name, args, out[max(0, i-20):min(len(out), i+20)])
			}
			if strings.Contains(out, "\nFORGED") || len(out) < 500 {
				t.Errorf("%s: %v prints\n%s", name, args, out)
			}
			if len(args) > 1 {
				var v struct{ Conditions []introspect.Condition }
				if err := json.Unmarshal([]byte(out), &v); err != nil || v.Conditions[0].Message != hostile.Text {
					t.Errorf("%s: %v: %v, %+q", name, args, err, v.Conditions)
				}
			}
		}
	}
}

func TestErrorsOfTheDaemonAreNotObeyed(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, hostile.Text, http.StatusServiceUnavailable)
	}))
	t.Cleanup(s.Close)
	_, err := run(t, "ip-manager", "--address", s.URL)
	if err == nil || strings.IndexFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
		t.Errorf("err = %q", err)
	}
}
