package ec2

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/berthnet/berth/internal/lab/cloud/vpc"
)

// associated are the values of associations of CIDR blocks, by one of their fields.
func associated[T any](f func(*T) []associationXML, field func(associationXML) string) values[T] {
	return func(v *T) []string { return each(f(v), field) }
}

func associationID(a associationXML) string { return a.ID }

func associationState(a associationXML) string { return a.State + a.StateV6 } // either has one family

// subnetFilters are the filters of DescribeSubnets.
func (n names) subnetFilters() filterTable[vpc.Subnet] {
	ipv6 := func(s *vpc.Subnet) []associationXML { return n.subnet(s).IPv6 }
	t := filterTable[vpc.Subnet]{
		"availability-zone":          text(func(s *vpc.Subnet) string { return s.Zone }),
		"availability-zone-id":       text(func(s *vpc.Subnet) string { return n.zones[s.Zone] }),
		"available-ip-address-count": number(func(s *vpc.Subnet) int { return s.Free }),
		"cidr-block":                 text(func(s *vpc.Subnet) string { return s.CIDR.String() }),
		"default-for-az":             same[vpc.Subnet]("false"),
		"enable-dns64":               same[vpc.Subnet]("false"),
		"ipv6-native":                same[vpc.Subnet]("false"),
		"map-public-ip-on-launch":    flag(func(s *vpc.Subnet) bool { return s.Public }),
		"owner-id":                   same[vpc.Subnet](n.account),
		"state":                      same[vpc.Subnet]("available"),
		"subnet-arn":                 text(func(s *vpc.Subnet) string { return n.subnet(s).ARN }),
		"subnet-id":                  text(func(s *vpc.Subnet) string { return s.ID }),
		"vpc-id":                     text(func(s *vpc.Subnet) string { return s.VPCID }),

		"ipv6-cidr-block-association.association-id":  associated(ipv6, associationID),
		"ipv6-cidr-block-association.ipv6-cidr-block": associated(ipv6, func(a associationXML) string { return a.CIDRv6 }),
		"ipv6-cidr-block-association.state":           associated(ipv6, associationState),

		"map-customer-owned-ip-on-launch":                                         same[vpc.Subnet]("false"),
		"private-dns-name-options-on-launch.hostname-type":                        same[vpc.Subnet]("ip-name"),
		"private-dns-name-options-on-launch.enable-resource-name-dns-a-record":    same[vpc.Subnet]("false"),
		"private-dns-name-options-on-launch.enable-resource-name-dns-aaaa-record": same[vpc.Subnet]("false"),
	}
	t.alias("availabilityZone", "availability-zone", "availabilityZoneId", "availability-zone-id", "cidr", "cidr-block", "cidrBlock", "cidr-block",
		"defaultForAz", "default-for-az")
	return t.absent("customer-owned-ipv4-pool", "enable-lni-at-device-index", "outpost-arn")
}

// vpcFilters are the filters of DescribeVpcs.
func (n names) vpcFilters() filterTable[vpc.VPC] {
	ipv4 := func(v *vpc.VPC) []associationXML { return associations(v.ID, v.CIDRs) }
	ipv6 := func(v *vpc.VPC) []associationXML { return associations(v.ID, v.IPv6CIDRs) }
	t := filterTable[vpc.VPC]{
		"cidr":       text(func(v *vpc.VPC) string { return v.CIDRs[0].String() }),
		"is-default": same[vpc.VPC]("false"),
		"owner-id":   same[vpc.VPC](n.account),
		"state":      same[vpc.VPC]("available"),
		"vpc-id":     text(func(v *vpc.VPC) string { return v.ID }),

		"cidr-block-association.association-id":       associated(ipv4, associationID),
		"cidr-block-association.cidr-block":           associated(ipv4, func(a associationXML) string { return a.CIDR }),
		"cidr-block-association.state":                associated(ipv4, associationState),
		"ipv6-cidr-block-association.association-id":  associated(ipv6, associationID),
		"ipv6-cidr-block-association.ipv6-cidr-block": associated(ipv6, func(a associationXML) string { return a.CIDRv6 }),
		"ipv6-cidr-block-association.state":           associated(ipv6, associationState),
	}
	t.alias("cidr-block", "cidr", "cidrBlock", "cidr", "isDefault", "is-default")
	return t.absent("dhcp-options-id", "ipv6-cidr-block-association.ipv6-pool")
}

