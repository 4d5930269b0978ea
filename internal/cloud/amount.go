package cloud

import "net/netip"

// Amount is a number of addresses and prefixes for pods, as they are asked of
// EC2 or given back to it: single IPv4 addresses, IPv4 /28 prefixes, single
// IPv6 addresses and IPv6 /80 prefixes.
type Amount struct {
	Addresses, Prefixes int
	IPv6, IPv6Prefixes  int `json:",omitempty"`
}

// HostPrefix is the form that an address has among prefixes: the prefix that
// has no other.
func HostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// HostPrefixes are the HostPrefix of each.
func HostPrefixes(addrs []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addrs {
		out = append(out, HostPrefix(a))
	}
	return out
}

// PrefixAround is the prefix that has an address, of the size in which EC2
// delegates them: /28 of IPv4, /80 of IPv6 (EC2 User Guide, "Prefix delegation").
func PrefixAround(a netip.Addr) netip.Prefix {
	bits := 80
	if a.Is4() {
		bits = 28
	}
	return netip.PrefixFrom(a, bits).Masked()
}

// Split sorts prefixes into those that are addresses (HostPrefix) and others.
func Split(things []netip.Prefix) (addrs []netip.Addr, prefixes []netip.Prefix) {
	for _, t := range things {
		if t.IsSingleIP() {
			addrs = append(addrs, t.Addr())
		} else {
			prefixes = append(prefixes, t)
		}
	}
	return addrs, prefixes
}

// AmountOf counts prefixes, some of which are addresses (HostPrefix).
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
