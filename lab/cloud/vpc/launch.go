package vpc

import (
	"cmp"
	"fmt"
	"maps"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// Launch launches an instance of a spec, and returns it.
func (is *Instances) Launch(s spec.Instance) (out Instance, err error) {
	err = is.world.change(func() error {
		i, err := is.launchSpec(s)
		if err == nil {
			out = i.Clone()
		}
		return err
	})
	return out, err
}

// launchSpec launches an instance with all its interfaces. The caller must hold the lock.
func (is *Instances) launchSpec(s spec.Instance) (*Instance, error) {
	if err := is.known(s); err != nil {
		return nil, err
	}
	subnet := is.store.subnetNamed(s.Subnet)
	i, err := is.launch(LaunchRequest{
		Name: s.Name, Type: s.Type, SubnetID: subnet.ID, Groups: is.store.groupsNamed(subnet.VPCID, s.SecurityGroups),
		Role: s.Role, ImageID: "ami-0000000000000001a", Primary: s.PrivateIP, Tags: named(s.Name, is.launchTags(s.Tags)), ENITags: is.launchTags(nil), id: s.ID,
		Addresses: AddressRequest{IPv4Count: s.Secondary, PrefixCount: s.Prefixes, IPv6Count: s.IPv6},
		Requester: is.account,
	}, is.world.newID("r"), 0)
	if err != nil {
		return nil, err
	}
	for _, e := range s.Interfaces {
		if err := is.launchInterface(i, subnet, s, e); err != nil {
			is.erase(i.ID)
			return nil, err
		}
	}
	is.world.after(is.world.delays.Launch.D(), func() { is.start(i.ID) })
	return is.store.instances.get(i.ID), nil
}

// launchTags adds tags to the tags of all instances of the spec.
func (is *Instances) launchTags(own map[string]string) Tags {
	tags := maps.Clone(Tags(is.tags))
	if tags == nil {
		return own
	}
	maps.Copy(tags, own)
	return tags
}

// known validates the names in the spec of an instance. The caller must hold the lock.
func (is *Instances) known(s spec.Instance) error {
	if _, ok := is.keys.roles[s.Role]; s.Role != "" && !ok {
		return fmt.Errorf("role: no role %q", s.Role)
	}
	for _, e := range append([]spec.Interface{{Subnet: s.Subnet, SecurityGroups: s.SecurityGroups}}, s.Interfaces...) {
		name := cmp.Or(e.Subnet, s.Subnet)
		subnet := is.store.subnetNamed(name)
		if subnet == nil {
			return fmt.Errorf("subnet: no subnet %q", name)
		}
		for _, g := range e.SecurityGroups {
			if len(is.store.groupsNamed(subnet.VPCID, []string{g})) == 0 {
				return fmt.Errorf("securityGroups: no security group %q in the VPC of subnet %s", g, name)
			}
		}
	}
	return nil
}

func (is *Instances) launchInterface(i *Instance, subnet *Subnet, s spec.Instance, e spec.Interface) error {
	if e.Subnet != "" {
		subnet = is.store.subnetNamed(e.Subnet)
	}
	if e.SecurityGroups == nil {
		e.SecurityGroups = s.SecurityGroups
	}
	eni, err := is.enis.create(CreateRequest{
		SubnetID: subnet.ID, Groups: is.store.groupsNamed(subnet.VPCID, e.SecurityGroups), Type: e.Type, Description: e.Description,
		Tags: e.Tags, Requester: is.account,
		Addresses: AddressRequest{IPv4Count: e.Secondary, PrefixCount: e.Prefixes, IPv6Count: e.IPv6},
	})
	if err != nil {
		return err
	}
	if err = is.attachments.mayAttach(eni, i, e.DeviceIndex, e.NetworkCard); err != nil {
		is.enis.delete(eni)
		return err
	}
	is.attachments.recordAttachment(i, eni, e.DeviceIndex, e.NetworkCard, Attached, e.DeleteOnTermination)
	return nil
}
