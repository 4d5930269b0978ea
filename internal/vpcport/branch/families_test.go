package branch_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
	"github.com/berthnet/berth/test/harness"
)

// newBed6 is newBed whose subnets have blocks of IPv6, but for that of zone b.
func newBed6(t *testing.T, families ipfamily.Set) *bed {
	t.Helper()
	b := newBed(t, ofFamilies(families))
	b.cloud.State.SetIPv6("subnet-a", "2001:db8:0:a::/64")
	b.cloud.State.SetIPv6("subnet-small", "2001:db8:0:c::/64")
	return b
}

func ofFamilies(f ipfamily.Set) func(*branch.Settings) {
	return func(s *branch.Settings) { s.Families = f }
}

// at asks for addresses of subnet-a; an empty one is any.
func at(addrs ...string) func(*vpcport.NewPort) {
	return func(n *vpcport.NewPort) {
		for _, a := range addrs {
			ip, _ := netip.ParseAddr(a)
			n.Addresses = append(n.Addresses, vpcport.NewAddress{SubnetID: "subnet-a", IP: ip})
		}
	}
}

// families are those of a port's addresses, in their order.
func families(p vpcport.Port) (list []ipfamily.Family) {
	for _, a := range p.Addresses {
		list = append(list, ipfamily.Of(a.IP))
	}
	return list
}

// A port has an address of each family, given ones if requested, and keeps them when it is bound elsewhere.
func TestFamilies(t *testing.T) {
	const four, six = "10.0.0.77", "2001:db8:0:a::77"
	for _, f := range []ipfamily.Set{"", ipfamily.OnlyIPv4, ipfamily.OnlyIPv6, ipfamily.Dual} {
		b := newBed6(t, f)
		certain := map[ipfamily.Set][]string{ipfamily.OnlyIPv6: {six}, ipfamily.Dual: {six, four}}[f]
		if certain == nil {
			certain = []string{four}
		}
		for uid, asked := range map[string][]string{"any": nil, "of-the-subnet": {""}, "certain": certain} {
			p := b.make(b.provider, newPort(uid, "i-a", at(asked...)))
			b.wantBound(uid, p, "i-a")
			if got := families(p); !slices.Equal(got, f.Families()) {
				t.Errorf("%s, %s: the port has %v", f, uid, p.Addresses)
			}
			for _, a := range p.Addresses {
				if uid == "certain" && !slices.Contains(certain, a.IP.String()) {
					t.Errorf("%s: the port has %s, want of %v", f, a.IP, certain)
				}
			}
			other := b.open(ofFamilies(f))
			if d := cmp.Diff([]vpcport.Port{p}, b.of(other, uid), cmpopts.EquateComparable(netip.Addr{})); d != "" {
				t.Errorf("%s, %s: another process sees (-want +got):\n%s", f, uid, d)
			}
			host := "i-a2"
			moved, err := other.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
			harness.OK(t, err)
			if b.wantBound("moved", moved, host); !slices.Equal(moved.Addresses, p.Addresses) {
				t.Errorf("%s, %s: the port had %v, has %v", f, uid, p.Addresses, moved.Addresses)
			}
			if e := b.eni(p.ID); !f.Has(ipfamily.IPv6) && len(e.IPv6) > 0 {
				t.Errorf("%s, %s: the ENI has %v", f, uid, e.IPv6)
			}
		}
	}
}

// Impossible combinations of addresses are refused before anything is made.
func TestImpossibleFamilies(t *testing.T) {
	const six, four = "2001:db8:0:a::77", "10.0.0.77"
	elsewhere := func(n *vpcport.NewPort) {
		n.Addresses = []vpcport.NewAddress{{SubnetID: "subnet-a"}, {SubnetID: "subnet-small"}}
	}
	without := func(n *vpcport.NewPort) { n.Addresses = []vpcport.NewAddress{{SubnetID: "subnet-b"}} }
	for name, tt := range map[string]struct {
		families ipfamily.Set
		host     string
		edit     func(*vpcport.NewPort)
	}{
		"IPv6 where ports have IPv4":            {ipfamily.OnlyIPv4, "i-a", at(six)},
		"two of IPv4":                           {ipfamily.OnlyIPv4, "i-a", at("", "")},
		"IPv4 where ports have IPv6":            {ipfamily.OnlyIPv6, "i-a", at(four)},
		"two of IPv6":                           {ipfamily.Dual, "i-a", at(six, "2001:db8:0:a::78")},
		"both of IPv4":                          {ipfamily.Dual, "i-a", at(four, "10.0.0.78")},
		"three":                                 {ipfamily.Dual, "i-a", at(four, six, "")},
		"of two subnets":                        {ipfamily.Dual, "i-a", elsewhere},
		"a subnet without IPv6":                 {ipfamily.Dual, "i-a", without},
		"a host whose zone has none with IPv6":  {ipfamily.OnlyIPv6, "i-b", at()},
		"an IPv6 address of another subnet's":   {ipfamily.Dual, "i-a", at("2001:db8:0:c::77")},
		"an IPv6 address that no subnet has":    {ipfamily.OnlyIPv6, "i-a", at("2001:db8:0:ff::77")},
		"an IPv4 address of IPv6 in both forms": {ipfamily.Dual, "i-a", at("::ffff:10.0.0.77")},
	} {
		b := newBed6(t, tt.families)
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{newPort("u-1", tt.host, tt.edit)})
		failsWith(t, name, err, vpcport.Invalid)
		if list := b.of(b.provider, "u-1"); len(list) > 0 {
			t.Errorf("%s: there is %+v", name, list)
		}
	}
	b := newBed6(t, ipfamily.Dual)
	b.make(b.provider, newPort("u-1", "i-a", at(six)))
	_, err := b.provider.Create(t.Context(), []vpcport.NewPort{newPort("u-2", "i-a", at(six))})
	failsWith(t, "an IPv6 address that another has", err, vpcport.AddressTaken)
}

