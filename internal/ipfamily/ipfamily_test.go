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
		t.Errorf("a wrong set: %v", err)
	}
	if Of(netip.MustParseAddr("10.0.0.1")) != IPv4 || Of(netip.MustParseAddr("fd00::1")) != IPv6 {
		t.Error("families of addresses")
	}
	if IPv4.Other() != IPv6 || IPv6.Other() != IPv4 || IPv4.Alone() != OnlyIPv4 || IPv6.Alone() != OnlyIPv6 {
		t.Error("the other family, and each alone")
	}
}