// tableFilters are the filters of DescribeRouteTables.
func (n names) tableFilters() filterTable[vpc.RouteTable] {
	routes := func(f func(routeXML) string) values[vpc.RouteTable] {
		return func(t *vpc.RouteTable) []string { return filled(each(n.table(t).Routes, f)) }
	}
	of := func(f func(tableAssociationXML) string) values[vpc.RouteTable] {
		return func(t *vpc.RouteTable) []string { return filled(each(n.table(t).Associations, f)) }
	}
	t := filterTable[vpc.RouteTable]{
		"association.main":                       of(func(a tableAssociationXML) string { return strconv.FormatBool(a.Main) }),
		"association.route-table-association-id": of(func(a tableAssociationXML) string { return a.ID }),
		"association.route-table-id":             of(func(a tableAssociationXML) string { return a.TableID }),
		"association.subnet-id":                  of(func(a tableAssociationXML) string { return a.SubnetID }),
		"owner-id":                               same[vpc.RouteTable](n.account),
		"route-table-id":                         text(func(t *vpc.RouteTable) string { return t.ID }),
		"route.destination-cidr-block":           routes(func(r routeXML) string { return r.CIDR }),
		"route.destination-ipv6-cidr-block":      routes(func(r routeXML) string { return r.IPv6 }),
		"route.gateway-id":                       routes(func(r routeXML) string { return r.Gateway }),
		"route.origin":                           routes(func(r routeXML) string { return r.Origin }),
		"route.state":                            routes(func(r routeXML) string { return r.State }),
		"vpc-id":                                 text(func(t *vpc.RouteTable) string { return t.VPCID }),
	}
	return t.absent(
		"association.gateway-id", "route.destination-prefix-list-id", "route.egress-only-internet-gateway-id", "route.instance-id",
		"route.nat-gateway-id", "route.transit-gateway-id", "route.vpc-peering-connection-id",
	)
}

// filled are the values that are not empty.
func filled(list []string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}

// groupFilters are the filters of DescribeSecurityGroups.
func (n names) groupFilters() filterTable[vpc.SecurityGroup] {
	t := filterTable[vpc.SecurityGroup]{
		"description": text(func(g *vpc.SecurityGroup) string { return g.Description }),
		"group-id":    text(func(g *vpc.SecurityGroup) string { return g.ID }),
		"group-name":  text(func(g *vpc.SecurityGroup) string { return g.Name }),
		"owner-id":    same[vpc.SecurityGroup](n.account),
		"vpc-id":      text(func(g *vpc.SecurityGroup) string { return g.VPCID }),
	}
	for prefix, rules := range map[string]func(*vpc.SecurityGroup) []vpc.Rule{
		"ip-permission.":        func(g *vpc.SecurityGroup) []vpc.Rule { return g.Ingress },
		"egress.ip-permission.": func(g *vpc.SecurityGroup) []vpc.Rule { return g.Egress },
	} {
		for name, f := range n.ruleFilters() {
			t[prefix+name] = func(g *vpc.SecurityGroup) (out []string) {
				for _, r := range rules(g) {
					out = append(out, f(&r)...)
				}
				return out
			}
		}
	}
	return t
}

// ruleFilters are the filters about a rule of a security group.
func (n names) ruleFilters() filterTable[vpc.Rule] {
	cidrs := func(is4 bool) values[vpc.Rule] {
		return func(r *vpc.Rule) []string {
			return filled(each(r.CIDRs, func(p netip.Prefix) string {
				if p.Addr().Is4() != is4 {
					return ""
				}
				return p.String()
			}))
		}
	}
	port := func(f func(*vpc.Rule) int) values[vpc.Rule] {
		return text(func(r *vpc.Rule) string {
			if r.Protocol == "-1" {
				return ""
			}
			return strconv.Itoa(f(r))
		})
	}
	t := filterTable[vpc.Rule]{
		"cidr":       cidrs(true),
		"from-port":  port(func(r *vpc.Rule) int { return r.FromPort }),
		"group-id":   func(r *vpc.Rule) []string { return r.Groups },
		"group-name": func(r *vpc.Rule) []string { return each(r.Groups, func(id string) string { return n.groups[id] }) },
		"ipv6-cidr":  cidrs(false),
		"protocol":   text(func(r *vpc.Rule) string { return r.Protocol }),
		"to-port":    port(func(r *vpc.Rule) int { return r.ToPort }),
		"user-id":    func(r *vpc.Rule) []string { return each(r.Groups, func(string) string { return n.account }) },
	}
	return t.absent("prefix-list-id")
}
