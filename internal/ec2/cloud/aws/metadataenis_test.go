package aws

import (
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// The ENIs of an instance, with addresses and prefixes of both families; a path that makes no sense is named.
func TestAttachedENIs(t *testing.T) {
	const macs, second = "network/interfaces/macs/", "network/interfaces/macs/02:00:00:00:00:0b/"
	paths := map[string]string{
		macs: "02:00:00:00:00:0a/\n02:00:00:00:00:0b/", nic + "interface-id": "eni-a", nic + "device-number": "0",
		nic + "local-ipv4s": "10.0.0.10\n10.0.0.11", nic + "subnet-ipv4-cidr-block": "10.0.0.0/24", nic + "ipv6s": "2001:db8::10", nic + "ipv6-prefix": "2001:db8:0:0:1::/80",
		second + "interface-id": "eni-b", second + "device-number": "1", second + "network-card": "1",
		second + "local-ipv4s": "10.0.1.10", second + "subnet-ipv4-cidr-block": "10.0.1.0/24", second + "ipv4-prefix": "10.0.1.32/28",
	}
	prefix := netip.MustParsePrefix
	want := []cloud.AttachedENI{
		{ID: "eni-a", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 10}, Primary: netip.MustParseAddr("10.0.0.10"), Subnet: prefix("10.0.0.0/24"),
			Held: []netip.Prefix{prefix("10.0.0.11/32"), prefix("2001:db8::10/128"), prefix("2001:db8:0:0:1::/80")}},
		{ID: "eni-b", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 11}, DeviceIndex: 1, NetworkCard: 1, Primary: netip.MustParseAddr("10.0.1.10"), Subnet: prefix("10.0.1.0/24"),
			Held: []netip.Prefix{prefix("10.0.1.32/28")}},
	}
	synctest.Test(t, func(t *testing.T) {
		got, err := NewMetadata((&metadataServer{paths: paths}).options()).AttachedENIs(t.Context())
		if d := gocmp.Diff(want, got, sameValues); d != "" || err != nil {
			t.Errorf("error = %v, ENIs (-want +got):\n%s", err, d)
		}
		for path, value := range map[string]string{
			macs: "02:00:00", nic + "device-number": "-1", nic + "local-ipv4s": "10.0.0.10\nfe80::1", nic + "ipv6s": "10.0.0.1", second + "ipv4-prefix": "10.0.1.33/28", second + "interface-id": "<html>",
		} {
			bad := maps.Clone(paths)
			bad[path] = value
			if _, err := NewMetadata((&metadataServer{paths: bad}).options()).AttachedENIs(t.Context()); err == nil || !strings.Contains(err.Error(), "instance metadata "+path) {
				t.Errorf("%s = %q: error = %v, want one that names the path", path, value, err)
			}
		}
	})
}
