package nicrequest_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

var (
	ofPort = nicrequest.First{Name: "eth0", IsPort: true}
	ofPool = nicrequest.First{Name: "eth0"} // the pod's first interface is provided by another source
	ofENI  = nicrequest.First{Name: "eth0", MayBePort: true}
)

const sample = "a2815656-76f7-46d4-9d11-057063db1a14"

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// names returns the names of the NICs of a valid request.
func names(t *testing.T, text string, first nicrequest.First) string {
	t.Helper()
	entries, errs := nicrequest.Parse(text)
	nics, more := nicrequest.Complete(entries, first, 0)
	if err := append(errs, more...).Err(); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, n := range nics {
		out = append(out, n.Name)
	}
	return strings.Join(out, " ")
}

func TestNames(t *testing.T) {
	for _, tc := range []struct {
		text         string
		ports, mixed string // mixed: with a first interface that is not a port
	}{
		{"", "eth0", "eth1"},
		{"[]", "eth0", "eth1"},
		{"[{}, {}, {}]", "eth0 eth1 eth2", "eth1 eth2 eth3"},
		{"[{}, {name: eth1}, {}]", "eth0 eth1 eth2", "eth2 eth1 eth3"},
		{"[{name: eth2}, {}, {}]", "eth2 eth0 eth1", "eth2 eth1 eth3"},
		{"[{name: net1}, {}]", "net1 eth0", "net1 eth1"},
		{"[{name: eth7}, {name: ETH0}, {}]", "eth7 ETH0 eth0", "eth7 ETH0 eth1"},
	} {
		if got := names(t, tc.text, ofPort); got != tc.ports {
			t.Errorf("%s: names = %s, want %s", tc.text, got, tc.ports)
		}
		for _, first := range []nicrequest.First{ofPool, ofENI} {
			if got := names(t, tc.text, first); got != tc.mixed {
				t.Errorf("%s with first interface %+v: names = %s, want %s", tc.text, first, got, tc.mixed)
			}
		}
	}
}

// If the first interface may be a branch, it is one if a NIC has its name, whatever else the NIC specifies.
func TestBranchNames(t *testing.T) {
	for text, want := range map[string]string{
		"[{name: eth0}]":                                "eth0",
		"[{}, {name: eth0}, {}]":                        "eth1 eth0 eth2",
		"[{name: eth0, defaultRoute: true}, {}]":        "eth0 eth1",
		"[{name: eth0, nic: db}]":                       "eth0",
		"[{name: eth0, portID: " + sample + "}]":        "eth0",
		"[{name: eth0}, {name: net1, binding: bridge}]": "eth0 net1",
		"[{name: net1, defaultRoute: true}]":            "net1",
		"[{name: ETH0, binding: tap}]":                  "ETH0",
	} {
		if got := names(t, text, ofENI); got != want {
			t.Errorf("%s: names = %s, want %s", text, got, want)
		}
	}
}

// The first interface may be a port only in VPCs of EC2, and in a VPC whose provider is unknown.
func TestFirstInterfaceByProvider(t *testing.T) {
	for provider, want := range map[v1alpha1.VPCProvider]bool{
		"": true, v1alpha1.ProviderEC2: true, v1alpha1.ProviderNeutron: false, v1alpha1.ProviderAlcor: false,
	} {
		if got := ofENI.In(provider).IsNIC("eth0"); got != want {
			t.Errorf("provider %q: IsNIC(eth0) = %v, want %v", provider, got, want)
		}
		if first := ofPort.In(provider); !first.IsNIC("eth0") || first.IsNIC("eth1") || ofPool.In(provider).IsNIC("eth0") || ofENI.In(provider).IsNIC("eth1") {
			t.Errorf("provider %q: In() changed another first interface", provider)
		}
	}
}

