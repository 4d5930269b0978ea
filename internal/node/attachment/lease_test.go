package attachment

import (
	"net/netip"
	"strings"
	"testing"
)

// A record whose lease cannot be is refused with the field's name.
func TestLeaseValidate(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("2001:db8::5")
	local4, local6 := netip.MustParseAddr("169.254.172.5"), netip.MustParseAddr("fd00::ac:5")
	for _, tt := range []struct {
		lease Lease
		names string // empty: it is good
	}{
		{Lease{}, ""},
		{Lease{IPv4: four}, ""},
		{Lease{IPv4: four, IPv6: six}, ""},
		{Lease{IPv6: six, NodeLocal: local4}, ""},
		{Lease{IPv4: four, NodeLocal: local6}, ""},
		{Lease{IPv4: six}, "lease.ipv4"},
		{Lease{IPv6: four}, "lease.ipv6"},
		{Lease{IPv6: netip.AddrFrom16(four.As16())}, "lease.ipv6"},
		{Lease{IPv6: six.WithZone("eth0")}, "lease.ipv6"},
		{Lease{NodeLocal: local4}, "lease.nodeLocal"},
		{Lease{IPv4: four, NodeLocal: local4}, "lease.nodeLocal"},
		{Lease{IPv6: six, NodeLocal: local6}, "lease.nodeLocal"},
		{Lease{IPv4: four, IPv6: six, NodeLocal: local4}, "lease.nodeLocal"},
		{Lease{IPv4: four, NodeLocal: local6.WithZone("eth0")}, "lease.nodeLocal"},
	} {
		err := tt.lease.validate()
		if (err == nil) != (tt.names == "") || err != nil && !strings.HasPrefix(err.Error(), tt.names+" is ") {
			t.Errorf("%+v: %v, want one that names %q", tt.lease, err, tt.names)
		}
	}
}

// A node-local address is nobody else's, as any address of a lease; it is the other's once the
// first record has gone.
func TestNodeLocalAddressOfTwoRecords(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, testNode)
	local := netip.MustParseAddr("fd00::ac:5")
	a, b := testRecord("a", "10.0.0.5"), testRecord("b", "10.0.0.6")
	a.Lease.NodeLocal, b.Lease.NodeLocal = local, local
	mustPut(t, s, a)
	for range 2 {
		if err := s.Put(b); err == nil || !strings.Contains(err.Error(), local.String()+" is held by") {
			t.Errorf("two records have %s: %v", local, err)
		}
		s, _ = openStore(t, dir, testNode) // as a restarted daemon knows it
	}
	must(t, s.Delete(a.Key))
	mustPut(t, s, b)
	if holder, ok := s.ByAddr(local); !ok || holder.Key != b.Key {
		t.Errorf("%s is held by %v", local, holder.Key)
	}
}
