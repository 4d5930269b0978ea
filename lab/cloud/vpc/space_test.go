package vpc

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestSpaceSizes(t *testing.T) {
	for _, tc := range []struct {
		cidr           string
		free, prefixes int
	}{
		{"10.0.0.0/28", 11, 0},
		{"10.0.0.0/27", 27, 0},
		{"10.0.0.0/26", 59, 2},
		{"10.0.0.0/24", 251, 14},
		{"10.0.0.0/16", 65531, 4094},
	} {
		rng := rand.New(rand.NewPCG(1, 1))
		s := newSpace4(netip.MustParsePrefix(tc.cidr))
		if s.free != tc.free {
			t.Errorf("%s: %d free addresses, want %d", tc.cidr, s.free, tc.free)
		}
		n := 0
		for p, ok := s.pickPrefix(rng); ok; p, ok = s.pickPrefix(rng) {
			s.takePrefix(p)
			n++
		}
		if n != tc.prefixes || s.free != tc.free-16*n {
			t.Errorf("%s: %d prefixes picked with %d addresses left, want %d prefixes", tc.cidr, n, s.free, tc.prefixes)
		}
		for a, ok := s.pick(rng); ok; a, ok = s.pick(rng) {
			if s.reserved(a) || s.taken(a) || !s.cidr.Contains(a) {
				t.Fatalf("%s: picked %v, which is reserved, in use or outside the subnet", tc.cidr, a)
			}
			s.take(a)
			n++
		}
		if s.free != 0 || n != tc.prefixes+tc.free-16*tc.prefixes {
			t.Errorf("%s: %d addresses left after the last pick, want 0", tc.cidr, s.free)
		}
	}
}

// The bitmap behaves like a plain set of addresses for any sequence of takes and releases.
func TestSpaceAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		s := newSpace4(netip.MustParsePrefix("10.0.0.0/25"))
		singles, prefixes := map[netip.Addr]bool{}, map[netip.Prefix]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				a, ok := s.pick(rng)
				if ok != (s.free > 0) {
					t.Fatalf("pick() ok = %v with %d free addresses", ok, s.free)
				}
				if ok {
					s.take(a)
					singles[a] = true
				}
			},
			"release": func(*rapid.T) {
				for a := range singles {
					s.release(a)
					delete(singles, a)
					return
				}
			},
			"take prefix": func(t *rapid.T) {
				if p, ok := s.pickPrefix(rng); ok {
					if p != p.Masked() || prefixes[p] {
						t.Fatalf("picked prefix %v is unaligned or in use", p)
					}
					s.takePrefix(p)
					prefixes[p] = true
				}
			},
			"release prefix": func(*rapid.T) {
				for p := range prefixes {
					s.releasePrefix(p)
					delete(prefixes, p)
					return
				}
			},
			"": func(t *rapid.T) {
				if want := 123 - len(singles) - 16*len(prefixes); s.free != want {
					t.Fatalf("%d free addresses, want %d", s.free, want)
				}
				for i := range s.size {
					a := s.addr(i)
					held := singles[a] || s.reserved(a) || prefixes[netip.PrefixFrom(a, 28).Masked()]
					if s.taken(a) != held {
						t.Fatalf("taken(%v) = %v, want %v", a, s.taken(a), held)
					}
				}
			},
		})
	})
}

func TestIPv6Space(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	s := newSpace6(netip.MustParsePrefix("2600:1f14::/64"))
	p, ok := s.pickPrefix(rng)
	if !ok || p.Bits() != 80 || p != p.Masked() {
		t.Fatalf("pickPrefix() = %v, want an aligned /80", p)
	}
	s.takePrefix(p)
	if inside := p.Addr().Next(); !s.taken(inside) || s.prefixFree(p) {
		t.Error("an address of a taken prefix is free")
	}
	a := s.pick(rng)
	s.take(a)
	if s.prefixFree(around(a)) {
		t.Error("a prefix with a taken address is free")
	}
	s.release(a)
	if !s.prefixFree(around(a)) || s.taken(a) {
		t.Error("a released address is not free")
	}
	if first := netip.MustParseAddr("2600:1f14::3"); !s.reserved(first) || s.reserved(first.Next()) {
		t.Error("reserved() does not cover exactly the first four addresses")
	}
}
