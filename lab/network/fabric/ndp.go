package fabric

import (
	"net/netip"
)

// ARP needs no list: the kernel answers for any address that it has a route
// to by another link (proxy_arp). For NDP it wants each address of each link
// named: the subnet's router and every other ENI's addresses in the subnet.
// Prefixes are not answered for; a VPC routes them (RFC 4389 proxies cannot either).

// answerNDP makes a new ENI's link answer for existing addresses.
func (f *Fabric) answerNDP(p *plugged) error {
	s, err := f.opts.subnet(p.eni)
	if err != nil || !s.IPv6.IsValid() {
		return err
	}
	if err := f.router.setProxy(p, RouterOf(s.IPv6), true); err != nil {
		return err
	}
	for _, id := range f.attached() {
		other := f.enis[id]
		if other.eni.SubnetID != p.eni.SubnetID {
			continue
		}
		for _, a := range other.eni.IPv6 {
			if err := f.router.setProxy(p, a, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// proxyNDP makes the other links of the subnet answer for dst, or stop to.
func (f *Fabric) proxyNDP(p *plugged, dst netip.Prefix, on bool) error {
	if dst.Bits() != 128 {
		return nil
	}
	for _, id := range f.attached() {
		other := f.enis[id]
		if other == p || other.eni.SubnetID != p.eni.SubnetID {
			continue
		}
		if err := f.router.setProxy(other, dst.Addr(), on); err != nil {
			return err
		}
	}
	return nil
}

// forgetNDP makes no link answer for an ENI's addresses any more.
func (f *Fabric) forgetNDP(p *plugged) error {
	for _, a := range p.eni.IPv6 {
		if err := f.proxyNDP(p, netip.PrefixFrom(a, 128), false); err != nil {
			return err
		}
	}
	return nil
}
