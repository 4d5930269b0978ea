package ec2

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/vpclab/vpc"
)

type associationXML struct {
	ID      string `xml:"associationId"`
	CIDR    string `xml:"cidrBlock,omitempty"`
	State   string `xml:"cidrBlockState>state,omitempty"`
	CIDRv6  string `xml:"ipv6CidrBlock,omitempty"`
	StateV6 string `xml:"ipv6CidrBlockState>state,omitempty"`
}

func association(id string, i int, p netip.Prefix) associationXML {
	id += "-" + strconv.Itoa(i)
	if p.Addr().Is4() {
		return associationXML{ID: "vpc-cidr-assoc-" + id, CIDR: p.String(), State: "associated"}
	}
	return associationXML{ID: "cidr6-assoc-" + id, CIDRv6: p.String(), StateV6: "associated"}
}

func associations(id string, ps []netip.Prefix) []associationXML {
	var out []associationXML
	for i, p := range ps {
		out = append(out, association(id, i, p))
	}
	return out
}

type subnetXML struct {
	ID        string           `xml:"subnetId"`
	ARN       string           `xml:"subnetArn"`
	State     string           `xml:"state"`
	OwnerID   string           `xml:"ownerId"`
	VPCID     string           `xml:"vpcId"`
	CIDR      string           `xml:"cidrBlock"`
	IPv6      []associationXML `xml:"ipv6CidrBlockAssociationSet>item"`
	Free      int              `xml:"availableIpAddressCount"`
	Zone      string           `xml:"availabilityZone"`
	Default   bool             `xml:"defaultForAz"`
	PublicIPs bool             `xml:"mapPublicIpOnLaunch"`
	Tags      []tagXML         `xml:"tagSet>item"`
}

func describeSubnets(r *request) (any, error) {
	ids, fs, p := r.list("SubnetId"), r.filters(), r.page("SubnetId", 1000)
	if err := r.ready(); err != nil {
		return nil, err
	}
	n := r.names()
	list, next, err := listing(r, listed("subnet", r.cloud.Described().Subnets(), func(s *vpc.Subnet) string { return s.ID }),
		ids, fs, p, n.subnetAttributes)
	return struct {
		Subnets []subnetXML `xml:"subnetSet>item"`
		Next    string      `xml:"nextToken,omitempty"`
	}{each(list, n.subnet), next}, err
}

func (n names) subnet(s *vpc.Subnet) subnetXML {
	x := subnetXML{
		ID: s.ID, ARN: "arn:aws:ec2:" + n.region + ":" + n.account + ":subnet/" + s.ID, State: "available", OwnerID: n.account,
		VPCID: s.VPCID, CIDR: s.CIDR.String(), Free: s.Free, Zone: s.Zone, PublicIPs: s.Public, Tags: tagSet(s.Tags),
	}
	if s.IPv6.IsValid() {
		x.IPv6 = []associationXML{association(s.ID, 0, s.IPv6)}
	}
	return x
}

func (n names) subnetAttributes(s *vpc.Subnet, name string) ([]string, bool) {
	switch name {
	case "subnet-id":
		return []string{s.ID}, true
	case "vpc-id":
		return []string{s.VPCID}, true
	case "availability-zone", "availabilityZone":
		return []string{s.Zone}, true
	case "available-ip-address-count":
		return []string{strconv.Itoa(s.Free)}, true
	case "cidr-block", "cidr", "cidrBlock":
		return []string{s.CIDR.String()}, true
	case "ipv6-cidr-block-association.ipv6-cidr-block":
		if !s.IPv6.IsValid() {
			return nil, true
		}
		return []string{s.IPv6.String()}, true
	case "owner-id":
		return []string{n.account}, true
	case "state":
		return []string{"available"}, true
	case "default-for-az", "defaultForAz":
		return boolean(false), true
	case "map-public-ip-on-launch":
		return boolean(s.Public), true
	}
	return tagAttributes(s.Tags, name)
}

type vpcXML struct {
	ID      string           `xml:"vpcId"`
	OwnerID string           `xml:"ownerId"`
	State   string           `xml:"state"`
	CIDR    string           `xml:"cidrBlock"`
	CIDRs   []associationXML `xml:"cidrBlockAssociationSet>item"`
	IPv6    []associationXML `xml:"ipv6CidrBlockAssociationSet>item"`
	Tenancy string           `xml:"instanceTenancy"`
	Default bool             `xml:"isDefault"`
	Tags    []tagXML         `xml:"tagSet>item"`
}

