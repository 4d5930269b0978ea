package pool

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
)

var t0 = time.Unix(1_000_000, 0)

func TestReadBlock(t *testing.T) {
	for _, tc := range []struct{ v4, v6, want string }{
		{"10.2.0.0/31", "fd02::200/127", "10.2.0.0/31 fd02::200/127"},
		{"10.2.0.0/31", "", "10.2.0.0/31"},
		{"", "fd02::200/127", "fd02::200/127"},
		{"", "", "expected at least one"},
		{"10.2.0.1/31", "", "ipv4: \"10.2.0.1/31\""},
		{"fd02::/127", "", "ipv4: \"fd02::/127\""},
		{"", "10.2.0.0/31", "ipv6: \"10.2.0.0/31\""},
		{"10.2.0.0/31", "fd02::200/126", "equally many addresses in both"},
	} {
		b, err := readBlock(&v1alpha1.AddressBlock{IPv4: tc.v4, IPv6: tc.v6})
		got := fmt.Sprint(err)
		if err == nil {
			got = strings.Trim(fmt.Sprint(b.prefixes()), "[]")
		}
		if !strings.Contains(got, tc.want) {
			t.Errorf("%s and %s: %s, want %s", tc.v4, tc.v6, got, tc.want)
		}
	}
}

// blockOf is a block of the pool that its name says.
func blockOf(name, first, second string) blockFacts {
	b := blockFacts{name: name, pool: name[:strings.LastIndexByte(name, '-')], uid: types.UID("uid-" + name), first: netip.MustParsePrefix(first)}
	if second != "" {
		b.second = netip.MustParsePrefix(second)
	}
	return b
}

func uidOf(name string) types.UID { return types.UID("uid-" + name) }

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
