package cloud

import (
	"net/netip"
	"testing"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/test/harness/check"
)

func TestFamiliesOfAmounts(t *testing.T) {
	for n, want := range map[Amount]struct {
		four, six bool
		family    ipfamily.Family
	}{
		{}:                           {false, false, ipfamily.IPv4},
		{Addresses: 1}:               {true, false, ipfamily.IPv4},
		{Prefixes: 1}:                {true, false, ipfamily.IPv4},
		{IPv6: 1}:                    {false, true, ipfamily.IPv6},
		{IPv6Prefixes: 1}:            {false, true, ipfamily.IPv6},
		{Addresses: 1, IPv6: 1}:      {true, true, ipfamily.IPv6},
		{Prefixes: -1, Addresses: 1}: {true, false, ipfamily.IPv4},
	} {
		if n.Has(ipfamily.IPv4) != want.four || n.Has(ipfamily.IPv6) != want.six || n.Family() != want.family {
			t.Errorf("%+v: has IPv4 %v, IPv6 %v, is of %v; want %+v", n, n.Has(ipfamily.IPv4), n.Has(ipfamily.IPv6), n.Family(), want)
		}
	}
}

func TestPrefixAround(t *testing.T) {
	for addr, want := range map[string]string{"10.0.0.23": "10.0.0.16/28", "10.0.0.16": "10.0.0.16/28", "2001:db8::7": "2001:db8::/80", "2001:db8::1:0:0:7": "2001:db8::1:0:0:0/80"} {
		check.Equal(t, PrefixAround(netip.MustParseAddr(addr)), netip.MustParsePrefix(want), "around %s", addr)
	}
}
