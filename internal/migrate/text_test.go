package migrate

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestPlanAsText(t *testing.T) {
	p := Plan{
		From: AmazonVPCCNI, Found: []string{"instance i-1"},
		Pods: []Pod{
			{Namespace: "shop", Name: "web", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}, HostLink: "eni1", Uplink: "eni-0", Fate: Adopt},
			{HostLink: "vlan1", Fate: Replace, Why: "it has a branch interface"},
		},
		Steps:     []Step{{Name: "adopt", What: "adopt 1 pods", Done: true}, {Name: "finish", What: "remove", Final: true}},
		Obstacles: []Obstacle{{What: "it is old", Remedy: "Renew it.", Blocks: true}},
	}
	var b strings.Builder
	if err := p.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	const want = `Migration from amazon-vpc-cni
  instance i-1

1 pods that Berth adopts while they run
  shop/web  10.0.0.5  eni-0  eni1

1 pods that must be replaced
  vlan1
    it has a branch interface

Steps
  1. adopt: adopt 1 pods (done)
  2. finish: remove (cannot be undone)

! Obstacle: it is old
  Renew it.
`
	if b.String() != want {
		t.Errorf("text:\n%s\nwant:\n%s", b.String(), want)
	}
	if n := len(p.Blocked()); n != 1 {
		t.Errorf("%d obstacles block, want 1", n)
	}
}

func TestReportsHaveNoNullLists(t *testing.T) {
	for _, v := range []any{Plan{}.Complete(), Report{}.Complete()} {
		data, err := json.Marshal(v)
		if err != nil || strings.Contains(string(data), "null") {
			t.Errorf("JSON = %s, %v; want no null", data, err)
		}
	}
}

// Problems that a second look does not find again were pods that came or went. Without problems nobody looks twice.
func TestLasting(t *testing.T) {
	looks := [][]string{{"a", "b"}, {"b", "c"}, nil}
	look := func() (Report, error) {
		r := Report{Problems: looks[0]}
		looks = looks[1:]
		return r, nil
	}
	if r, err := Lasting(look); err != nil || !slices.Equal(r.Problems, []string{"b"}) {
		t.Errorf("Lasting() = %+v, %v; want the problem b alone", r, err)
	}
	if r, err := Lasting(look); err != nil || len(r.Problems) > 0 || len(looks) > 0 {
		t.Errorf("Lasting() without problems = %+v, %v, and %d looks are left; want one look", r, err, len(looks))
	}
}
