package alcorfake

import "net/netip"

// allocate chooses the addresses of a port and adds them to taken: the requested addresses or, without a
// request, one address of any subnet of the VPC.
func (a *api) allocate(network string, want *[]fixedIP, taken map[netip.Addr]bool) ([]FixedIP, *refusal) {
	if want == nil || len(*want) == 0 {
		for _, s := range a.networks.subnets {
			if s.Network == network {
				if ip, ok := a.ports.free(s, taken); ok {
					taken[ip] = true
					return []FixedIP{{s.ID, ip}}, nil
				}
			}
		}
		return nil, a.errFull()
	}
	var out []FixedIP
	for _, w := range *want {
		s, e := a.subnetFor(network, w)
		if e != nil {
			return nil, e
		}
		ip, e := a.address(s, w, taken)
		if e != nil {
			return nil, e
		}
		taken[ip] = true
		out = append(out, FixedIP{s.ID, ip})
	}
	return out, nil
}

// address returns the requested address of a subnet, or the first free one.
func (a *api) address(s Subnet, w fixedIP, taken map[netip.Addr]bool) (netip.Addr, *refusal) {
	if w.IP == nil {
		if ip, ok := a.ports.free(s, taken); ok {
			return ip, nil
		}
		return netip.Addr{}, a.errFull()
	}
	ip, _ := netip.ParseAddr(*w.IP) // validated before
	switch first, last := span(s.CIDR); {
	case !s.CIDR.Contains(ip) || ip.Less(first) || last.Less(ip):
		return ip, a.errOutside()
	case a.ports.ipTaken(s, ip, taken):
		return ip, a.errConflict()
	}
	return ip, nil
}

// subnetFor returns the subnet of a requested address.
func (a *api) subnetFor(network string, w fixedIP) (Subnet, *refusal) {
	if w.Subnet != nil {
		s, ok := a.networks.subnets[*w.Subnet] // Alcor does not compare the VPC
		if !ok {
			return s, errSubnet
		}
		return s, nil
	}
	ip, _ := netip.ParseAddr(*w.IP) // validated before
	for _, s := range a.networks.subnets {
		if s.Network == network && s.CIDR.Contains(ip) {
			return s, nil
		}
	}
	return Subnet{}, a.errOutside()
}

// free returns the first free address of a subnet.
func (ps *ports) free(s Subnet, taken map[netip.Addr]bool) (netip.Addr, bool) {
	ip, last := span(s.CIDR)
	for ; !last.Less(ip); ip = ip.Next() {
		if !ps.ipTaken(s, ip, taken) {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

// span returns the first and last address available to ports, which excludes the subnet address and the
// IPv4 broadcast address.
func span(p netip.Prefix) (first, last netip.Addr) {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ = netip.AddrFromSlice(b)
	if last.Is4() {
		last = last.Prev()
	}
	return p.Masked().Addr().Next(), last
}

func (ps *ports) ipTaken(s Subnet, ip netip.Addr, taken map[netip.Addr]bool) bool {
	if ip == s.Gateway || taken[ip] {
		return true
	}
	for _, p := range ps.byID {
		for _, f := range p.FixedIPs {
			if f.Subnet == s.ID && f.IP == ip {
				return true
			}
		}
	}
	return false
}