// A request for a given IPv4 address in a subnet without IPv6 succeeds, as a port that is made again had no
// other. Without IPv4 there is no address for it there.
func TestCertainAddressWithoutIPv6(t *testing.T) {
	b := newBed6(t, ipfamily.Dual)
	at := vpcport.NewAddress{SubnetID: "subnet-b", IP: netip.MustParseAddr("10.0.16.77")}
	p := b.make(b.provider, newPort("u-1", "i-b", func(n *vpcport.NewPort) { n.Addresses = []vpcport.NewAddress{at} }))
	if b.wantBound("in a subnet without IPv6", p, "i-b"); len(p.Addresses) != 1 || p.Addresses[0] != vpcport.FixedIP(at) {
		t.Errorf("the port has %v", p.Addresses)
	}
}

// A subnet with a new IPv6 block is usable at once.
func TestSubnetThatGetsIPv6(t *testing.T) {
	b := newBed6(t, ipfamily.Dual)
	_, err := b.provider.Create(t.Context(), []vpcport.NewPort{newPort("u-1", "i-b")})
	failsWith(t, "before", err, vpcport.Invalid)
	b.cloud.State.SetIPv6("subnet-b", "2001:db8:0:b::/64")
	if p := b.make(b.provider, newPort("u-1", "i-b")); len(p.Addresses) != 2 {
		t.Errorf("the port has %v", p.Addresses)
	}
}

// If ports need IPv6, a subnet with IPv6 is chosen.
func TestSubnetsWithIPv6(t *testing.T) {
	b := newBed(t)
	b.cloud.State.AddSubnet("subnet-old", "zone-a", "10.0.48.0/20", nil) // larger, and without IPv6
	b.cloud.State.SetIPv6("subnet-a", "2001:db8:0:a::/64")
	p := b.make(b.open(ofFamilies(ipfamily.Dual), func(s *branch.Settings) { s.Subnets = []string{"subnet-old", "subnet-a"} }), newPort("u-1", "i-a"))
	if p.Addresses[0].SubnetID != "subnet-a" {
		t.Errorf("the port is in %s", p.Addresses[0].SubnetID)
	}
}

// A network shows the blocks of the families of its ports.
func TestNetworkOfFamilies(t *testing.T) {
	subnet := func(id, name, cidr, gateway string, six ...string) vpcport.Subnet {
		s := vpcport.Subnet{ID: id, Name: name, CIDR: netip.MustParsePrefix(cidr), Gateway: netip.MustParseAddr(gateway)}
		for _, c := range six {
			s.IPv6CIDR, s.IPv6Gateway = netip.MustParsePrefix(c), netip.MustParseAddr("fe80:ec2::1")
		}
		return s
	}
	for f, want := range map[ipfamily.Set][]vpcport.Subnet{
		ipfamily.OnlyIPv4: {
			subnet("subnet-a", "pods-a", "10.0.0.0/20", "10.0.0.1"), subnet("subnet-b", "", "10.0.16.0/20", "10.0.16.1"),
			subnet("subnet-small", "", "10.0.32.0/28", "10.0.32.1"),
		},
		ipfamily.OnlyIPv6: {
			subnet("subnet-a", "pods-a", "2001:db8:0:a::/64", "fe80:ec2::1"), subnet("subnet-small", "", "2001:db8:0:c::/64", "fe80:ec2::1"),
		},
		ipfamily.Dual: {
			subnet("subnet-a", "pods-a", "10.0.0.0/20", "10.0.0.1", "2001:db8:0:a::/64"), subnet("subnet-b", "", "10.0.16.0/20", "10.0.16.1"),
			subnet("subnet-small", "", "10.0.32.0/28", "10.0.32.1", "2001:db8:0:c::/64"),
		},
	} {
		n, err := newBed6(t, f).provider.Network(t.Context(), cloudfake.VPC)
		harness.OK(t, err)
		if d := cmp.Diff(want, n.Subnets, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", f, d)
		}
	}
}

