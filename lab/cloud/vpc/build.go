package vpc

import (
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// names resolves the spec's names to IDs while the cloud is built and when
// the lab launches instances later.
func (c *Cloud) subnetNamed(name string) *Subnet {
	for _, s := range c.subnets.all() {
		if s.Name == name || s.ID == name {
			return s
		}
	}
	return nil
}

func (c *Cloud) groupsNamed(vpcID string, names []string) []string {
	if len(names) == 0 {
		names = []string{"default"}
	}
	var ids []string
	for _, n := range names {
		for _, g := range c.groups.all() {
			if g.VPCID == vpcID && (g.Name == n || g.ID == n) {
				ids = append(ids, g.ID)
			}
		}
	}
	return ids
}

// build fills the books from the spec. Everything it makes has always been
// there, so that no lag hides it; its delays are none.
func (c *Cloud) build() error {
	for _, v := range c.spec.VPCs {
		c.buildVPC(v)
	}
	for _, in := range c.spec.Instances {
		if _, err := c.launchSpec(in); err != nil {
			return fmt.Errorf("instance %s: %w", in.Name, err)
		}
	}
	for id, vs := range c.enis.rows {
		c.enis.rows[id] = []version[ENI]{{time.Time{}, vs[len(vs)-1].value}}
	}
	for id, vs := range c.instances.rows {
		c.instances.rows[id] = []version[Instance]{{time.Time{}, vs[len(vs)-1].value}}
	}
	for id, vs := range c.subnets.rows {
		c.subnets.rows[id] = []version[Subnet]{{time.Time{}, vs[len(vs)-1].value}}
	}
	c.queue = nil
	c.delays = c.spec.Delays
	return nil
}

func (c *Cloud) orNewID(id, prefix string) string {
	if id != "" {
		return id
	}
	return c.newID(prefix)
}

func named(name string, tags map[string]string) Tags {
	t := Tags{"Name": name}
	maps.Copy(t, tags)
	return t
}

func (c *Cloud) buildVPC(s spec.VPC) {
	id := c.orNewID(s.ID, "vpc")
	c.vpcs.put(id, &VPC{ID: id, Name: s.Name, CIDRs: s.CIDRs, IPv6CIDRs: s.IPv6, Tags: named(s.Name, s.Tags)}, time.Time{}, 0)
	for _, n := range s.Subnets {
		c.buildSubnet(id, n)
	}
	c.buildGroups(id, s)
	c.buildRoutes(id, s)
}

func (c *Cloud) buildSubnet(vpcID string, n spec.Subnet) {
	s := &Subnet{
		ID: c.orNewID(n.ID, "subnet"), Name: n.Name, VPCID: vpcID, Zone: n.Zone, CIDR: n.CIDR, IPv6: n.IPv6, AssignIPv6: n.AssignIPv6 || n.IPv6Native,
		Public: n.Public, Tags: named(n.Name, n.Tags),
	}
	if !s.IPv6Native() {
		c.space4[s.ID] = newSpace4(n.CIDR)
		s.Free = c.space4[s.ID].free
	}
	if n.IPv6.IsValid() {
		c.space6[s.ID] = newSpace6(n.IPv6)
	}
	c.subnets.put(s.ID, s, time.Time{}, 0)
}

// buildGroups makes the groups of a VPC, the one named default among them,
// which lets its members talk to each other (VPC User Guide, "Default security groups").
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
		ids[g.Name] = c.orNewID(g.ID, "sg")
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
		c.groups.put(ids[g.Name], &SecurityGroup{
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

// buildRoutes makes the main route table: the VPC's own blocks are local, the
// rest goes to an internet gateway, or IPv6 to an egress-only one.
func (c *Cloud) buildRoutes(vpcID string, s spec.VPC) {
	t := &RouteTable{ID: c.newID("rtb"), VPCID: vpcID, Main: true, Tags: Tags{}}
	for _, p := range append(s.CIDRs[:len(s.CIDRs):len(s.CIDRs)], s.IPv6...) {
		t.Routes = append(t.Routes, Route{p, "local"})
	}
	gateway := c.newID("igw")
	t.Routes = append(t.Routes, Route{netip.MustParsePrefix("0.0.0.0/0"), gateway})
	if s.EgressOnlyIPv6 {
		gateway = c.newID(egressOnlyGateway)
	}
	if len(s.IPv6) > 0 {
		t.Routes = append(t.Routes, Route{netip.MustParsePrefix("::/0"), gateway})
	}
	c.routes.put(t.ID, t, time.Time{}, 0)
}
