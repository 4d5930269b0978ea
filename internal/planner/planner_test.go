package planner

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness/check"
)

func run(t *testing.T, text string) *Result {
	t.Helper()
	s := check.Must(Parse([]byte(text)))(t)
	return check.Must(Simulate(t.Context(), s))(t)
}

// The worked example of AWS's best practices: three c5.large, two CoreDNS pods.
const threeNodes = `
duration: 1h
subnets: [{name: a, cidr: 10.0.0.0/24}]
nodes: [{name: workers, instanceType: c5.large, count: 3, subnets: [a]}]
workload:
  deployments: [{name: coredns, replicas: 2}]
`

func TestSmoke(t *testing.T) {
	start := time.Now()
	r := run(t, threeNodes)
	a := r.Alternatives[0]
	text, _ := json.Marshal(a.Totals)
	t.Logf("%v: %s", time.Since(start), text)
	text, _ = json.Marshal(a.Events)
	t.Logf("%s", text)
	text, _ = json.Marshal(a.Calls)
	t.Logf("%s", text)
	text, _ = json.Marshal(a.Series.Subnets[0].Used[:5])
	t.Logf("%s", text)
}

func TestBig(t *testing.T) {
	for _, mode := range []string{"node", "operator"} {
		start := time.Now()
		r := run(t, `
duration: 24h
subnets: [{name: a, cidr: 10.0.0.0/20}]
nodes: [{name: workers, instanceType: m5.large, count: 100, subnets: [a]}]
settings: {mode: `+mode+`}
workload:
  deployments: [{name: web, replicas: 1000, rollouts: [{at: 5h}]}]
`)
		a := r.Alternatives[0]
		text, _ := json.Marshal(a.Totals)
		t.Logf("%s %v: %s", mode, time.Since(start), text)
		text, _ = json.Marshal(a.Calls)
		t.Logf("%s", text)
	}
	_ = context.Background
}
