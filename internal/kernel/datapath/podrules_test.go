package datapath

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPodRulesAreThoseOfTheUplink(t *testing.T) {
	v := newVPC(t)
	p := v.pod(podA)
	node := []string{" 512 table 19000", " 1024 fwmark 0x80/0x80 table 254", " 1025 fwmark 0x40/0x40 table 254"}
	node6 := []string{" 512 table 19000", " 1024 fwmark 0x80/0x80 table 254"} // untranslated
	eni := []string{" 1536 fwmark 0x1/0x3f table 19001"}
	for _, c := range []struct {
		uplink int
		addrs  []netip.Addr
		v4, v6 []string
	}{
		{0, addrs(podA), node, nil},
		{v.uplink().Number, addrs(podB), slices.Concat(node, eni), nil},
		{v.uplink().Number, addrs(podB6), nil, slices.Concat(node6, eni)},
		{v.uplink().Number, addrs(podB, podB6), slices.Concat(node, eni), slices.Concat(node6, eni)},
	} {
		var want []string
		for _, r := range c.v4 {
			want = append(want, "IPv4"+r)
		}
		for _, r := range c.v6 {
			want = append(want, "IPv6"+r)
		}
		rules, err := v.node.PodRules(ctx, c.uplink, c.addrs)
		p.must(err)
		if !slices.Equal(rules, want) {
			t.Errorf("rules of %v of uplink %d:\n%q, want\n%q", c.addrs, c.uplink, rules, want)
		}
	}
	gone := policyRule(unix.AF_INET, RulePod, PodTable, 0, 0)
	p.must(v.host.nl.RuleDel(&gone))
	if rules, err := v.node.PodRules(ctx, 0, addrs(podA)); err != nil || slices.Contains(rules, "IPv4 512 table 19000") {
		t.Errorf("a rule that was removed is told of: %q, %v", rules, err)
	}
}
