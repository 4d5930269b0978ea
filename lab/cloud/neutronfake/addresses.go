package neutronfake

import (
	"net/netip"
	"slices"
)

// wanted is a requested address: a subnet, a specific address, or both.
type wanted struct {
	Subnet *string `json:"subnet_id"`
	IP     *string `json:"ip_address"`
}

// addresses chooses the addresses of a new port: the requested ones or, without a request, one of each
// family of the network. The caller must hold the lock, as for all functions below.
func (a *api) addresses(network string, want *[]wanted) ([]FixedIP, *refusal) {
	out := []FixedIP{}
	if want == nil {
		for _, v4 := range []bool{true, false} {
			of := slices.DeleteFunc(a.networks.subnetsOf(network), func(s Subnet) bool { return s.CIDR.Addr().Is4() != v4 })
			if len(of) == 0 {
				continue
			}
			a, ok := a.ports.freeOfAny(network, of)
			if !ok {
				return nil, noAddresses(network)
			}
			out = append(out, a)
		}
		return out, nil
	}
	for _, w := range *want {
		a, err := a.address(network, w, out)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

func (ps *ports) freeOfAny(network string, subnets []Subnet) (FixedIP, bool) {
	for _, s := range subnets {
		if ip, ok := ps.free(network, s, nil); ok {
			return FixedIP{s.ID, ip}, true
		}
	}
	return FixedIP{}, false
}

// address chooses one address. As in Neutron, clients may request the gateway's address.
func (a *api) address(network string, w wanted, with []FixedIP) (FixedIP, *refusal) {
	s, err := a.networks.subnetFor(network, w)
	if err != nil {
		return FixedIP{}, err
	}
	if w.IP == nil {
		ip, ok := a.ports.free(network, s, with)
		if !ok {
			return FixedIP{}, noAddresses(network)
		}
		return FixedIP{s.ID, ip}, nil
	}
	ip, perr := netip.ParseAddr(*w.IP)
	switch {
	case perr != nil:
		return FixedIP{}, badRequest("Invalid input for fixed_ips. Reason: '%s' is not a valid IP address.", *w.IP)
	case !s.CIDR.Contains(ip) || ip == s.CIDR.Masked().Addr() || ip.Is4() && ip == last(s.CIDR):
		return FixedIP{}, refuse(400, "InvalidIpForSubnet", "IP address %s is not a valid IP for the specified subnet.", ip)
	case a.ports.taken(network, ip, with):
		return FixedIP{}, refuse(409, "IpAddressAlreadyAllocated", "IP address %s already allocated in subnet %s", ip, s.ID)
	}
	return FixedIP{s.ID, ip}, nil
}

// subnetFor returns the subnet of a requested address.
func (ns *networks) subnetFor(network string, w wanted) (Subnet, *refusal) {
	if w.Subnet != nil {
		s, ok := ns.subnets[*w.Subnet]
		switch {
		case !uuid(*w.Subnet):
			return s, badRequest("Invalid input for fixed_ips. Reason: '%s' is not a valid UUID.", *w.Subnet)
		case !ok:
			return s, refuse(404, "SubnetNotFound", "Subnet %s could not be found.", *w.Subnet)
		case s.Network != network:
			return s, refuse(400, "InvalidInput", "Invalid input for operation: Failed to create port on network %s, because fixed_ips included invalid subnet %s.", network, *w.Subnet)
		}
		return s, nil
	}
	if w.IP == nil {
		return Subnet{}, refuse(400, "InvalidInput", "Invalid input for operation: IP allocation requires subnet_id or ip_address.")
	}
	ip, err := netip.ParseAddr(*w.IP)
	for _, s := range ns.subnetsOf(network) {
		if err == nil && s.CIDR.Contains(ip) {
			return s, nil
		}
	}
	return Subnet{}, refuse(400, "InvalidIpForNetwork", "IP address %s is not a valid IP for any of the subnets on the specified network.", *w.IP)
}

// free returns the lowest free address of a subnet's allocation pool, which has all hosts but the gateway.
func (ps *ports) free(network string, s Subnet, with []FixedIP) (netip.Addr, bool) {
	end := last(s.CIDR)
	for ip := s.CIDR.Masked().Addr().Next(); s.CIDR.Contains(ip) && (ip.Is6() || ip != end); ip = ip.Next() {
		if ip != s.Gateway && !ps.taken(network, ip, with) {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

func (ps *ports) taken(network string, ip netip.Addr, with []FixedIP) bool {
	return ps.ips[place{network, ip}] > 0 || slices.ContainsFunc(with, func(f FixedIP) bool { return f.IP == ip })
}

func (ns *networks) subnetsOf(network string) (out []Subnet) {
	for _, s := range ns.subnets {
		if s.Network == network {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Subnet) int { return a.CIDR.Addr().Compare(b.CIDR.Addr()) })
	return out
}

// last returns the last address of a prefix: the broadcast address of an IPv4 subnet.
func last(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(bytes)*8; i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	ip, _ := netip.AddrFromSlice(bytes)
	return ip
}

// noAddresses is Neutron's error for a full subnet. It names the network even if the request names the
// subnet.
func noAddresses(network string) *refusal {
	return refuse(409, "IpAddressGenerationFailure", "No more IP addresses available on network %s.", network)
}
