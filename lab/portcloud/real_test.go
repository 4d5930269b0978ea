package portcloud

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestUpperHalf(t *testing.T) {
	for cidr, want := range map[string]string{
		"192.168.0.0/24": "[{192.168.0.128 192.168.0.254}]",
		"10.1.0.0/20":    "[{10.1.8.0 10.1.15.254}]",
		"10.1.2.16/28":   "[{10.1.2.24 10.1.2.30}]",
		"10.1.2.16/29":   "[]", // too few to part
		"fd00::/64":      "[]",
	} {
		if got := fmt.Sprint(upperHalf(netip.MustParsePrefix(cidr))); got != want {
			t.Errorf("%s: %s, want %s", cidr, got, want)
		}
	}
}
