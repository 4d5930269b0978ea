package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/network/fabric"
)

// completeFamilies checks IPFamilies, and adds IPv6 blocks to the spec if pods have IPv6. Errors name the field.
func (o Options) completeFamilies() (Options, error) {
	var err error
	if o.IPFamilies, err = ipfamily.Parse(string(o.IPFamilies)); err != nil {
		return o, fmt.Errorf("IP families: %w", err)
	}
	if !o.IPFamilies.Has(ipfamily.IPv6) && !o.IPv6Egress {
		return o, nil
	}
	asked := fmt.Sprintf("IP families %q", o.IPFamilies)
	if !o.IPFamilies.Has(ipfamily.IPv6) {
		asked = "egress of IPv6"
	}
	if !o.Mode.HasEC2() {
		return o, fmt.Errorf("%s: of modes %s and %s only; in %s mode the addresses that there are say it", asked, NodeMode, OperatorMode, o.Mode)
	}
	if o.Kubelets != nil && o.IPv6Egress {
		return o, errors.New("egress of IPv6: clusters with kubelets have IPv6 for pods or not at all: give IP families, or leave out kubelets")
	}
	s, err := WithIPv6(*o.Spec)
	if err != nil {
		return o, err
	}
	o.Spec = &s
	return o, nil
}

// HasIPv6 reports whether nodes have IPv6 addresses, and pods too unless only IPv6Egress is set.
func (o Options) HasIPv6() bool {
	return o.PodFamilies().Has(ipfamily.IPv6) || o.Mode.HasEC2() && o.IPv6Egress
}

// familyArgs are the flags of berthd for the pods' IP families, where they are not the default.
func (o Options) familyArgs() (args []string) {
	if !o.Mode.HasEC2() {
		return nil
	}
	if o.IPFamilies.Has(ipfamily.IPv6) {
		args = append(args, "--ip-families="+string(o.IPFamilies))
	}
	if o.IPv6Egress {
		args = append(args, "--enable-v6-egress")
	}
	return args
}

// The on-premises network by family, as security groups have it.
var onPremises4, onPremises6 = netip.MustParsePrefix("192.168.100.0/24"), netip.PrefixFrom(fabric.OnPremHost6, 64).Masked()

// WithIPv6 adds IPv6 to the VPCs of a spec that have none: a /56 of the documentation range (RFC 3849), and a /64 of
// it and AssignIpv6AddressOnCreation for each subnet, as EKS needs it. Security groups allow IPv6 where they allow
// IPv4 of the VPC, the on-premises network, or all. There may be 256 VPCs of 256 subnets.
func WithIPv6(s spec.Spec) (spec.Spec, error) {
	s.VPCs = slices.Clone(s.VPCs)
	for i := range s.VPCs {
		v := &s.VPCs[i]
		if len(v.IPv6) > 0 {
			continue
		}
		if i > 255 || len(v.Subnets) > 256 {
			return s, errors.New("IP families: there is IPv6 for 256 VPCs with 256 subnets each at most: give them blocks of IPv6 in the spec")
		}
		block := [16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 1, byte(i)}
		v.IPv6 = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom16(block), 56)}
		v.Subnets = slices.Clone(v.Subnets)
		for k := range v.Subnets {
			block[7] = byte(k)
			v.Subnets[k].IPv6, v.Subnets[k].AssignIPv6 = netip.PrefixFrom(netip.AddrFrom16(block), 64), true
		}
		v.SecurityGroups = slices.Clone(v.SecurityGroups)
		for k := range v.SecurityGroups {
			g := &v.SecurityGroups[k]
			g.Ingress = rulesWithIPv6(*v, g.Ingress)
			if g.Egress != nil {
				egress := rulesWithIPv6(*v, *g.Egress)
				g.Egress = &egress
			}
		}
	}
	return s, nil
}

// rulesWithIPv6 adds the IPv6 equivalents of rules.
func rulesWithIPv6(v spec.VPC, rules []spec.Rule) []spec.Rule {
	everything4, everything6 := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")
	rules = slices.Clone(rules)
	for i := range rules {
		var more []netip.Prefix
		for _, c := range rules[i].CIDRs {
			switch {
			case c == everything4:
				more = append(more, everything6)
			case c == onPremises4:
				more = append(more, onPremises6)
			case slices.Contains(v.CIDRs, c):
				more = append(more, v.IPv6...)
			}
		}
		slices.SortFunc(more, netip.Prefix.Compare)
		for _, c := range slices.Compact(more) {
			if !slices.Contains(rules[i].CIDRs, c) {
				rules[i].CIDRs = append(slices.Clone(rules[i].CIDRs), c)
			}
		}
	}
	return rules
}
