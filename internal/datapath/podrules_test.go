package datapath

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPodRulesAreThoseOfTheUplink(t *testing.T) {
	v := newVPC(t)
	p := v.pod(podA)
	for _, c := range []struct {
		uplink int
		want   []string
	}{
		{0, []string{"IPv4 512 table 19000", "IPv4 1024 fwmark 0x80/0x80 table 254", "IPv4 1025 fwmark 0x40/0x40 table 254"}},
		{v.uplink().Number, []string{"IPv4 512 table 19000", "IPv4 1024 fwmark 0x80/0x80 table 254", "IPv4 1025 fwmark 0x40/0x40 table 254", "IPv4 1536 fwmark 0x1/0x3f table 19001"}},
	} {
		rules, err := v.node.PodRules(ctx, c.uplink, false)
		p.must(err)
		if !slices.Equal(rules, c.want) {
			t.Errorf("rules of pods of uplink %d:\n%q, want\n%q", c.uplink, rules, c.want)
		}
	}
	gone := policyRule(unix.AF_INET, RulePod, PodTable, 0, 0)
	p.must(v.host.nl.RuleDel(&gone))
	if rules, err := v.node.PodRules(ctx, 0, false); err != nil || slices.Contains(rules, "IPv4 512 table 19000") {
		t.Errorf("a rule that was removed is told of: %q, %v", rules, err)
	}
}
