package cloud

import (
	"net/netip"
	"testing"
)

func TestPrefixAround(t *testing.T) {
	for addr, want := range map[string]string{"10.0.0.23": "10.0.0.16/28", "10.0.0.16": "10.0.0.16/28", "2001:db8::7": "2001:db8::/80", "2001:db8::1:0:0:7": "2001:db8::1:0:0:0/80"} {
		if got := PrefixAround(netip.MustParseAddr(addr)); got != netip.MustParsePrefix(want) {
			t.Errorf("around %s: %v, want %s", addr, got, want)
		}
	}
}