func TestComplete(t *testing.T) {
	entries := []nicrequest.Entry{
		{Subnet: "subnet-1", IP: "192.168.0.12", SecurityGroups: []string{"g"}},
		{PortID: sample},
		{Name: "net1", NIC: "db", DefaultRoute: true},
		{Addresses: []nicrequest.EntryAddress{{Subnet: "four"}, {IP: "fd00::5"}}},
	}
	want := []nicrequest.NIC{
		{Name: "eth0", Addresses: []nicrequest.Address{{Subnet: "subnet-1", IP: addr("192.168.0.12")}}, SecurityGroups: []string{"g"}},
		{Index: 1, Name: "eth1", PortID: sample},
		{Index: 2, Name: "net1", Object: "db", DefaultRoute: true},
		{Index: 3, Name: "eth2", Addresses: []nicrequest.Address{{Subnet: "four"}, {IP: addr("fd00::5")}}},
	}
	got, errs := nicrequest.Complete(entries, ofPort, 4)
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" || errs != nil {
		t.Errorf("Complete(): errors %v, NICs (-want +got):\n%s", errs, d)
	}
}

func TestCompleteErrors(t *testing.T) {
	const nameText = "expected a name such as eth0: 1 to 15 letters, digits, dots, hyphens and underscores, and not lo, all or default"
	const ipText = "expected the address of one host, such as 192.168.0.12"
	for _, tc := range []struct {
		name, text string
		first      nicrequest.First
		want       string // after the annotation's field
	}{
		{"loopback", "[{name: lo}, {name: eth0}]", ofPort, `[0].name: is "lo", ` + nameText},
		{"a path", "[{name: ../x}]", ofPort, `[0].name: is "../x", ` + nameText},
		{"a long name", "[{name: abcdefghijklmnop}]", ofPort, `[0].name: is "abcdefghijklmnop", ` + nameText},
		{"name with a colon", "[{name: 'eth0:1'}]", ofPort, `[0].name: is "eth0:1", ` + nameText},
		{"name with a format verb", "[{name: eth%d}]", ofPort, `[0].name: is "eth%d", ` + nameText},
		{"a name twice", "[{name: eth0}, {name: eth0}]", ofPort, "[1].name: eth0 is the name of " + nicsField + "[0] too"},
		{"name of the first interface", "[{name: eth0}]", ofPool, "[0].name: eth0 is the name of the pod's first interface, which is no port here"},
		{"name of the first interface in a VPC of another provider", "[{name: eth0}]", ofENI.In(v1alpha1.ProviderNeutron), "[0].name: eth0 is the name of the pod's first interface, which is no port here"},
		{"name of a branch twice", "[{name: eth0}, {name: eth0}]", ofENI, "[1].name: eth0 is the name of " + nicsField + "[0] too"},
		{"a branch for a virtual machine", "[{name: eth0, binding: bridge}]", ofENI, "[0].binding: is \"bridge\" of eth0, the pod's first interface, expected none: the node routes to it"},
		{"a branch as a tap device", "[{}, {name: eth0, binding: tap}]", ofENI, "[1].binding: is \"tap\" of eth0, the pod's first interface, expected none"},
		{"default route on a NIC beside a branch", "[{name: eth0}, {defaultRoute: true}]", ofENI, "[1].defaultRoute: is true of eth1, and the pod's first interface eth0 is a branch interface, which has the default route"},
		{"default route on a NIC beside an existing branch", "[{name: eth0}, {defaultRoute: true}]", nicrequest.First{Name: "eth0", IsPort: true, MayBePort: true}, "[1].defaultRoute: is true of eth1"},
		{"no first interface", "[{name: net1}]", ofPort, ": names no NIC eth0, expected one, as by that name the runtime knows the pod's address"},
		{"too many", "[{}, {}, {}, {}, {}]", ofPort, ": has 5 NICs, expected 4 at most (spec.maxNICsPerPod of the VPC)"},
		{"a port with a subnet", "[{portID: " + sample + ", subnet: a}]", ofPort, "[0].portID: excludes subnet, ip, addresses and securityGroups, which the port has already"},
		{"a port with an address", "[{portID: " + sample + ", ip: 10.0.0.5}]", ofPort, "[0].portID: excludes"},
		{"a port with a group", "[{portID: " + sample + ", securityGroup: a}]", ofPort, "[0].portID: excludes"},
		{"a port with addresses", "[{portID: " + sample + ", addresses: [{subnet: a}]}]", ofPort, "[0].portID: excludes"},
		{"invalid port ID", "[{portID: '../1'}]", ofPort, `[0].portID: is "../1", expected the ID of a port, such as ` + sample},
		{"a port twice", "[{portID: " + sample + "}, {}, {portID: " + sample + "}]", ofPort, "[2].portID: is that of " + nicsField + "[0]"},
		{"a NIC with a port", "[{nic: db, portID: " + sample + "}]", ofPort, "[0].nic: excludes"},
		{"a NIC with a subnet", "[{nic: db, subnet: a}]", ofPort, "[0].nic: excludes"},
		{"a NIC twice", "[{nic: db}, {nic: db}]", ofPort, "[1].nic: is that of " + nicsField + "[0]"},
		{"invalid PodNIC name", "[{nic: other/db}]", ofPort, `[0].nic: is "other/db", expected the name of a PodNIC`},
		{"an incomplete address", "[{ip: '10.0.0'}]", ofPort, `[0].ip: is "10.0.0", ` + ipText},
		{"a CIDR", "[{ip: 10.0.0.5/24}]", ofPort, `[0].ip: is "10.0.0.5/24", ` + ipText},
		{"leading zeros", "[{ip: 010.0.0.5}]", ofPort, `[0].ip: is "010.0.0.5", ` + ipText},
		{"an address with a zone", "[{ip: 'fd00::1%eth0'}]", ofPort, `[0].ip: is "fd00::1%eth0", ` + ipText},
		{"IPv4 in IPv6", "[{ip: '::ffff:10.0.0.5'}]", ofPort, `[0].ip: is "::ffff:10.0.0.5", ` + ipText},
		{"multicast", "[{ip: 224.0.0.1}]", ofPort, `[0].ip: is "224.0.0.1", ` + ipText},
		{"an address beside addresses", "[{ip: 10.0.0.5, addresses: [{subnet: a}]}]", ofPort, "[0].addresses: excludes subnet and ip"},
		{"three addresses", "[{addresses: [{subnet: a}, {subnet: b}, {subnet: c}]}]", ofPort, "[0].addresses: has 3 addresses, expected one, or one of each family"},
		{"an address without subnet and ip", "[{addresses: [{subnet: a}, {}]}]", ofPort, "[0].addresses[1].subnet: is missing, expected a subnet, an ip or both"},
		{"two of one family", "[{addresses: [{ip: 10.0.0.5}, {ip: 10.0.0.6}]}]", ofPort, "[0].addresses[1].ip: is of the same family as that before"},
		{"an invalid address among addresses", "[{addresses: [{ip: a}]}]", ofPort, `[0].addresses[0].ip: is "a", ` + ipText},
		{"a group twice", "[{securityGroups: [a, b, a]}]", ofPort, `[0].securityGroups[2]: is "a", expected the ID of a group that is not named before`},
		{"an unknown binding", "[{binding: masquerade}]", ofPort, `[0].binding: is "masquerade", expected bridge or tap, for a virtual machine in the pod`},
		{"a tap device without its binding", "[{tap: {owner: 0}}]", ofPort, "[0].tap: is what a tap device is like, expected binding: tap with it"},
		{"a tap device on a bridge", "[{binding: bridge, tap: {owner: 0}}]", ofPort, "[0].tap: is what a tap device is like"},
		{"a binding of a PodNIC", "[{nic: db, binding: tap}]", ofPort, "[0].nic: excludes subnet, ip, addresses, securityGroups, portID, binding and tap, which the PodNIC has already"},
		{"two default routes", "[{defaultRoute: true}, {defaultRoute: true}]", ofPort, "[1].defaultRoute: is true, and of " + nicsField + "[0] too"},
	} {
		entries, errs := nicrequest.Parse(tc.text)
		if errs != nil {
			t.Fatalf("%s: Parse() errors = %v, want none", tc.name, errs)
		}
		_, errs = nicrequest.Complete(entries, tc.first, 4)
		if err := errs.Err(); err == nil || !strings.HasPrefix(err.Error(), nicsField+tc.want) {
			t.Errorf("%s: error = %v\nwant %s%s", tc.name, err, nicsField, tc.want)
		}
	}
}
