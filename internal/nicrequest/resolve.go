package nicrequest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/vpcport"
)

// Network is what the NICs in a VPC are checked against.
type Network struct {
	VPC     string
	Subnets []vpcport.Subnet
	Default []string // IDs or names of the subnets of a NIC that names none; empty: the provider chooses
	Lends   bool     // links of ports are an agent's, which must get them back unchanged
	Zones   bool     // a subnet is in one zone: the provider chooses one of Among
	Limits  Limits   // of the namespace of the NICs
}

// Resolve sets the IDs of the subnets of the NICs' addresses, adds addresses of the default subnets to NICs that ask for none, and
// returns errors for addresses that no NIC can have. It leaves NICs with existing ports and PodNICs as they are.
func Resolve(nics []NIC, net Network) ([]NIC, Errors) {
	var errs Errors
	out := slices.Clone(nics)
	holder := map[Address]int{}
	for i := range out {
		n := &out[i]
		net.checkBinding(n.Binding, field(n.Index, "binding"), &errs)
		if n.PortID != "" || n.Object != "" {
			continue
		}
		asked, names := n.Addresses, fieldNames(n.Addresses)
		if len(asked) == 0 {
			for _, s := range net.defaults(field(n.Index, ""), &errs) {
				asked, names = append(asked, Address{Subnet: s}), append(names, "")
			}
		}
		n.Addresses = nil
		for k, a := range asked {
			subnet, ok := net.find(a, field(n.Index, names[k]), &errs)
			if !ok {
				continue
			}
			a.Subnet = subnet.ID
			if why := refuses(subnet, a.IP); why != "" {
				errs.add(field(n.Index, names[k]), "%s %s", a.IP, why)
			} else if other, twice := holder[a]; twice && a.IP.IsValid() {
				errs.add(field(n.Index, names[k]), "%s is asked for by %s too", a.IP, field(other, ""))
			}
			holder[a] = n.Index
			n.Addresses = append(n.Addresses, a)
		}
		if len(n.Addresses) == 2 && !net.apart(n.Addresses[0], n.Addresses[1]) {
			errs.add(field(n.Index, names[1]), "is of the same family as the subnet before, expected one subnet of a family")
		}
	}
	return out, errs
}

// checkBinding checks that ports of the network can have a binding.
func (net Network) checkBinding(binding, at string, errs *Errors) {
	if net.Lends && binding == string(v1alpha1.BindingBridge) {
		errs.add(at, "is %s, expected %s in VPC %s, whose agent gets a port's link back as it was", binding, v1alpha1.BindingTap, net.VPC)
	}
}

// fieldNames are the keys of the annotation that addresses come from.
func fieldNames(list []Address) []string {
	names := make([]string, len(list))
	for i, a := range list {
		names[i] = "subnet"
		if a.IP.IsValid() {
			names[i] = "ip"
		}
		if len(list) > 1 {
			names[i] = fmt.Sprintf("addresses[%d].%s", i, names[i])
		}
	}
	return names
}

// find returns the subnet of an address.
func (net Network) find(a Address, at string, errs *Errors) (vpcport.Subnet, bool) {
	if a.Subnet == "" {
		i := slices.IndexFunc(net.Subnets, func(s vpcport.Subnet) bool { return s.CIDR.Contains(a.IP) || s.IPv6CIDR.Contains(a.IP) })
		if i < 0 {
			errs.add(at, "%s is in no subnet of VPC %s", a.IP, net.VPC)
			return vpcport.Subnet{}, false
		}
		return net.Subnets[i], true
	}
	if s, ok := net.subnet(a.Subnet); ok {
		return s, true
	}
	var named []vpcport.Subnet
	for _, s := range net.Subnets {
		if s.Name == a.Subnet {
			named = append(named, s)
		}
	}
	switch len(named) {
	case 1:
		return named[0], true
	case 0:
		errs.add(at, "VPC %s has no subnet %.80q", net.VPC, a.Subnet)
	default:
		errs.add(at, "VPC %s has %d subnets named %.80q, expected an ID such as %s", net.VPC, len(named), a.Subnet, named[0].ID)
	}
	return vpcport.Subnet{}, false
}

// subnet returns the subnet with an ID.
func (net Network) subnet(id string) (vpcport.Subnet, bool) {
	i := slices.IndexFunc(net.Subnets, func(s vpcport.Subnet) bool { return s.ID == id })
	if i < 0 {
		return vpcport.Subnet{}, false
	}
	return net.Subnets[i], true
}

// apart reports whether two resolved addresses may be of different IP families. An address of a dual-stack subnet may be of either,
// unless it is a certain one.
func (net Network) apart(a, b Address) bool {
	return len(net.families(a)) > 1 || len(net.families(b)) > 1 || net.families(a)[0] != net.families(b)[0]
}

// families are the IP families that a resolved address may be of.
func (net Network) families(a Address) []ipfamily.Family {
	s, _ := net.subnet(a.Subnet)
	switch {
	case a.IP.IsValid():
		return []ipfamily.Family{ipfamily.Of(a.IP)}
	case s.IPv6CIDR.IsValid():
		return ipfamily.Dual.Families()
	}
	return []ipfamily.Family{ipfamily.Of(s.CIDR.Addr())}
}

// label is the name of a subnet, or its ID if it has none.
func label(s vpcport.Subnet) string {
	if s.Name != "" {
		return s.Name
	}
	return s.ID
}

// refuses returns why no NIC can have an address; empty: one can, or there is no address. Neutron would give a port even the
// gateway's.
func refuses(s vpcport.Subnet, ip netip.Addr) string {
	cidr, gateway := s.For(ip)
	whole := cidr.Masked()
	switch {
	case !ip.IsValid():
		return ""
	case !whole.Contains(ip):
		return fmt.Sprintf("is not in subnet %s (%s)", label(s), whole)
	case ip == gateway:
		return fmt.Sprintf("is the gateway of subnet %s (%s)", label(s), whole)
	case whole.Bits() >= ip.BitLen()-1: // RFC 3021, RFC 6164: hosts may have both addresses
		return ""
	case ip == whole.Addr():
		return fmt.Sprintf("is the address of subnet %s (%s) itself", label(s), whole)
	case ip.Is4() && ip == last(whole):
		return fmt.Sprintf("is the broadcast address of subnet %s (%s)", label(s), whole)
	}
	return ""
}

// last is the last address of an IPv4 prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(b)
}
