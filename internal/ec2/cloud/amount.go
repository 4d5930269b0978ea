package cloud

import (
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ipfamily"
)

// Amount is a number of addresses and prefixes for pods: single IPv4 addresses, IPv4 /28 prefixes,
// single IPv6 addresses and IPv6 /80 prefixes.
type Amount struct {
	Addresses, Prefixes int
	IPv6, IPv6Prefixes  int `json:",omitempty"`
}

// AmountIn is an amount of one family.
func AmountIn(f ipfamily.Family, addresses, prefixes int) Amount {
	if f == ipfamily.IPv6 {
		return Amount{IPv6: addresses, IPv6Prefixes: prefixes}
	}
	return Amount{Addresses: addresses, Prefixes: prefixes}
}

// Of returns the numbers of single addresses and of prefixes in one family.
func (n Amount) Of(f ipfamily.Family) (addresses, prefixes int) {
	if f == ipfamily.IPv6 {
		return n.IPv6, n.IPv6Prefixes
	}
	return n.Addresses, n.Prefixes
}

// Has reports whether an amount includes addresses or prefixes of a family.
func (n Amount) Has(f ipfamily.Family) bool {
	addresses, prefixes := n.Of(f)
	return addresses != 0 || prefixes != 0
}

// Family is the family of a single-family amount; IPv4 for an empty one.
func (n Amount) Family() ipfamily.Family {
	if n.Has(ipfamily.IPv6) {
		return ipfamily.IPv6
	}
	return ipfamily.IPv4
}

// Plus is the sum of two amounts.
func (n Amount) Plus(o Amount) Amount {
	return Amount{n.Addresses + o.Addresses, n.Prefixes + o.Prefixes, n.IPv6 + o.IPv6, n.IPv6Prefixes + o.IPv6Prefixes}
}

// HostPrefix is the prefix with one address only.
func HostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// HostPrefixes returns the HostPrefix of each address.
func HostPrefixes(addrs []netip.Addr) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, HostPrefix(a))
	}
	return out
}

// FormatPrefix formats a prefix, omitting the length of a single-address prefix.
func FormatPrefix(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// AppendPrefix appends a prefix in the form of FormatPrefix, without an allocation for a map key.
func AppendPrefix(b []byte, p netip.Prefix) []byte {
	if p.IsSingleIP() {
		return p.Addr().AppendTo(b)
	}
	return p.AppendTo(b)
}

// ComparePrefixes is netip.Prefix.Compare, faster for single addresses.
func ComparePrefixes(x, y netip.Prefix) int {
	if x.IsSingleIP() && y.IsSingleIP() {
		return x.Addr().Compare(y.Addr())
	}
	return x.Compare(y)
}

// SortPrefixes sorts a list in place and returns it without duplicates.
func SortPrefixes(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, ComparePrefixes)
	return slices.Compact(list)
}

// PrefixAround returns the delegated prefix that contains an address: an IPv4 /28 or an IPv6 /80 (EC2 User
// Guide, "Prefix delegation").
func PrefixAround(a netip.Addr) netip.Prefix {
	bits := 80
	if a.Is4() {
		bits = 28
	}
	return netip.PrefixFrom(a, bits).Masked()
}

// Split separates addresses, which are given as their HostPrefix, from prefixes.
func Split(things []netip.Prefix) (addrs []netip.Addr, prefixes []netip.Prefix) {
	for i, t := range things {
		if t.IsSingleIP() {
			if addrs == nil {
				addrs = make([]netip.Addr, 0, len(things)-i)
			}
			addrs = append(addrs, t.Addr())
		} else {
			prefixes = append(prefixes, t)
		}
	}
	return addrs, prefixes
}

// AmountOf counts addresses, which are given as their HostPrefix, and prefixes.
func AmountOf(things []netip.Prefix) (n Amount) {
	for _, t := range things {
		switch single := t.IsSingleIP(); {
		case single && t.Addr().Is4():
			n.Addresses++
		case single:
			n.IPv6++
		case t.Addr().Is4():
			n.Prefixes++
		default:
			n.IPv6Prefixes++
		}
	}
	return n
}
