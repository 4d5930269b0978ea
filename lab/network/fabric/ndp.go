package fabric

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ARP needs no list: the kernel answers for any address that it has a route
// to by another link (proxy_arp). For NDP it wants each address of each link
// named: the subnet's router and every other ENI's addresses in the subnet.
// Prefixes are not answered for; a VPC routes them (RFC 4389 proxies cannot either).

// answerNDP makes a new ENI's link answer for what is there already.
func (f *Fabric) answerNDP(p *plugged) error {
	s, err := f.subnet(p.eni)
	if err != nil || !s.IPv6.IsValid() {
		return err
	}
	if err := f.setProxy(p, RouterOf(s.IPv6), true); err != nil {
		return err
	}
	for _, id := range f.attached() {
		other := f.enis[id]
		if other.eni.SubnetID != p.eni.SubnetID {
			continue
		}
		for _, a := range other.eni.IPv6 {
			if err := f.setProxy(p, a, true); err != nil {
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
		if err := f.setProxy(other, dst.Addr(), on); err != nil {
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

func (f *Fabric) setProxy(p *plugged, a netip.Addr, on bool) error {
	// Permanent, as the kernel forgets others when the node sets its end of the link down.
	n := &netlink.Neigh{LinkIndex: p.idx, Family: unix.AF_INET6, Flags: netlink.NTF_PROXY, State: netlink.NUD_PERMANENT, IP: a.AsSlice()}
	var err error
	if on {
		err = f.rt.NeighSet(n)
	} else if err = f.rt.NeighDel(n); errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("answer for %s on %s: %w", a, p.link, err)
	}
	return nil
}
