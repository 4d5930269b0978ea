package fleet

import (
	"net/netip"
	"testing"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/test/harness/check"
)

// An address and a delegated prefix that contains it belong to one node, per subnet.
func TestHoldersOfPrefixes(t *testing.T) {
	h := newHolders()
	h.set(eni.Inventory{InstanceID: "i-1", ENIs: []eni.ENI{{
		ID: "eni-1", SubnetID: "s1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.2.5")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/28")},
	}}})
	for _, c := range []struct{ instance, subnet, thing, want string }{
		{"i-2", "s1", "10.0.1.3/32", "eni-1"},
		{"i-2", "s1", "10.0.2.0/28", "eni-1"},
		{"i-2", "s1", "10.0.3.0/28", ""},
		{"i-2", "s2", "10.0.1.3/32", ""},
		{"i-1", "s1", "10.0.1.3/32", ""},
		{"i-2", "s1", "2001:db8::/80", ""}, // without trying each of its addresses
	} {
		check.Equal(t, h.other(c.instance, c.subnet, netip.MustParsePrefix(c.thing)), c.want, "%s of %s, for %s: held by", c.thing, c.subnet, c.instance)
	}
	h.drop("i-1")
	if got := h.other("i-2", "s1", netip.MustParsePrefix("10.0.1.3/32")); got != "" {
		t.Errorf("held by %q after its node is no more", got)
	}
}
