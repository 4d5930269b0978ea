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

// newBed6 returns newBed with IPv6 blocks for all subnets except zone b's.
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

// at requests addresses of subnet-a; an empty one is any address.
func at(addrs ...string) func(*vpcport.NewPort) {
	return func(n *vpcport.NewPort) {
		for _, a := range addrs {
			ip, _ := netip.ParseAddr(a)
			n.Addresses = append(n.Addresses, vpcport.NewAddress{SubnetID: "subnet-a", IP: ip})
		}
	}
}

// families returns the families of a port's addresses, in order.
func families(p vpcport.Port) (list []ipfamily.Family) {
	for _, a := range p.Addresses {
		list = append(list, ipfamily.Of(a.IP))
	}
	return list
}

// A port has an address of each family, uses fixed ones if requested, and keeps them when it is bound to another host.
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
				t.Errorf("%s, %s: addresses = %v", f, uid, p.Addresses)
			}
			for _, a := range p.Addresses {
				if uid == "certain" && !slices.Contains(certain, a.IP.String()) {
					t.Errorf("%s: address = %s, want one of %v", f, a.IP, certain)
				}
			}
			other := b.open(ofFamilies(f))
			if d := cmp.Diff([]vpcport.Port{p}, b.of(other, uid), cmpopts.EquateComparable(netip.Addr{})); d != "" {
				t.Errorf("%s, %s: port seen by another process (-want +got):\n%s", f, uid, d)
			}
			host := "i-a2"
			moved, err := other.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
			harness.OK(t, err)
			if b.wantBound("moved", moved, host); !slices.Equal(moved.Addresses, p.Addresses) {
				t.Errorf("%s, %s: addresses changed from %v to %v", f, uid, p.Addresses, moved.Addresses)
			}
			if e := b.eni(p.ID); !f.Has(ipfamily.IPv6) && len(e.IPv6) > 0 {
				t.Errorf("%s, %s: the ENI has the IPv6 addresses %v, want none", f, uid, e.IPv6)
			}
		}
	}
}

// Invalid combinations of addresses are refused before anything is created.
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
		"IPv6 for an IPv4-only port":        {ipfamily.OnlyIPv4, "i-a", at(six)},
		"two IPv4 addresses":                {ipfamily.OnlyIPv4, "i-a", at("", "")},
		"IPv4 for an IPv6-only port":        {ipfamily.OnlyIPv6, "i-a", at(four)},
		"two IPv6 addresses":                {ipfamily.Dual, "i-a", at(six, "2001:db8:0:a::78")},
		"two IPv4 addresses for dual stack": {ipfamily.Dual, "i-a", at(four, "10.0.0.78")},
		"three addresses":                   {ipfamily.Dual, "i-a", at(four, six, "")},
		"addresses of two subnets":          {ipfamily.Dual, "i-a", elsewhere},
		"subnet without IPv6":               {ipfamily.Dual, "i-a", without},
		"zone without an IPv6 subnet":       {ipfamily.OnlyIPv6, "i-b", at()},
		"IPv6 address of another subnet":    {ipfamily.Dual, "i-a", at("2001:db8:0:c::77")},
		"IPv6 address of no subnet":         {ipfamily.OnlyIPv6, "i-a", at("2001:db8:0:ff::77")},
		"IPv4-mapped IPv6 address":          {ipfamily.Dual, "i-a", at("::ffff:10.0.0.77")},
	} {
		b := newBed6(t, tt.families)
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{newPort("u-1", tt.host, tt.edit)})
		failsWith(t, name, err, vpcport.Invalid)
		if list := b.of(b.provider, "u-1"); len(list) > 0 {
			t.Errorf("%s: ports = %+v, want none", name, list)
		}
	}
	b := newBed6(t, ipfamily.Dual)
	b.make(b.provider, newPort("u-1", "i-a", at(six)))
	_, err := b.provider.Create(t.Context(), []vpcport.NewPort{newPort("u-2", "i-a", at(six))})
	failsWith(t, "IPv6 address of another port", err, vpcport.AddressTaken)
}

// A fixed IPv4 address can be requested in a subnet without IPv6, as a port that is created again had no other address. A port without
// IPv4 gets no address there.
func TestFixedAddressWithoutIPv6(t *testing.T) {
	b := newBed6(t, ipfamily.Dual)
	at := vpcport.NewAddress{SubnetID: "subnet-b", IP: netip.MustParseAddr("10.0.16.77")}
	p := b.make(b.provider, newPort("u-1", "i-b", func(n *vpcport.NewPort) { n.Addresses = []vpcport.NewAddress{at} }))
	if b.wantBound("subnet without IPv6", p, "i-b"); len(p.Addresses) != 1 || p.Addresses[0] != vpcport.FixedIP(at) {
		t.Errorf("addresses = %v, want only the requested one", p.Addresses)
	}
}