func describeVPCs(r *request) (any, error) {
	ids, fs, p := r.list("VpcId"), r.filters(), r.page("VpcId", 1000)
	if err := r.ready(); err != nil {
		return nil, err
	}
	n := r.names()
	list, next, err := listing(r, listed("vpc", r.cloud.Described().VPCs(), func(v *vpc.VPC) string { return v.ID }),
		ids, fs, p, n.vpcAttributes)
	return struct {
		VPCs []vpcXML `xml:"vpcSet>item"`
		Next string   `xml:"nextToken,omitempty"`
	}{each(list, func(v *vpc.VPC) vpcXML {
		return vpcXML{
			ID: v.ID, OwnerID: n.account, State: "available", CIDR: v.CIDRs[0].String(), Tenancy: "default",
			CIDRs: associations(v.ID, v.CIDRs), IPv6: associations(v.ID, v.IPv6CIDRs), Tags: tagSet(v.Tags),
		}
	}), next}, err
}

func (n names) vpcAttributes(v *vpc.VPC, name string) ([]string, bool) {
	switch name {
	case "vpc-id":
		return []string{v.ID}, true
	case "cidr", "cidr-block", "cidrBlock":
		if len(v.CIDRs) == 0 {
			return nil, true
		}
		return []string{v.CIDRs[0].String()}, true
	case "cidr-block-association.cidr-block":
		return each(v.CIDRs, netip.Prefix.String), true
	case "ipv6-cidr-block-association.ipv6-cidr-block":
		return each(v.IPv6CIDRs, netip.Prefix.String), true
	case "is-default", "isDefault":
		return boolean(false), true
	case "owner-id":
		return []string{n.account}, true
	case "state":
		return []string{"available"}, true
	}
	return tagAttributes(v.Tags, name)
}

type routeXML struct {
	CIDR    string `xml:"destinationCidrBlock,omitempty"`
	IPv6    string `xml:"destinationIpv6CidrBlock,omitempty"`
	Gateway string `xml:"gatewayId"`
	State   string `xml:"state"`
	Origin  string `xml:"origin"`
}

type tableAssociationXML struct {
	ID       string `xml:"routeTableAssociationId"`
	TableID  string `xml:"routeTableId"`
	SubnetID string `xml:"subnetId,omitempty"`
	Main     bool   `xml:"main"`
	State    string `xml:"associationState>state"`
}

type tableXML struct {
	ID           string                `xml:"routeTableId"`
	VPCID        string                `xml:"vpcId"`
	OwnerID      string                `xml:"ownerId"`
	Routes       []routeXML            `xml:"routeSet>item"`
	Associations []tableAssociationXML `xml:"associationSet>item"`
	Tags         []tagXML              `xml:"tagSet>item"`
}

func describeRouteTables(r *request) (any, error) {
	ids, fs, p := r.list("RouteTableId"), r.filters(), r.page("RouteTableId", 100)
	if err := r.ready(); err != nil {
		return nil, err
	}
	n := r.names()
	list, next, err := listing(r, listed("rtb", r.cloud.Described().RouteTables(), func(t *vpc.RouteTable) string { return t.ID }),
		ids, fs, p, n.tableAttributes)
	return struct {
		Tables []tableXML `xml:"routeTableSet>item"`
		Next   string     `xml:"nextToken,omitempty"`
	}{each(list, n.table), next}, err
}

func (n names) table(t *vpc.RouteTable) tableXML {
	x := tableXML{ID: t.ID, VPCID: t.VPCID, OwnerID: n.account, Tags: tagSet(t.Tags)}
	for _, r := range t.Routes {
		o := routeXML{Gateway: r.Target, State: "active", Origin: "CreateRoute"}
		if r.Target == "local" {
			o.Origin = "CreateRouteTable"
		}
		if r.Destination.Addr().Is4() {
			o.CIDR = r.Destination.String()
		} else {
			o.IPv6 = r.Destination.String()
		}
		x.Routes = append(x.Routes, o)
	}
	id := strings.TrimPrefix(t.ID, "rtb-")
	if t.Main {
		x.Associations = append(x.Associations, tableAssociationXML{ID: "rtbassoc-" + id, TableID: t.ID, Main: true, State: "associated"})
	}
	for _, s := range t.Subnets {
		x.Associations = append(x.Associations, tableAssociationXML{
			ID: "rtbassoc-" + strings.TrimPrefix(s, "subnet-"), TableID: t.ID, SubnetID: s, State: "associated",
		})
	}
	return x
}

