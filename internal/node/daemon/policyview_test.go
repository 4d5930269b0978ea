package daemon

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/policy"
)

// fakePolicies refuses everything, and remembers the connection.
type fakePolicies struct{ asked policy.Flow }

func (*fakePolicies) Status(now time.Time) introspect.NetworkPolicies {
	return introspect.NetworkPolicies{Time: now, Enabled: true, Connected: true}
}

func (f *fakePolicies) Judge(flow policy.Flow) introspect.PolicyJudgement {
	f.asked = flow
	return introspect.PolicyJudgement{Enabled: true, Ingress: introspect.PolicyDecision{Isolated: true}}
}

// Policies are served at the introspection address, also where the node enforces none.
func TestPoliciesAreServed(t *testing.T) {
	d := newNode(t).assemble()
	d.inspector.node.NodeName = "node-a"
	h := frontOf(d).introspectionHandler()
	const flow = "?source=10.0.0.1&destination=::ffff:10.0.0.2&protocol=6&port=80"
	var doc introspect.NetworkPolicies
	var j introspect.PolicyJudgement
	ask := func(path string, into any) {
		t.Helper()
		code, body := get(h, "localhost:6666", path)
		if err := json.Unmarshal([]byte(body), into); code != http.StatusOK || err != nil {
			t.Errorf("%s: %d, %v: %s", path, code, err, body)
		}
	}
	ask(introspect.NetworkPoliciesPath, &doc)
	ask(introspect.PolicyJudgePath+flow, &j)
	if doc.Enabled || doc.Node != "node-a" || doc.Attachments == nil || j.Enabled || !j.Ingress.Allowed || !j.Egress.Allowed || j.Node != "node-a" {
		t.Errorf("without policies: %+v, %+v", doc, j)
	}

	f := &fakePolicies{}
	d.inspector.policies = f
	ask(introspect.NetworkPoliciesPath, &doc)
	ask(introspect.PolicyJudgePath+flow, &j)
	want := policy.Flow{Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.0.0.2"), Protocol: 6, Port: 80}
	if !doc.Enabled || !doc.Connected || doc.Node != "node-a" || j.Ingress.Allowed || !j.Ingress.Isolated || f.asked != want {
		t.Errorf("with policies: %+v, %+v, %+v", doc, j, f.asked)
	}
	for query, want := range map[string]string{
		"source=x&destination=10.0.0.2&protocol=6":                    "source is",
		"source=10.0.0.1&protocol=6":                                  "destination is",
		"source=10.0.0.1&destination=10.0.0.2&protocol=tcp":           "protocol is",
		"source=10.0.0.1&destination=10.0.0.2&protocol=6&port=123456": "port is",
	} {
		if code, body := get(h, "localhost", introspect.PolicyJudgePath+"?"+query); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
	for range podViews {
		d.inspector.views <- struct{}{}
	}
	for _, path := range []string{introspect.NetworkPoliciesPath, introspect.PolicyJudgePath + flow} {
		if code, body := get(h, "localhost", path); code != http.StatusServiceUnavailable {
			t.Errorf("%s: one request too many: %d %s", path, code, body)
		}
		if code, _ := get(h, "node.example:6666", path); code != http.StatusForbidden {
			t.Errorf("%s: asked in another host's name: %d", path, code)
		}
	}
}
