package block

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthnet/berth/test/harness/check"
)

// subnets parses subnets such as "10.2.0.0/29 fd02::200/125", with either or both families.
func subnets(texts ...string) (out []Subnet) {
	for _, text := range texts {
		var s Subnet
		for _, f := range strings.Fields(text) {
			if p := netip.MustParsePrefix(f); p.Addr().Is4() {
				s.IPv4 = p
			} else {
				s.IPv6 = p
			}
		}
		out = append(out, s)
	}
	return out
}

func layout(t *testing.T, bits int, texts ...string) Layout {
	t.Helper()
	l := check.Must(Parse(bits, subnets(texts...)))(t)
	return l
}

func TestBlocks(t *testing.T) {
	dual := []string{"10.2.0.0/29 fd02::200/125", "10.3.0.0/30 fd02::300/126"}
	for _, tc := range []struct {
		bits    int
		subnets []string
		blocks  int64
		index   int64
		want    string // of that index; empty: there is none
	}{
		{1, dual, 6, 0, "10.2.0.0/31 fd02::200/127"},
		{1, dual, 6, 3, "10.2.0.6/31 fd02::206/127"},
		{1, dual, 6, 4, "10.3.0.0/31 fd02::300/127"},
		{1, dual, 6, 5, "10.3.0.2/31 fd02::302/127"},
		{1, dual, 6, 6, ""},
		{1, dual, 6, -1, ""},
		{2, []string{"10.4.0.0/29"}, 2, 0, "10.4.0.0/30"},
		{2, []string{"10.4.0.0/29"}, 2, 1, "10.4.0.4/30"},
		{2, []string{"10.4.0.0/29"}, 2, 2, ""},
		{2, []string{"10.2.0.0/24"}, 64, 3, "10.2.0.12/30"},
		{5, []string{"fd02::900:0/116"}, 128, 10, "fd02::900:140/123"},
		{0, []string{"10.0.0.1/32"}, 1, 0, "10.0.0.1/32"},
		{0, []string{"10.0.0.1/32", "10.0.0.0/32"}, 2, 1, "10.0.0.0/32"},
		{5, []string{"10.0.0.0/24 fd00::/120"}, 8, 7, "10.0.0.224/27 fd00::e0/123"},
		{16, []string{"255.254.0.0/15"}, 2, 1, "255.255.0.0/16"},
		{0, []string{"0.0.0.0/0"}, MaxIndex + 1, MaxIndex, "127.255.255.255/32"},
		{5, []string{"fd00:1:2::/48"}, MaxIndex + 1, 0, "fd00:1:2::/123"},
		{5, []string{"fd00:1:2::/48"}, MaxIndex + 1, MaxIndex, "fd00:1:2::f:ffff:ffe0/123"},
		{5, []string{"fd00:1:2::/48"}, MaxIndex + 1, MaxIndex + 1, ""},
		{16, []string{"fd00:1:2::/48"}, MaxIndex + 1, MaxIndex, "fd00:1:2::7fff:ffff:0/112"},
		{16, []string{"fd00::ffff:0:0:0/80"}, MaxIndex + 1, MaxIndex, "fd00::ffff:7fff:ffff:0/112"},
		{5, []string{"10.0.0.0/24 fd00::/120", "10.0.1.0/27 fd01::/123"}, 9, 8, "10.0.1.0/27 fd01::/123"},
		{5, []string{"fd00:1:2::/48", "fd00:1:3::/48"}, MaxIndex + 1, MaxIndex, "fd00:1:2::f:ffff:ffe0/123"},
		{5, []string{"fd00:9::/64", "fd00:1:3::/48"}, MaxIndex + 1, MaxIndex, "fd00:9::f:ffff:ffe0/123"},
	} {
		l := layout(t, tc.bits, tc.subnets...)
		if l.Blocks() != tc.blocks || l.BlockAddresses() != 1<<tc.bits {
			t.Errorf("%v has %d blocks of %d addresses, want %d of %d", tc.subnets, l.Blocks(), l.BlockAddresses(), tc.blocks, 1<<tc.bits)
		}
		got, err := l.Block(tc.index)
		if (err != nil) != (tc.want == "") {
			t.Errorf("%v: block %d: %v", tc.subnets, tc.index, err)
		}
		if want := subnets(tc.want)[0]; got != Block(want) {
			t.Errorf("%v: block %d is %v, want %v", tc.subnets, tc.index, got, want)
		}
		for _, p := range []netip.Prefix{got.IPv4, got.IPv6} {
			if found, ok := l.Find(p.Addr()); p.IsValid() && (found != tc.index || !ok) {
				t.Errorf("%v: %s is in block %d, %t, want %d", tc.subnets, p.Addr(), found, ok, tc.index)
			}
		}
	}
}

func TestFindsNoBlock(t *testing.T) {
	l := layout(t, 5, "fd00:1:2::/48")
	for _, a := range []string{"fd00:1:2::10:0:0", "fd00:1:2:1::", "fd00:1:2:ffff:ffff:ffff:ffff:ffff", "fd00:1:3::", "10.0.1.0", "::"} {
		if i, ok := l.Find(netip.MustParseAddr(a)); ok {
			t.Errorf("%s is in block %d", a, i)
		}
	}
}

