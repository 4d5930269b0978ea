package vpc

// There is no call of the API by which Berth could change security groups. Somebody else does,
// in the console or by other tools; these stand for them.

// AddSecurityGroup makes a group and returns its ID. That of g may be empty.
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

// Authorize adds rules to those by which a group lets packets in.
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