// A subnet that gets an IPv6 block is usable immediately.
func TestNewIPv6BlockIsUsable(t *testing.T) {
	b := newBed6(t, ipfamily.Dual)
	_, err := b.provider.Create(t.Context(), []vpcport.NewPort{newPort("u-1", "i-b")})
	failsWith(t, "before", err, vpcport.Invalid)
	b.cloud.State.SetIPv6("subnet-b", "2001:db8:0:b::/64")
	if p := b.make(b.provider, newPort("u-1", "i-b")); len(p.Addresses) != 2 {
		t.Errorf("addresses = %v, want one of each family", p.Addresses)
	}
}

// A dual-stack port chooses a subnet with IPv6.
func TestSubnetsWithIPv6(t *testing.T) {
	b := newBed(t)
	b.cloud.State.AddSubnet("subnet-old", "zone-a", "10.0.48.0/20", nil) // larger, but without IPv6
	b.cloud.State.SetIPv6("subnet-a", "2001:db8:0:a::/64")
	p := b.make(b.open(ofFamilies(ipfamily.Dual), func(s *branch.Settings) { s.Subnets = []string{"subnet-old", "subnet-a"} }), newPort("u-1", "i-a"))
	if p.Addresses[0].SubnetID != "subnet-a" {
		t.Errorf("subnet = %s, want subnet-a", p.Addresses[0].SubnetID)
	}
}

// A network shows the subnet blocks of its ports' families.
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

// A reply that lacks an address of a family or has another address than requested is an error.
func TestRepliesWithoutAFamily(t *testing.T) {
	for name, lie := range map[string]func(*cloud.ENI){
		"no IPv6":        func(e *cloud.ENI) { e.IPv6 = nil },
		"different IPv6": func(e *cloud.ENI) { e.IPv6 = []netip.Addr{netip.MustParseAddr("2001:db8:0:a::99")} },
	} {
		for _, f := range []ipfamily.Set{ipfamily.OnlyIPv6, ipfamily.Dual} {
			b := newBed6(t, f)
			p := b.open(ofFamilies(f), func(s *branch.Settings) { s.Cloud = &lying{b.cloud, lie} })
			_, err := p.Create(context.Background(), []vpcport.NewPort{newPort("u-1", "i-a", at("2001:db8:0:a::77"))})
			failsWith(t, name, err, vpcport.Bug)
		}
	}
}

// When a VPC gets IPv6 later, its existing ports keep their addresses. A port ignores IPv6 addresses that another client adds to its ENI.
func TestFamiliesThatChange(t *testing.T) {
	b := newBed6(t, ipfamily.OnlyIPv4)
	old := b.make(b.provider, newPort("u-1", "i-a"))
	dual := b.open(ofFamilies(ipfamily.Dual))
	if list := b.of(dual, "u-1"); len(list) != 1 || !slices.Equal(list[0].Addresses, old.Addresses) {
		t.Errorf("existing port = %+v, was %+v", list, old)
	}
	both := b.make(dual, newPort("u-2", "i-a"))
	if list := b.of(b.open(), "u-2"); len(list) != 1 || !slices.Equal(list[0].Addresses, both.Addresses[:1]) {
		t.Errorf("port as seen without IPv6 = %+v, want its IPv4 address only", list)
	}
	if again := b.make(dual, newPort("u-3", "i-a", at(old.Addresses[0].IP.Next().Next().Next().String()))); len(again.Addresses) != 2 {
		t.Errorf("new port with a fixed IPv4 address has %v, want one of each family", again.Addresses)
	}
}

// An IPv6-only port prefers an IPv6-only subnet, where it uses no IPv4 address. Ports with IPv4 never use such a subnet.
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
			t.Errorf("%s: Network() = %+v", f, network)
		}
		p := b.make(b.provider, newPort("any", "i-a"))
		b.wantBound("any", p, "i-a")
		if e := b.eni(p.ID); (e.SubnetID == "subnet-6") != native || e.Primary.IsValid() == native || !slices.Equal(families(p), f.Families()) {
			t.Errorf("%s: addresses = %v on ENI %+v", f, p.Addresses, e)
		}
		if _, err := b.provider.Create(t.Context(), []vpcport.NewPort{newPort("there", "i-a", in6)}); (err == nil) != native {
			t.Errorf("%s: Create() in the IPv6-only subnet = %v", f, err)
		} else if !native {
			failsWith(t, string(f), err, vpcport.ReferenceGone)
		}
		for _, s := range []string{"subnet-a", "subnet-b", "subnet-small"} {
			b.cloud.State.RemoveSubnet(s)
		}
		// The VPC is found even if it has no subnet for ports.
		if network, err = b.provider.Network(t.Context(), vpc); err != nil || len(network.Subnets) != map[bool]int{true: 1}[native] {
			t.Errorf("%s: Network() with only an IPv6-only subnet = %+v, %v", f, network, err)
		}
	}
}
