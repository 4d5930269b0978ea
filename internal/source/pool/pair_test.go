package pool

import (
	"net/netip"
	"testing"
)

func TestPairs(t *testing.T) {
	for _, tc := range []struct{ addr, from, to, want string }{
		{"10.2.0.1", "10.2.0.0/31", "fd02::200/127", "fd02::201"},
		{"fd02::201", "fd02::200/127", "10.2.0.0/31", "10.2.0.1"},
		{"10.2.0.37", "10.2.0.32/27", "fd02::220/123", "fd02::225"},
		{"10.3.255.254", "10.3.0.0/16", "fd03:1::/112", "fd03:1::fffe"},
		{"10.0.0.1", "10.0.0.1/32", "fd00::1/128", "fd00::1"},
		{"10.2.3.255", "10.2.2.0/23", "fd02::1:fe00/119", "fd02::1:ffff"},
	} {
		got := at(netip.MustParseAddr(tc.addr), netip.MustParsePrefix(tc.from), netip.MustParsePrefix(tc.to))
		if got.String() != tc.want {
			t.Errorf("%s of %s stands at %s in %s, want %s", tc.addr, tc.from, got, tc.to, tc.want)
		}
	}
}
