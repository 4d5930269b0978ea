package nicrequest_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/vpcport"
)

func subnet(id, name, cidr, gateway string) vpcport.Subnet {
	s := vpcport.Subnet{ID: id, Name: name, CIDR: netip.MustParsePrefix(cidr)}
	if gateway != "" {
		s.Gateway = addr(gateway)
	}
	return s
}

var blue = nicrequest.Network{
	VPC: "blue", Default: []string{"web"},
	Subnets: []vpcport.Subnet{
		subnet("s-web", "web", "192.168.0.0/24", "192.168.0.1"),
		subnet("s-db", "db", "192.168.1.0/28", "192.168.1.14"),
		subnet("s-twin1", "twin", "10.1.0.0/16", ""),
		subnet("s-twin2", "twin", "10.2.0.0/16", ""),
		subnet("s-p2p", "p2p", "10.3.0.0/31", ""),
		subnet("s-six", "six", "fd00:1::/64", "fd00:1::1"),
		withIPv6(subnet("s-both", "both", "10.4.0.0/24", "10.4.0.1"), "fd00:4::/64"),
	},
}

// withIPv6 adds an IPv6 block to a subnet, as in EC2.
func withIPv6(s vpcport.Subnet, cidr string) vpcport.Subnet {
	s.IPv6CIDR, s.IPv6Gateway = netip.MustParsePrefix(cidr), addr("fe80:ec2::1")
	return s
}

func resolve(text string, net nicrequest.Network) ([]nicrequest.NIC, error) {
	entries, errs := nicrequest.Parse(text)
	nics, more := nicrequest.Complete(entries, ofPort, 0)
	if err := append(errs, more...).Err(); err != nil {
		return nil, err
	}
	nics, errs = nicrequest.Resolve(nics, net)
	return nics, errs.Err()
}

