package attachment

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/mac"
)

func testNIC(ifName, port string) NIC {
	return NIC{
		Object: "web-0-" + ifName, UID: "u-" + ifName, Port: port, IfName: ifName, MAC: mac.Addr{0xfa, 0x16, 0x3e, 0, 0, 1}, MTU: 1442,
		Addresses: []NICAddress{{netip.MustParsePrefix("192.168.0.12/24"), netip.MustParseAddr("192.168.0.1")}},
		Routes:    []NICRoute{{netip.MustParsePrefix("172.16.0.0/12"), netip.MustParseAddr("192.168.0.254")}},
		HostLink:  "tapa2815656-76", Plug: Plug{Type: "OVS", Bridge: "br-int", OVN: true},
	}
}

func TestNICsThatCannotBe(t *testing.T) {
	for want, spoil := range map[string]func(*NIC){
		"nics[1]: object, uid, port or plug.type is empty": func(n *NIC) { n.UID = "" },
		"expected names of links":                          func(n *NIC) { n.HostLink = "../x" },
		"expected six octets":                              func(n *NIC) { n.MAC = n.MAC[:5] },
		"expected CIDRs":                                   func(n *NIC) { n.Addresses = nil },
		"expected those to CIDRs":                          func(n *NIC) { n.Routes = []NICRoute{{}} },
		"is listed twice":                                  func(n *NIC) { n.IfName = "eth0" },
		"port p-1 is listed twice":                         func(n *NIC) { n.Port = "p-1" },
	} {
		r := testRecord("c1", "10.0.0.5")
		r.InstanceID, r.BootID = "i-1", "boot-1"
		r.NICs = []NIC{testNIC("eth1", "p-1"), testNIC("eth2", "p-2")}
		good := slices.Clone(r.NICs)
		spoil(&r.NICs[1])
		if _, err := r.Encode(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		r.NICs = good
		if _, err := r.Encode(); err != nil {
			t.Error(err)
		}
	}
}

// A record without a lease is one of NICs alone: one of them has the interface's name.
func TestRecordWithoutLease(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, testNode)
	r := testRecord("c1", "10.0.0.5")
	r.Lease, r.NICs = Lease{}, []NIC{testNIC("eth1", "p-1"), testNIC("eth0", "p-0")}
	must(t, s.Put(r))
	again, bad := openStore(t, dir, testNode)
	got, ok := again.Get(r.Key)
	if !ok || len(bad) > 0 || !got.Lease.Empty() {
		t.Fatalf("read %+v, quarantined %v", got, bad)
	}
	if first := got.First(); first == nil || first.Port != "p-0" || len(got.NICs) != 2 || got.NICs[0].Port != "p-1" {
		t.Errorf("first %+v of %+v", first, got.NICs)
	}
	r.NICs = r.NICs[:1]
	if err := s.Put(r); err == nil || !strings.Contains(err.Error(), "lease has no address, and no NIC is named eth0") {
		t.Errorf("without a NIC of the name: %v", err)
	}
}

// A port is one attachment's.
func TestPortOfTwoAttachments(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, testNode)
	a, b := testRecord("c1", "10.0.0.5"), testRecord("c2", "10.0.0.6")
	a.NICs = []NIC{testNIC("eth1", "p-1"), testNIC("eth2", "p-2")}
	b.NICs = []NIC{testNIC("eth1", "p-3"), testNIC("eth2", "p-2")}
	must(t, s.Put(a))
	refused := func() {
		t.Helper()
		taken, ok := errors.AsType[*PortTaken](s.Put(b))
		if !ok || taken.Holder != a.Key || taken.Port != "p-2" || taken.IfName != "eth2" {
			t.Fatalf("refused as %+v", taken)
		}
	}
	refused()
	if _, ok := s.ByPort("p-3"); ok {
		t.Error("a port of what was refused is kept")
	}
	if r, ok := s.ByPort("p-2"); !ok || r.Key != a.Key {
		t.Errorf("p-2 is of %v", r.Key)
	}
	s, _ = openStore(t, dir, testNode) // and after a restart
	refused()
	a.NICs = a.NICs[:1] // taken away
	must(t, s.Put(a))
	must(t, s.Put(b))
	must(t, s.Delete(a.Key))
	if _, ok := s.ByPort("p-1"); ok {
		t.Error("the port of a record that is gone is kept")
	}
	// Two records of one port on disk: the later is no record.
	must(t, s.Delete(b.Key))
	must(t, s.Put(a))
	b.NICs[1].Port, b.InstanceID, b.BootID = "p-1", testNode.InstanceID, testNode.BootID
	data, err := b.Encode()
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, recordFile(b.HostLink)), data, 0o600))
	if again, bad := openStore(t, dir, testNode); len(bad) != 1 || len(again.Records()) != 1 {
		t.Errorf("quarantined %v, records %v", bad, again.Records())
	}
}

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
