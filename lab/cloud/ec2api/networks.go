package ec2api

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/berthnet/berth/lab/cloud/vpc"
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
	CIDR      string           `xml:"cidrBlock,omitempty"`
	IPv6      []associationXML `xml:"ipv6CidrBlockAssociationSet>item"`
	Native    bool             `xml:"ipv6Native"`
	AutoIPv6  bool             `xml:"assignIpv6AddressOnCreation"`
	Free      int              `xml:"availableIpAddressCount"`
	Zone      string           `xml:"availabilityZone"`
	ZoneID    string           `xml:"availabilityZoneId"`
	Default   bool             `xml:"defaultForAz"`
	PublicIPs bool             `xml:"mapPublicIpOnLaunch"`
	Tags      []tagXML         `xml:"tagSet>item"`

	HostnameType string `xml:"privateDnsNameOptionsOnLaunch>hostnameType"`
}

func describeSubnets(r *request) (any, error) {
	n := r.names()
	list, next, err := describe(r, "SubnetId", 1000, listed("subnet", r.cloud.Described().Subnets(), func(s *vpc.Subnet) string { return s.ID }),
		filtering(subnetFilters, n.subnet, func(x *vpc.Subnet) vpc.Tags { return x.Tags }))
	return struct {
		Subnets []subnetXML `xml:"subnetSet>item"`
		Next    string      `xml:"nextToken,omitempty"`
	}{each(list, n.subnet), next}, err
}

func (n names) subnet(s *vpc.Subnet) subnetXML {
	x := subnetXML{
		ID: s.ID, ARN: "arn:aws:ec2:" + n.region + ":" + n.account + ":subnet/" + s.ID, State: "available", OwnerID: n.account,
		VPCID: s.VPCID, Native: s.IPv6Native(), Free: s.Free, Zone: s.Zone, ZoneID: n.zones[s.Zone], PublicIPs: s.Public, Tags: tagSet(s.Tags),
		AutoIPv6: s.AssignIPv6, HostnameType: "ip-name",
	}
	if x.Native {
		x.HostnameType = "resource-name" // there is no IPv4 address to derive a name from (EC2 User Guide, "Instance hostnames")
	} else {
		x.CIDR = s.CIDR.String()
	}
	if s.IPv6.IsValid() {
		x.IPv6 = []associationXML{association(s.ID, 0, s.IPv6)}
	}
	return x
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
	n := r.names()
	list, next, err := describe(r, "VpcId", 1000, listed("vpc", r.cloud.Described().VPCs(), func(v *vpc.VPC) string { return v.ID }),
		filtering(vpcFilters, n.vpc, func(x *vpc.VPC) vpc.Tags { return x.Tags }))
	return struct {
		VPCs []vpcXML `xml:"vpcSet>item"`
		Next string   `xml:"nextToken,omitempty"`
	}{each(list, n.vpc), next}, err
}

func (n names) vpc(v *vpc.VPC) vpcXML {
	return vpcXML{
		ID: v.ID, OwnerID: n.account, State: "available", CIDR: v.CIDRs[0].String(), Tenancy: "default",
		CIDRs: associations(v.ID, v.CIDRs), IPv6: associations(v.ID, v.IPv6CIDRs), Tags: tagSet(v.Tags),
	}
}

type routeXML struct {
	CIDR    string `xml:"destinationCidrBlock,omitempty"`
	IPv6    string `xml:"destinationIpv6CidrBlock,omitempty"`
	Gateway string `xml:"gatewayId,omitempty"`
	Egress  string `xml:"egressOnlyInternetGatewayId,omitempty"`
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
	n := r.names()
	list, next, err := describe(r, "RouteTableId", 100, listed("rtb", r.cloud.Described().RouteTables(), func(t *vpc.RouteTable) string { return t.ID }),
		filtering(tableFilters, n.table, func(x *vpc.RouteTable) vpc.Tags { return x.Tags }))
	return struct {
		Tables []tableXML `xml:"routeTableSet>item"`
		Next   string     `xml:"nextToken,omitempty"`
	}{each(list, n.table), next}, err
}

func (n names) table(t *vpc.RouteTable) tableXML {
	x := tableXML{ID: t.ID, VPCID: t.VPCID, OwnerID: n.account, Tags: tagSet(t.Tags)}
	for _, r := range t.Routes {
		o := routeXML{Gateway: r.Target, State: "active", Origin: "CreateRoute"}
		if r.EgressOnly() {
			o.Gateway, o.Egress = "", r.Target
		}
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

type rangeXML struct {
	CIDR string `xml:"cidrIp"`
}

type range6XML struct {
	CIDR string `xml:"cidrIpv6"`
}

type pairXML struct {
	UserID  string `xml:"userId"`
	GroupID string `xml:"groupId"`
	Name    string `xml:"-" filter:"groupName"`
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
	list, next, err := listing(r, listed("sg", all, func(g *vpc.SecurityGroup) string { return g.ID }), ids, fs, p, filtering(groupFilters, n.group, func(x *vpc.SecurityGroup) vpc.Tags { return x.Tags }))
	return struct {
		Groups []securityGroupXML `xml:"securityGroupInfo>item"`
		Next   string             `xml:"nextToken,omitempty"`
	}{each(list, n.group), next}, err
}

func (n names) group(g *vpc.SecurityGroup) securityGroupXML {
	return securityGroupXML{g.ID, g.Name, g.Description, n.account, g.VPCID, n.permissions(g.Ingress), n.permissions(g.Egress), tagSet(g.Tags)}
}

func (n names) permissions(rules []vpc.Rule) []permissionXML {
	return each(rules, func(r vpc.Rule) permissionXML {
		x := permissionXML{Protocol: r.Protocol, Groups: each(r.Groups, func(id string) pairXML { return pairXML{n.account, id, n.groups[id]} })}
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

// zoneXML is one availability zone.
type zoneXML struct {
	Name    string `xml:"zoneName"`
	ID      string `xml:"zoneId"`
	State   string `xml:"zoneState"`
	Region  string `xml:"regionName"`
	Group   string `xml:"groupName"`
	Border  string `xml:"networkBorderGroup"`
	Type    string `xml:"zoneType"`
	OptedIn string `xml:"optInStatus"`
}

func describeZones(r *request) (any, error) {
	wanted, ids, fs := r.list("ZoneName"), r.list("ZoneId"), r.filters()
	_, _ = r.truth("AllAvailabilityZones") // there are no others
	if err := r.ready(); err != nil {
		return nil, err
	}
	zoneIDs := r.cloud.ZoneIDs()
	all := each(r.cloud.Zones(), func(z string) *zoneXML {
		return &zoneXML{z, zoneIDs[z], "available", r.cloud.Region(), r.cloud.Region(), r.cloud.Region(), "availability-zone", "opt-in-not-required"}
	})
	for _, w := range append(wanted, ids...) {
		if !slices.ContainsFunc(all, func(z *zoneXML) bool { return z.Name == w || z.ID == w }) {
			return nil, vpc.Errorf("InvalidParameterValue", "Invalid availability zone: [%s]", w)
		}
	}
	all = slices.DeleteFunc(all, func(z *zoneXML) bool {
		return len(wanted) > 0 && !slices.Contains(wanted, z.Name) || len(ids) > 0 && !slices.Contains(ids, z.ID)
	})
	list, err := apply(all, fs, filtering(zoneFilters, func(z *zoneXML) *zoneXML { return z }, nil))
	return struct {
		Zones []*zoneXML `xml:"availabilityZoneInfo>item"`
	}{list}, err
}