func TestResolve(t *testing.T) {
	dual := blue
	dual.Default = []string{"s-web", "six"}
	for _, tc := range []struct {
		name, text string
		net        nicrequest.Network
		want       []nicrequest.Address // of the first NIC
	}{
		{"the default", "", blue, []nicrequest.Address{{Subnet: "s-web"}}},
		{"the defaults of both families", "", dual, []nicrequest.Address{{Subnet: "s-web"}, {Subnet: "s-six"}}},
		{"no default", "", nicrequest.Network{VPC: "blue"}, nil},
		{"a name", "[{subnet: db}]", blue, []nicrequest.Address{{Subnet: "s-db"}}},
		{"an ID", "[{subnet: s-twin2}]", blue, []nicrequest.Address{{Subnet: "s-twin2"}}},
		{"an address alone", "[{ip: 192.168.1.5}]", blue, []nicrequest.Address{{Subnet: "s-db", IP: addr("192.168.1.5")}}},
		{"an address of its subnet", "[{subnet: web, ip: 192.168.0.254}]", blue, []nicrequest.Address{{Subnet: "s-web", IP: addr("192.168.0.254")}}},
		{"both of two", "[{ip: 10.3.0.0}, {ip: 10.3.0.1}]", blue, []nicrequest.Address{{Subnet: "s-p2p", IP: addr("10.3.0.0")}}},
		{"the last of IPv6", "[{ip: 'fd00:1::ffff:ffff:ffff:ffff'}]", blue, []nicrequest.Address{{Subnet: "s-six", IP: addr("fd00:1::ffff:ffff:ffff:ffff")}}},
		{"both families", "[{addresses: [{subnet: six}, {ip: 192.168.0.9}]}]", blue, []nicrequest.Address{{Subnet: "s-six"}, {Subnet: "s-web", IP: addr("192.168.0.9")}}},
		{"a subnet of both families", "[{subnet: both}]", blue, []nicrequest.Address{{Subnet: "s-both"}}},
		{"an IPv6 address of it", "[{ip: 'fd00:4::9'}]", blue, []nicrequest.Address{{Subnet: "s-both", IP: addr("fd00:4::9")}}},
		{"an address of each family of it", "[{addresses: [{ip: 10.4.0.9}, {subnet: both, ip: 'fd00:4::9'}]}]", blue, []nicrequest.Address{{Subnet: "s-both", IP: addr("10.4.0.9")}, {Subnet: "s-both", IP: addr("fd00:4::9")}}},
		{"an IPv4 address of it, and any", "[{addresses: [{ip: 10.4.0.9}, {subnet: both}]}]", blue, []nicrequest.Address{{Subnet: "s-both", IP: addr("10.4.0.9")}, {Subnet: "s-both"}}},
		{"an address of one family of it, and any", "[{addresses: [{ip: 'fd00:4::9'}, {subnet: both}]}]", blue, []nicrequest.Address{{Subnet: "s-both", IP: addr("fd00:4::9")}, {Subnet: "s-both"}}},
		{"a port", "[{portID: " + sample + "}]", blue, nil},
		{"a PodNIC", "[{nic: db}]", blue, nil},
	} {
		nics, err := resolve(tc.text, tc.net)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if d := cmp.Diff(tc.want, nics[0].Addresses, cmpopts.EquateComparable(netip.Addr{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
}

func TestResolveRefuses(t *testing.T) {
	twice, lending := blue, blue
	lending.Lends = true
	twice.Default = []string{"web", "db"}
	for _, tc := range []struct {
		name, text string
		net        nicrequest.Network
		want       string
	}{
		{"an unknown subnet", "[{subnet: mail}]", blue, `[0].subnet: VPC blue has no subnet "mail"`},
		{"a name of two", "[{}, {subnet: twin}]", blue, `[1].subnet: VPC blue has 2 subnets named "twin", expected an ID such as s-twin1`},
		{"an unknown default", "", nicrequest.Network{VPC: "blue", Default: []string{"web"}}, `[0]: VPC blue has no subnet "web"`},
		{"defaults of one family", "", twice, `[0]: is of the same family as the subnet before`},
		{"of no subnet", "[{ip: 8.8.8.8}]", blue, "[0].ip: 8.8.8.8 is in no subnet of VPC blue"},
		{"of another subnet", "[{subnet: web, ip: 192.168.1.5}]", blue, "[0].ip: 192.168.1.5 is not in subnet web (192.168.0.0/24)"},
		{"of another family", "[{subnet: web, ip: 'fd00:1::5'}]", blue, "[0].ip: fd00:1::5 is not in subnet web (192.168.0.0/24)"},
		{"the network's address", "[{ip: 192.168.0.0}]", blue, "[0].ip: 192.168.0.0 is the address of subnet web (192.168.0.0/24) itself"},
		{"the broadcast address", "[{ip: 192.168.1.15}]", blue, "[0].ip: 192.168.1.15 is the broadcast address of subnet db (192.168.1.0/28)"},
		{"the gateway, which Neutron would give", "[{ip: 192.168.1.14}]", blue, "[0].ip: 192.168.1.14 is the gateway of subnet db (192.168.1.0/28)"},
		{"the gateway of IPv6", "[{ip: 'fd00:1::1'}]", blue, "[0].ip: fd00:1::1 is the gateway of subnet six (fd00:1::/64)"},
		{"all routers of IPv6", "[{ip: 'fd00:1::'}]", blue, "[0].ip: fd00:1:: is the address of subnet six (fd00:1::/64) itself"},
		{"an address twice", "[{ip: 192.168.0.9}, {subnet: web, ip: 192.168.0.9}]", blue, "[1].ip: 192.168.0.9 is asked for by " + nicsField + "[0] too"},
		{"a link that is to be given back", "[{}, {binding: bridge}]", lending, "[1].binding: is bridge, expected tap in VPC blue, whose agent gets a port's link back as it was"},
		{"two subnets of one family", "[{addresses: [{subnet: web}, {subnet: db}]}]", blue, "[0].addresses[1].subnet: is of the same family as the subnet before"},
		{"of neither family's block", "[{subnet: both, ip: 'fd00:1::5'}]", blue, "[0].ip: fd00:1::5 is not in subnet both (fd00:4::/64)"},
		{"two of one family", "[{addresses: [{ip: 'fd00:4::5'}, {ip: 'fd00:4::6'}]}]", blue, "[0].addresses[1].ip: is of the same family as that before, expected one address of a family"},
		{"one of two that is wrong", "[{addresses: [{subnet: web}, {ip: 'fd00:2::5'}]}]", blue, "[0].addresses[1].ip: fd00:2::5 is in no subnet of VPC blue"},
	} {
		if _, err := resolve(tc.text, tc.net); err == nil || !strings.HasPrefix(err.Error(), nicsField+tc.want) {
			t.Errorf("%s: got %v\nwant %s%s", tc.name, err, nicsField, tc.want)
		}
	}
}
