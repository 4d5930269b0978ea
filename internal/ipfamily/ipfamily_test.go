package ipfamily

import (
	"net/netip"
	"slices"
	"testing"
)

func TestSets(t *testing.T) {
	for text, want := range map[string][]Family{"": {IPv4}, "ipv4": {IPv4}, "ipv6": {IPv6}, "dual": {IPv4, IPv6}} {
		s, err := Parse(text)
		if err != nil || !slices.Equal(s.Families(), want) || s.Has(IPv4) != slices.Contains(want, IPv4) || s.Has(IPv6) != slices.Contains(want, IPv6) {
			t.Errorf("%q is %v, %v; want %v", text, s.Families(), err, want)
		}
	}
	if _, err := Parse("IPv6"); err == nil || err.Error() != `"IPv6": expected ipv4, ipv6 or dual` {
		t.Errorf("Parse(\"IPv6\"): got error %v, want one that lists the valid sets", err)
	}
	for f, want := range map[Family]struct {
		addr  string
		other Family
		alone Set
	}{IPv4: {"10.0.0.1", IPv6, OnlyIPv4}, IPv6: {"fd00::1", IPv4, OnlyIPv6}} {
		if got := Of(netip.MustParseAddr(want.addr)); got != f {
			t.Errorf("Of(%s) = %v, want %v", want.addr, got, f)
		}
		if other, alone := f.Other(), f.Alone(); other != want.other || alone != want.alone {
			t.Errorf("%v: Other, Alone = %v, %v; want %v, %v", f, other, alone, want.other, want.alone)
		}
	}
}
