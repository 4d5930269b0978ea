package attachment

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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

// NICs come back from a record as they were; those of other records may have the same
// addresses.
func TestRecordWithNICs(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, testNode)
	for container, addr := range map[string]string{"c1": "10.0.0.5", "c2": "10.0.0.6"} {
		r := testRecord(container, addr)
		r.NICs = []NIC{testNIC("eth1", "p-1-"+container), testNIC("eth2", "p-2-"+container)}
		must(t, s.Put(r))
	}
	again, bad := openStore(t, dir, testNode)
	if len(bad) > 0 {
		t.Fatalf("quarantined %v", bad)
	}
	for _, r := range s.Records() {
		got, _ := again.Get(r.Key)
		if diff := cmp.Diff(r, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("%s (-written +read):\n%s", r.Key, diff)
		}
	}
}

func TestNICsThatCannotBe(t *testing.T) {
	for want, spoil := range map[string]func(*NIC){
		"nics[1]: object, uid, port or plug.type is empty": func(n *NIC) { n.UID = "" },
		"expected names of links":                          func(n *NIC) { n.HostLink = "../x" },
		"expected six octets":                              func(n *NIC) { n.MAC = n.MAC[:5] },
		"expected CIDRs":                                   func(n *NIC) { n.Addresses = nil },
		"expected those to CIDRs":                          func(n *NIC) { n.Routes = []NICRoute{{}} },
		"is there twice":                                   func(n *NIC) { n.IfName = "eth0" },
		"port p-1 is there twice":                          func(n *NIC) { n.Port = "p-1" },
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