func (n names) tableAttributes(t *vpc.RouteTable, name string) ([]string, bool) {
	switch name {
	case "route-table-id", "association.route-table-id":
		return []string{t.ID}, true
	case "vpc-id":
		return []string{t.VPCID}, true
	case "association.main":
		return boolean(t.Main), true
	case "association.subnet-id":
		return t.Subnets, true
	case "owner-id":
		return []string{n.account}, true
	case "route.gateway-id":
		return each(t.Routes, func(r vpc.Route) string { return r.Target }), true
	case "route.destination-cidr-block":
		return each(t.Routes, func(r vpc.Route) string { return r.Destination.String() }), true
	}
	return tagAttributes(t.Tags, name)
}

type rangeXML struct {
	CIDR string `xml:"cidrIp"`
}

type range6XML struct {
	CIDR string `xml:"cidrIpv6"`
}

type pairXML struct {
	UserID  string `xml:"userId"`
	GroupID string `xml:"groupId"`
}

type permissionXML struct {
	Protocol string      `xml:"ipProtocol"`
	From     *int        `xml:"fromPort"`
	To       *int        `xml:"toPort"`
	Groups   []pairXML   `xml:"groups>item"`
	Ranges   []rangeXML  `xml:"ipRanges>item"`
	Ranges6  []range6XML `xml:"ipv6Ranges>item"`
}

type securityGroupXML struct {
	ID          string          `xml:"groupId"`
	Name        string          `xml:"groupName"`
	Description string          `xml:"groupDescription"`
	OwnerID     string          `xml:"ownerId"`
	VPCID       string          `xml:"vpcId"`
	Ingress     []permissionXML `xml:"ipPermissions>item"`
	Egress      []permissionXML `xml:"ipPermissionsEgress>item"`
	Tags        []tagXML        `xml:"tagSet>item"`
}

func describeGroups(r *request) (any, error) {
	ids, wanted, fs, p := r.list("GroupId"), r.list("GroupName"), r.filters(), r.page("GroupId", 1000)
	if err := r.ready(); err != nil {
		return nil, err
	}
	n := r.names()
	all := r.cloud.Described().Groups()
	if len(wanted) > 0 {
		all = slices.DeleteFunc(all, func(g *vpc.SecurityGroup) bool { return !slices.Contains(wanted, g.Name) })
		if len(all) == 0 {
			return nil, vpc.Errorf("InvalidGroup.NotFound", "The security group '%s' does not exist", strings.Join(wanted, ", "))
		}
	}
	list, next, err := listing(r, listed("sg", all, func(g *vpc.SecurityGroup) string { return g.ID }), ids, fs, p, n.groupAttributes)
	return struct {
		Groups []securityGroupXML `xml:"securityGroupInfo>item"`
		Next   string             `xml:"nextToken,omitempty"`
	}{each(list, func(g *vpc.SecurityGroup) securityGroupXML {
		return securityGroupXML{g.ID, g.Name, g.Description, n.account, g.VPCID, n.permissions(g.Ingress), n.permissions(g.Egress), tagSet(g.Tags)}
	}), next}, err
}

func (n names) permissions(rules []vpc.Rule) []permissionXML {
	return each(rules, func(r vpc.Rule) permissionXML {
		x := permissionXML{Protocol: r.Protocol, Groups: each(r.Groups, func(id string) pairXML { return pairXML{n.account, id} })}
		if r.Protocol != "-1" {
			x.From, x.To = &r.FromPort, &r.ToPort
		}
		for _, c := range r.CIDRs {
			if c.Addr().Is4() {
				x.Ranges = append(x.Ranges, rangeXML{c.String()})
			} else {
				x.Ranges6 = append(x.Ranges6, range6XML{c.String()})
			}
		}
		return x
	})
}

func (n names) groupAttributes(g *vpc.SecurityGroup, name string) ([]string, bool) {
	switch name {
	case "group-id":
		return []string{g.ID}, true
	case "group-name":
		return []string{g.Name}, true
	case "description":
		return []string{g.Description}, true
	case "vpc-id":
		return []string{g.VPCID}, true
	case "owner-id":
		return []string{n.account}, true
	}
	return tagAttributes(g.Tags, name)
}
