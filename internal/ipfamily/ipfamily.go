// Package ipfamily defines IP families and sets of families.
package ipfamily

import (
	"fmt"
	"net/netip"
)

// Family is IPv4 or IPv6. Its value can index an array of both.
type Family int

// The families.
const (
	IPv4 Family = iota
	IPv6
)

// Number is the number of families.
const Number = 2

// Of returns the family of a valid address.
func Of(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns the usual spelling.
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// Other returns the other family.
func (f Family) Other() Family { return IPv6 - f }

// Alone returns the set of this family only.
func (f Family) Alone() Set {
	if f == IPv6 {
		return OnlyIPv6
	}
	return OnlyIPv4
}

// Set is the families of which each pod gets an address, as in settings and the API. The empty set is
// OnlyIPv4.
type Set string

// The sets.
const (
	OnlyIPv4 Set = "ipv4"
	OnlyIPv6 Set = "ipv6"
	Dual     Set = "dual" // one address of each
)

// Parse reads a set; the empty text is OnlyIPv4.
func Parse(text string) (Set, error) {
	switch s := Set(text); s {
	case "":
		return OnlyIPv4, nil
	case OnlyIPv4, OnlyIPv6, Dual:
		return s, nil
	}
	return "", fmt.Errorf("%q: expected %s, %s or %s", text, OnlyIPv4, OnlyIPv6, Dual)
}

// Families lists those of the set, IPv4 first.
func (s Set) Families() []Family {
	switch s {
	case OnlyIPv6:
		return []Family{IPv6}
	case Dual:
		return []Family{IPv4, IPv6}
	default:
		return []Family{IPv4}
	}
}

// Has reports whether a family is in the set.
func (s Set) Has(f Family) bool {
	switch s {
	case Dual:
		return true
	case OnlyIPv6:
		return f == IPv6
	default:
		return f == IPv4
	}
}
