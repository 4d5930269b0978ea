package vpc

import (
	"cmp"
	"fmt"
	"maps"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// RunInstance launches an instance as the spec writes one, and returns it.
func (c *Cloud) RunInstance(s spec.Instance) (out Instance, err error) {
	err = c.change(func() error {
		i, err := c.launchSpec(s)
		if err == nil {
			out = i.Clone()
		}
		return err
	})
	return out, err
}

// launchSpec launches an instance with all its interfaces. The lock is held.
func (c *Cloud) launchSpec(s spec.Instance) (*Instance, error) {
	if err := c.known(s); err != nil {
		return nil, err
	}
	subnet := c.subnetNamed(s.Subnet)
	i, err := c.launch(LaunchRequest{
		Name: s.Name, Type: s.Type, SubnetID: subnet.ID, Groups: c.groupsNamed(subnet.VPCID, s.SecurityGroups),
		Role: s.Role, ImageID: "ami-0000000000000001a", Primary: s.PrivateIP, Tags: named(s.Name, c.launchTags(s.Tags)), ENITags: c.launchTags(nil), id: s.ID,
		Addresses: AddressRequest{IPv4Count: s.Secondary, PrefixCount: s.Prefixes, IPv6Count: s.IPv6},
		Requester: c.account,
	}, c.newID("r"), 0)
	if err != nil {
		return nil, err
	}
	for _, e := range s.Interfaces {
		if err := c.launchInterface(i, subnet, s, e); err != nil {
			c.erase(i.ID)
			return nil, err
		}
	}
	c.after(c.delays.Launch.D(), func() { c.start(i.ID) })
	return c.instances.get(i.ID), nil
}

// launchTags are tags beside those that every instance of a spec has.
func (c *Cloud) launchTags(own map[string]string) Tags {
	tags := maps.Clone(Tags(c.spec.LaunchTags))
	if tags == nil {
		return own
	}
	maps.Copy(tags, own)
	return tags
}

// known checks the names in an instance that is launched after the lab began.
// The lock is held.
func (c *Cloud) known(s spec.Instance) error {
	if _, ok := c.credentials.roles[s.Role]; s.Role != "" && !ok {
		return fmt.Errorf("role: no role %q", s.Role)
	}
	for _, e := range append([]spec.Interface{{Subnet: s.Subnet, SecurityGroups: s.SecurityGroups}}, s.Interfaces...) {
		name := cmp.Or(e.Subnet, s.Subnet)
		subnet := c.subnetNamed(name)
		if subnet == nil {
			return fmt.Errorf("subnet: no subnet %q", name)
		}
		for _, g := range e.SecurityGroups {
			if len(c.groupsNamed(subnet.VPCID, []string{g})) == 0 {
				return fmt.Errorf("securityGroups: no security group %q in the VPC of subnet %s", g, name)
			}
		}
	}
	return nil
}

func (c *Cloud) launchInterface(i *Instance, subnet *Subnet, s spec.Instance, e spec.Interface) error {
	if e.Subnet != "" {
		subnet = c.subnetNamed(e.Subnet)
	}
	if e.SecurityGroups == nil {
		e.SecurityGroups = s.SecurityGroups
	}
	eni, err := c.create(CreateRequest{
		SubnetID: subnet.ID, Groups: c.groupsNamed(subnet.VPCID, e.SecurityGroups), Type: e.Type, Description: e.Description,
		Tags: e.Tags, Requester: c.account,
		Addresses: AddressRequest{IPv4Count: e.Secondary, PrefixCount: e.Prefixes, IPv6Count: e.IPv6},
	})
	if err != nil {
		return err
	}
	if err = c.mayAttach(eni, i, e.DeviceIndex, e.NetworkCard); err != nil {
		c.delete(eni)
		return err
	}
	c.recordAttachment(i, eni, e.DeviceIndex, e.NetworkCard, Attached, e.DeleteOnTermination)
	return nil
}
