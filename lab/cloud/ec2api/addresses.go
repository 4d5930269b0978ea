package ec2api

import (
	"net/netip"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// oneOf refuses a call that specifies more than one of several alternatives, such as addresses and a count
// of addresses.
func (r *request) oneOf(names ...string) (given int) {
	for _, n := range names {
		if r.has(n) {
			given++
		}
	}
	if given > 1 {
		r.fail(vpc.Errorf("InvalidParameterCombination", "You can and can only specify one of %v", names))
	}
	return given
}

// count reads a number of addresses. An explicit zero is refused.
func (r *request) count(name string) int {
	n, given := r.number(name)
	if given && n == 0 {
		r.invalid(name, "0")
	}
	return n
}

// countOrNone reads a number of addresses; none reports whether it is an explicit zero.
func (r *request) countOrNone(name string) (n int, none bool) {
	n, given := r.number(name)
	return n, given && n == 0
}

// addresses reads the requested addresses of a new ENI, for CreateNetworkInterface and RunInstances. The
// parameters start with the prefix at.
func (r *request) addresses(at string) (primary netip.Addr, q vpc.AddressRequest) {
	primary = r.addr(at+"PrivateIpAddress", true)
	primaries := 0
	for _, p := range r.each(at + "PrivateIpAddresses") {
		a := r.addr(p+"PrivateIpAddress", true)
		isPrimary, _ := r.truth(p + "Primary")
		if isPrimary {
			primaries++
		}
		switch {
		case !isPrimary:
			q.IPv4 = append(q.IPv4, a)
		case primaries > 1 || primary.IsValid() && primary != a:
			r.fail(vpc.Errorf("InvalidParameterCombination", "Only one primary private IP address can be specified"))
		default:
			primary = a
		}
	}
	q.IPv4Count = r.count(at + "SecondaryPrivateIpAddressCount")
	if len(q.IPv4) > 0 && q.IPv4Count > 0 {
		r.fail(vpc.Errorf("InvalidParameterCombination", "Secondary addresses and their count cannot be given together"))
	}
	q.PrefixCount = r.count(at + "Ipv4PrefixCount")
	q.Prefixes = r.prefixes("Ipv4Prefix", r.nested(at+"Ipv4Prefix", "Ipv4Prefix"), true)
	if len(q.IPv4)+q.IPv4Count > 0 && len(q.Prefixes)+q.PrefixCount > 0 {
		r.fail(vpc.Errorf("InvalidParameterCombination", "Secondary addresses and prefixes cannot be given together"))
	}
	r.oneOf(at+"Ipv4PrefixCount", at+"Ipv4Prefix")
	r.oneOf(at+"Ipv6AddressCount", at+"Ipv6Addresses", at+"Ipv6PrefixCount", at+"Ipv6Prefix")
	q.IPv6Count, q.NoIPv6 = r.countOrNone(at + "Ipv6AddressCount")
	q.IPv6PrefixCount = r.count(at + "Ipv6PrefixCount")
	q.IPv6 = r.addrs(r.nested(at+"Ipv6Addresses", "Ipv6Address"), false)
	q.IPv6Prefixes = r.prefixes("Ipv6Prefix", r.nested(at+"Ipv6Prefix", "Ipv6Prefix"), false)
	return primary, q
}

func assignIPv4(r *request) (any, error) {
	id := r.need("NetworkInterfaceId")
	q := vpc.AddressRequest{
		IPv4:        r.addrs(r.list("PrivateIpAddress"), true),
		IPv4Count:   r.count("SecondaryPrivateIpAddressCount"),
		Prefixes:    r.prefixes("Ipv4Prefix", r.list("Ipv4Prefix"), true),
		PrefixCount: r.count("Ipv4PrefixCount"),
	}
	q.AllowReassignment, _ = r.truth("AllowReassignment")
	if r.oneOf("PrivateIpAddress", "SecondaryPrivateIpAddressCount", "Ipv4Prefix", "Ipv4PrefixCount") == 0 {
		r.fail(vpc.Errorf("MissingParameter", "The request must contain exactly one of SecondaryPrivateIpAddressCount, PrivateIpAddress, Ipv4PrefixCount or Ipv4Prefix"))
	}
	if err := r.ready(); err != nil {
		return nil, err
	}
	got, err := r.cloud.ENIs.Assign(id, q)
	if err != nil {
		return nil, err
	}
	type assigned struct {
		Address string `xml:"privateIpAddress"`
	}
	return struct {
		ID        string       `xml:"networkInterfaceId"`
		Addresses []assigned   `xml:"assignedPrivateIpAddressesSet>item"`
		Prefixes  []prefix4XML `xml:"assignedIpv4PrefixSet>item"`
		Return    bool         `xml:"return"`
	}{
		id, each(got.IPv4, func(a netip.Addr) assigned { return assigned{a.String()} }),
		each(got.Prefixes, func(p netip.Prefix) prefix4XML { return prefix4XML{p.String()} }), true,
	}, nil
}

func unassignIPv4(r *request) (any, error) {
	id := r.need("NetworkInterfaceId")
	gone := vpc.Assigned{
		IPv4:     r.addrs(r.list("PrivateIpAddress"), true),
		Prefixes: r.prefixes("Ipv4Prefix", r.list("Ipv4Prefix"), true),
	}
	if r.oneOf("PrivateIpAddress", "Ipv4Prefix") == 0 {
		r.fail(vpc.Errorf("MissingParameter", "The request must contain PrivateIpAddress or Ipv4Prefix"))
	}
	if err := r.ready(); err != nil {
		return nil, err
	}
	return done{true}, r.cloud.ENIs.Unassign(id, gone)
}

func assignIPv6(r *request) (any, error) {
	id := r.need("NetworkInterfaceId")
	q := vpc.AddressRequest{
		IPv6:            r.addrs(r.list("Ipv6Addresses"), false),
		IPv6Count:       r.count("Ipv6AddressCount"),
		IPv6Prefixes:    r.prefixes("Ipv6Prefix", r.list("Ipv6Prefix"), false),
		IPv6PrefixCount: r.count("Ipv6PrefixCount"),
	}
	if r.oneOf("Ipv6Addresses", "Ipv6AddressCount", "Ipv6Prefix", "Ipv6PrefixCount") == 0 {
		r.fail(vpc.Errorf("MissingParameter", "The request must contain exactly one of Ipv6AddressCount, Ipv6Addresses, Ipv6PrefixCount or Ipv6Prefix"))
	}
	if err := r.ready(); err != nil {
		return nil, err
	}
	got, err := r.cloud.ENIs.Assign(id, q)
	if err != nil {
		return nil, err
	}
	return struct {
		ID        string   `xml:"networkInterfaceId"`
		Addresses []string `xml:"assignedIpv6Addresses>item"`
		Prefixes  []string `xml:"assignedIpv6PrefixSet>item"`
	}{id, each(got.IPv6, netip.Addr.String), each(got.IPv6Prefixes, netip.Prefix.String)}, nil
}

func unassignIPv6(r *request) (any, error) {
	id := r.need("NetworkInterfaceId")
	gone := vpc.Assigned{
		IPv6:         r.addrs(r.list("Ipv6Addresses"), false),
		IPv6Prefixes: r.prefixes("Ipv6Prefix", r.list("Ipv6Prefix"), false),
	}
	if r.oneOf("Ipv6Addresses", "Ipv6Prefix") == 0 {
		r.fail(vpc.Errorf("MissingParameter", "The request must contain Ipv6Addresses or Ipv6Prefix"))
	}
	if err := r.ready(); err != nil {
		return nil, err
	}
	if err := r.cloud.ENIs.Unassign(id, gone); err != nil {
		return nil, err
	}
	return struct {
		ID        string   `xml:"networkInterfaceId"`
		Addresses []string `xml:"unassignedIpv6Addresses>item"`
		Prefixes  []string `xml:"unassignedIpv6PrefixSet>item"`
	}{id, each(gone.IPv6, netip.Addr.String), each(gone.IPv6Prefixes, netip.Prefix.String)}, nil
}
