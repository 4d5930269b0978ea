package vpc

import (
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// build creates the resources of the spec without delays; readers that lag see them immediately.
func (c *Cloud) build() error {
	for _, v := range c.spec.VPCs {
		c.buildVPC(v)
	}
	for _, in := range c.spec.Instances {
		if _, err := c.Instances.launchSpec(in); err != nil {
			return fmt.Errorf("instance %s: %w", in.Name, err)
		}
	}
	for id, vs := range c.store.enis.rows {
		c.store.enis.rows[id] = []version[ENI]{{time.Time{}, vs[len(vs)-1].value}}
	}
	for id, vs := range c.store.instances.rows {
		c.store.instances.rows[id] = []version[Instance]{{time.Time{}, vs[len(vs)-1].value}}
	}
	for id, vs := range c.store.subnets.rows {
		c.store.subnets.rows[id] = []version[Subnet]{{time.Time{}, vs[len(vs)-1].value}}
	}
	c.world.events.queue = nil
	c.world.delays = c.spec.Delays
	return nil
}

func named(name string, tags map[string]string) Tags {
	t := Tags{"Name": name}
	maps.Copy(t, tags)
	return t
}

func (c *Cloud) buildVPC(s spec.VPC) {
	id := c.world.orNewID(s.ID, "vpc")
	c.store.vpcs.put(id, &VPC{ID: id, Name: s.Name, CIDRs: s.CIDRs, IPv6CIDRs: s.IPv6, Tags: named(s.Name, s.Tags)}, time.Time{}, 0)
	for _, n := range s.Subnets {
		c.buildSubnet(id, n)
	}
	c.buildGroups(id, s)
	c.buildRoutes(id, s)
}

func (c *Cloud) buildSubnet(vpcID string, n spec.Subnet) {
	s := &Subnet{
		ID: c.world.orNewID(n.ID, "subnet"), Name: n.Name, VPCID: vpcID, Zone: n.Zone, CIDR: n.CIDR, IPv6: n.IPv6, AssignIPv6: n.AssignIPv6 || n.IPv6Native,
		Public: n.Public, Tags: named(n.Name, n.Tags),
	}
	if !s.IPv6Native() {
		c.pools.v4[s.ID] = newSpace4(n.CIDR)
		s.Free = c.pools.v4[s.ID].free
	}
	if n.IPv6.IsValid() {
		c.pools.v6[s.ID] = newSpace6(n.IPv6)
	}
	c.store.subnets.put(s.ID, s, time.Time{}, 0)
}

// buildGroups creates the groups of a VPC, including the default group, whose members may communicate with
// each other (VPC User Guide, "Default security groups").
func (c *Cloud) buildGroups(vpcID string, s spec.VPC) {
	groups := s.SecurityGroups
	hasDefault := false
	for _, g := range groups {
		hasDefault = hasDefault || g.Name == "default"
	}
	if !hasDefault {
		groups = append(groups[:len(groups):len(groups)], spec.SecurityGroup{
			Name: "default", Description: "default VPC security group",
			Ingress: []spec.Rule{{Protocol: "-1", Groups: []string{"default"}}},
		})
	}
	ids := map[string]string{}
	for _, g := range groups {
		ids[g.Name] = c.world.orNewID(g.ID, "sg")
	}
	for _, g := range groups {
		egress := []Rule{{Protocol: "-1", CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}}
		if g.Egress != nil {
			egress = rules(*g.Egress, ids)
		}
		description := g.Description
		if description == "" {
			description = g.Name
		}
		c.store.groups.put(ids[g.Name], &SecurityGroup{
			ID: ids[g.Name], Name: g.Name, Description: description, VPCID: vpcID,
			Ingress: rules(g.Ingress, ids), Egress: egress, Tags: g.Tags,
		}, time.Time{}, 0)
	}
}

func rules(in []spec.Rule, ids map[string]string) []Rule {
	var out []Rule
	for _, r := range in {
		n := Rule{Protocol: r.Protocol, FromPort: r.FromPort, ToPort: r.ToPort, CIDRs: r.CIDRs}
		for _, g := range r.Groups {
			n.Groups = append(n.Groups, ids[g])
		}
		out = append(out, n)
	}
	return out
}

// buildRoutes creates the main route table: the VPC's own blocks are local, and everything else goes to an
// internet gateway or, for IPv6 if so specified, to an egress-only internet gateway.
func (c *Cloud) buildRoutes(vpcID string, s spec.VPC) {
	t := &RouteTable{ID: c.world.newID("rtb"), VPCID: vpcID, Main: true, Tags: Tags{}}
	for _, p := range append(s.CIDRs[:len(s.CIDRs):len(s.CIDRs)], s.IPv6...) {
		t.Routes = append(t.Routes, Route{p, "local"})
	}
	gateway := c.world.newID("igw")
	t.Routes = append(t.Routes, Route{netip.MustParsePrefix("0.0.0.0/0"), gateway})
	if s.EgressOnlyIPv6 {
		gateway = c.world.newID(egressOnlyGateway)
	}
	if len(s.IPv6) > 0 {
		t.Routes = append(t.Routes, Route{netip.MustParsePrefix("::/0"), gateway})
	}
	c.store.routes.put(t.ID, t, time.Time{}, 0)
}

// Berth does not change security groups. The following methods act for other tools.

// AddSecurityGroup creates a group and returns its ID. The ID of g may be empty.
func (c *Cloud) AddSecurityGroup(g SecurityGroup) (id string, err error) {
	err = c.world.change(func() error {
		if c.store.vpcs.get(g.VPCID) == nil {
			return Errorf("InvalidVpcID.NotFound", "The vpc ID '%s' does not exist", g.VPCID)
		}
		n := g.Clone()
		n.ID = c.world.orNewID(n.ID, "sg")
		if c.store.groups.get(n.ID) != nil {
			return Errorf("InvalidGroup.Duplicate", "The security group '%s' already exists", n.ID)
		}
		id = n.ID
		c.store.groups.put(id, &n, c.world.clock.Now(), c.store.keep())
		c.world.emit(RulesChanged, nil, nil)
		return nil
	})
	return id, err
}

// Authorize adds ingress rules to a group.
func (c *Cloud) Authorize(groupID string, rules ...Rule) error {
	return c.world.change(func() error {
		g := c.store.groups.get(groupID)
		if g == nil {
			return Errorf("InvalidGroup.NotFound", "The security group '%s' does not exist", groupID)
		}
		n := g.Clone()
		n.Ingress = append(n.Ingress, cloneRules(rules)...)
		c.store.groups.put(n.ID, &n, c.world.clock.Now(), c.store.keep())
		c.world.emit(RulesChanged, nil, nil)
		return nil
	})
}
