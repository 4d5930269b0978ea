package nodenetwork

import (
	"net/netip"
	"testing"
)

// The object's numbers are of IPv4 addresses.
func TestWeight(t *testing.T) {
	for thing, want := range map[string]int{"10.0.0.7/32": 1, "10.0.0.16/28": 16, "2001:db8::7/128": 0, "2001:db8::/80": 0} {
		if got := weight(netip.MustParsePrefix(thing)); got != want {
			t.Errorf("weight of %s: %d, want %d", thing, got, want)
		}
	}
}