// A reply without an address of each family, or with another than requested, is an error.
func TestRepliesWithoutAFamily(t *testing.T) {
	for name, lie := range map[string]func(*cloud.ENI){
		"no IPv6":      func(e *cloud.ENI) { e.IPv6 = nil },
		"another IPv6": func(e *cloud.ENI) { e.IPv6 = []netip.Addr{netip.MustParseAddr("2001:db8:0:a::99")} },
	} {
		for _, f := range []ipfamily.Set{ipfamily.OnlyIPv6, ipfamily.Dual} {
			b := newBed6(t, f)
			p := b.open(ofFamilies(f), func(s *branch.Settings) { s.Cloud = &lying{b.cloud, lie} })
			_, err := p.Create(context.Background(), []vpcport.NewPort{newPort("u-1", "i-a", at("2001:db8:0:a::77"))})
			failsWith(t, name, err, vpcport.Bug)
		}
	}
}

// Ports of a VPC that gets IPv6 later stay as they are. So do ports whose ENI gets IPv6 addresses from
// another client.
func TestFamiliesThatChange(t *testing.T) {
	b := newBed6(t, ipfamily.OnlyIPv4)
	old := b.make(b.provider, newPort("u-1", "i-a"))
	dual := b.open(ofFamilies(ipfamily.Dual))
	if list := b.of(dual, "u-1"); len(list) != 1 || !slices.Equal(list[0].Addresses, old.Addresses) {
		t.Errorf("a port of before is %+v, was %+v", list, old)
	}
	both := b.make(dual, newPort("u-2", "i-a"))
	if list := b.of(b.open(), "u-2"); len(list) != 1 || !slices.Equal(list[0].Addresses, both.Addresses[:1]) {
		t.Errorf("for a VPC without IPv6 the port is %+v", list)
	}
	if again := b.make(dual, newPort("u-3", "i-a", at(old.Addresses[0].IP.Next().Next().Next().String()))); len(again.Addresses) != 2 {
		t.Errorf("a port with the address of one of before has %v", again.Addresses)
	}
}

// An IPv6-only port prefers an IPv6-only subnet, where it uses no IPv4 address. Ports with IPv4 are never there.
func TestIPv6OnlySubnets(t *testing.T) {
	in6 := func(n *vpcport.NewPort) { n.Addresses = []vpcport.NewAddress{{SubnetID: "subnet-6"}} }
	for _, f := range []ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.OnlyIPv6, ipfamily.Dual} {
		b := newBed(t, ofFamilies(f), func(s *branch.Settings) { s.Subnets = []string{"subnet-a", "subnet-6"} })
		b.cloud.State.SetIPv6("subnet-a", "2001:db8:0:a::/64")
		b.cloud.State.AddIPv6Subnet("subnet-6", "zone-a", "2001:db8:0:6::/64", nil)
		native := f == ipfamily.OnlyIPv6
		network, err := b.provider.Network(t.Context(), vpc)
		harness.OK(t, err)
		if slices.ContainsFunc(network.Subnets, func(s vpcport.Subnet) bool { return s.ID == "subnet-6" }) != native {
			t.Errorf("%s: the network is %+v", f, network)
		}
		p := b.make(b.provider, newPort("any", "i-a"))
		b.wantBound("any", p, "i-a")
		if e := b.eni(p.ID); (e.SubnetID == "subnet-6") != native || e.Primary.IsValid() == native || !slices.Equal(families(p), f.Families()) {
			t.Errorf("%s: the port has %v, its ENI is %+v", f, p.Addresses, e)
		}
		if _, err := b.provider.Create(t.Context(), []vpcport.NewPort{newPort("there", "i-a", in6)}); (err == nil) != native {
			t.Errorf("%s: a port in the subnet of IPv6 alone: %v", f, err)
		} else if !native {
			failsWith(t, string(f), err, vpcport.ReferenceGone)
		}
		for _, s := range []string{"subnet-a", "subnet-b", "subnet-small"} {
			b.cloud.State.RemoveSubnet(s)
		}
		// The VPC is there, whether or not ports can be in it.
		if network, err = b.provider.Network(t.Context(), vpc); err != nil || len(network.Subnets) != map[bool]int{true: 1}[native] {
			t.Errorf("%s: of a VPC with an IPv6-only subnet only: %+v, %v", f, network, err)
		}
	}
}