func TestRefusedPools(t *testing.T) {
	for _, tc := range []struct {
		name    string
		bits    int
		subnets []Subnet
		want    string
	}{
		{"no subnet", 5, nil, "subnets must not be empty"},
		{"an empty subnet", 5, []Subnet{{}}, "subnets[0] must have ipv4, ipv6 or both"},
		{"sizes differ", 5, subnets("10.0.0.0/24 fd00::/112"), "subnets[0].ipv6 fd00::/112 must have as many addresses as ipv4 10.0.0.0/24, so be a /120"},
		{"/30", 5, subnets("10.0.0.0/24", "10.1.0.0/30"), "subnets[1].ipv4 10.1.0.0/30 is smaller than a block: with blockSizeBits 5 it must be a /27 or larger"},
		{"/124", 5, subnets("fd00::/124"), "subnets[0].ipv6 fd00::/124 is smaller than a block: with blockSizeBits 5 it must be a /123 or larger"},
		{"negative bits", -1, subnets("10.0.0.0/24"), "blockSizeBits must be between 0 and 16, not -1"},
		{"absurd bits", 17, subnets("10.0.0.0/8"), "blockSizeBits must be between 0 and 16, not 17"},
		{"host bits", 5, subnets("10.0.0.5/24"), "subnets[0].ipv4 10.0.0.5/24 has host bits set, expected 10.0.0.0/24"},
		{"IPv6 host bits", 5, subnets("fd00::1/112"), "subnets[0].ipv6 fd00::1/112 has host bits set, expected fd00::/112"},
		{"overlap", 5, subnets("10.0.0.0/16", "10.1.0.0/16", "10.0.1.0/24"), "subnets[2].ipv4 10.0.1.0/24 overlaps 10.0.0.0/16 of subnets[0]"},
		{"IPv6 overlap", 5, subnets("10.0.0.0/24 fd00::/120", "10.0.1.0/24 fd00::/120"), "subnets[1].ipv6 fd00::/120 overlaps fd00::/120 of subnets[0]"},
		{"other family", 5, subnets("10.0.0.0/24", "fd00::/120"), "subnets[1] must have the families of subnets[0]: all subnets have ipv4, or ipv6, or both"},
		{"one family more", 5, subnets("10.0.0.0/24", "10.1.0.0/24 fd00::/120"), "subnets[1] must have the families of subnets[0]: all subnets have ipv4, or ipv6, or both"},
		{"families swapped", 5, []Subnet{{IPv4: netip.MustParsePrefix("fd00::/120")}}, "subnets[0].ipv4 fd00::/120 is of the other family"},
		{"IPv4 in IPv6", 5, []Subnet{{IPv6: netip.MustParsePrefix("::ffff:10.0.0.0/120")}}, "subnets[0].ipv6 ::ffff:10.0.0.0/120 is of the other family"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if l, err := Parse(tc.bits, tc.subnets); err == nil || err.Error() != tc.want {
				t.Errorf("got %v, %v\nwant %s", l, err, tc.want)
			}
		})
	}
}

func TestBlockOutside(t *testing.T) {
	const want = "block 2: the pool has blocks 0 to 1"
	if _, err := layout(t, 2, "10.4.0.0/29").Block(2); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := (Layout{}).Block(0); err == nil {
		t.Error("the zero Layout has a block")
	}
}

// The blocks of any layout partition it: each is inside a subnet, directly after the one before or at
// the beginning of the next subnet.
func TestBlocksPartitionSubnets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(0, 4).Draw(t, "bits")
		var all []Subnet
		for i := range rapid.IntRange(1, 4).Draw(t, "subnets") {
			size := bits + rapid.IntRange(0, 4).Draw(t, "size")
			v4 := netip.AddrFrom4([4]byte{10, byte(i), byte(rapid.IntRange(0, 255).Draw(t, "third")), 0})
			v6 := netip.AddrFrom16([16]byte{0xfd, byte(i), 13: byte(rapid.IntRange(0, 255).Draw(t, "low"))})
			all = append(all, Subnet{netip.PrefixFrom(v4, 32-size), netip.PrefixFrom(v6, 128-size)})
		}
		l := check.Must(Parse(bits, all))(t)
		index := int64(0)
		for _, s := range all {
			v4, v6 := s.IPv4.Addr(), s.IPv6.Addr()
			for s.IPv4.Contains(v4) {
				b, err := l.Block(index)
				want := Block{netip.PrefixFrom(v4, 32-bits), netip.PrefixFrom(v6, 128-bits)}
				if err != nil || b != want {
					t.Fatalf("block %d is %v (%v), want %v", index, b, err, want)
				}
				for range l.BlockAddresses() {
					v4, v6 = v4.Next(), v6.Next()
				}
				index++
			}
		}
		if index != l.Blocks() {
			t.Fatalf("%d blocks, the subnets hold %d", l.Blocks(), index)
		}
	})
}
