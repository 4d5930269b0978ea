package kubectl

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/ec2subnets"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/planner"
)

// planned returns settings without what a scenario does not have.
func planned(e v1alpha1.ENISpec) v1alpha1.ENISpec {
	e.VPCID, e.AvailabilityZone, e.SecurityGroups, e.SecurityGroupTags = "", "", nil, nil
	return e
}

// nodeSubnets are the subnets of a node's ENIs, as far as its ENIs tell.
type nodeSubnets struct {
	primary string         // of the instance
	serving []string       // of all other ENIs
	held    map[string]int // IPv4 addresses of its ENIs, by subnet
}

// subnetsOfENIs returns the subnets of a node's ENIs.
func (o objects) subnetsOfENIs(name string) nodeSubnets {
	out := nodeSubnets{held: map[string]int{}}
	if i := slices.IndexFunc(o.networks, func(n v1alpha1.NodeNetwork) bool { return n.Name == name }); i >= 0 {
		n, first, subnetOf := &o.networks[i], int32(math.MaxInt32), map[string]string{}
		for id, e := range n.Status.ENI.ENIs {
			subnetOf[id] = e.SubnetID
			if e.PrimaryIPv4 != "" {
				out.held[e.SubnetID]++
			}
			if e.DeviceIndex > 0 {
				out.serving = append(out.serving, e.SubnetID)
			}
			if e.DeviceIndex < first {
				first, out.primary = e.DeviceIndex, e.SubnetID
			}
		}
		for text, a := range n.Spec.IPAM.Available {
			if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4() {
				out.held[subnetOf[a.Resource]] += ipam.PrefixAddresses
			} else if a4, err := netip.ParseAddr(text); err == nil && a4.Is4() {
				out.held[subnetOf[a.Resource]]++
			}
		}
		return out
	}
	if a, ok := o.answers[name]; ok && a.err == nil {
		out.held = a.held
		for _, e := range a.doc.ENIs {
			if e.Primary {
				out.primary = e.Subnet
			} else {
				out.serving = append(out.serving, e.Subnet)
			}
		}
	}
	return out
}

// heldByENIs returns the number of IPv4 addresses that a node's ENIs hold, by subnet: their primary addresses, delegated
// prefixes and other addresses. A document does not tell of a pod's address whether it is one of a prefix. If an ENI has
// prefixes without a free address, those are taken to be where it has most addresses.
func heldByENIs(doc introspect.Document) map[string]int {
	prefixes, others := map[string]map[netip.Prefix]bool{}, map[string]map[netip.Addr]bool{}
	for _, e := range doc.ENIs {
		prefixes[e.ID], others[e.ID] = map[netip.Prefix]bool{}, map[netip.Addr]bool{}
	}
	add := func(a netip.Addr, of introspect.Origin, prefix netip.Prefix) {
		if others[of.ENI] == nil || !a.Is4() {
			return
		}
		if prefix.IsValid() {
			prefixes[of.ENI][prefix] = true
		} else {
			others[of.ENI][a] = true
		}
	}
	for _, a := range doc.Available {
		add(a.Address, a.Origin, a.Prefix)
	}
	for _, a := range doc.Allocated {
		add(a.Address, a.Origin, netip.Prefix{})
	}
	for _, a := range doc.Cooling {
		add(a.Address, a.Origin, netip.Prefix{})
	}
	out := map[string]int{}
	for _, e := range doc.ENIs {
		sizes := map[netip.Prefix]int{} // addresses outside known prefixes, by what could be one
		for a := range others[e.ID] {
			if p, err := a.Prefix(28); err == nil && !prefixes[e.ID][p] {
				sizes[p]++
			}
		}
		each, full := slices.Sorted(maps.Values(sizes)), max(0, e.Prefixes-len(prefixes[e.ID]))
		out[e.Subnet] += 1 + e.Prefixes*ipam.PrefixAddresses
		for _, n := range each[:max(0, len(each)-full)] {
			out[e.Subnet] += n
		}
	}
	return out
}

// read returns the subnets that NodeNetworks, EC2 or flags tell about, by ID.
func (f planFlags) read(ctx context.Context, o objects, settings v1alpha1.ENISpec) (map[string]planner.Subnet, error) {
	out, held := map[string]planner.Subnet{}, map[string]int{}
	for i := range o.networks {
		for _, e := range o.networks[i].Status.ENI.ENIs {
			out[e.SubnetID] = planner.Subnet{Name: e.SubnetID, CIDR: e.SubnetCIDR, IPv6: len(e.SubnetIPv6CIDRs) > 0}
		}
	}
	for _, n := range o.nodes {
		enis := o.subnetsOfENIs(n.Name)
		for id, n := range enis.held {
			held[id] += n
		}
		for _, id := range append(enis.serving, enis.primary) {
			s := out[id]
			s.Name = id
			if id != "" && !f.ec2 && len(settings.SubnetTags) > 0 && slices.Contains(enis.serving, id) {
				s.Tags = settings.SubnetTags // they selected it
			}
			out[id] = s
		}
	}
	delete(out, "")
	if f.ec2 {
		if err := f.readEC2(ctx, out, held, settings); err != nil {
			return nil, err
		}
	}
	return out, addGiven(out, f.subnets)
}

// readEC2 adds what EC2 knows of the nodes' subnets, those of the settings, and those with the settings' tags.
func (f planFlags) readEC2(ctx context.Context, out map[string]planner.Subnet, held map[string]int, settings v1alpha1.ENISpec) error {
	ids := slices.Sorted(maps.Keys(out))
	for _, id := range settings.SubnetIDs {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	list, err := ec2subnets.Read(ctx, f.region, cloud.SubnetFilter{IDs: ids})
	if err != nil {
		return fmt.Errorf("--ec2: %w", err)
	}
	if len(settings.SubnetTags) > 0 && len(list) > 0 {
		tagged, err := ec2subnets.Read(ctx, f.region, cloud.SubnetFilter{VPCID: list[0].VPCID, Tags: settings.SubnetTags})
		if err != nil {
			return fmt.Errorf("--ec2: %w", err)
		}
		list = append(list, tagged...)
	}
	for _, s := range list {
		n := planner.Subnet{Name: s.ID, IPv6: len(s.IPv6) > 0, Zone: s.Zone}
		if s.CIDR.IsValid() {
			n.CIDR = s.CIDR.String()
			n.Used = max(0, 1<<(32-s.CIDR.Bits())-planner.Reserved-s.Free-held[s.ID])
		}
		for key := range settings.SubnetTags {
			if value, ok := s.Tags[key]; ok {
				if n.Tags == nil {
					n.Tags = map[string]string{}
				}
				n.Tags[key] = value
			}
		}
		out[s.ID] = n
	}
	return nil
}

// addGiven adds the values of --subnet.
func addGiven(out map[string]planner.Subnet, given []string) error {
	for _, text := range given {
		parts := strings.Split(text, "=")
		if len(parts) < 2 || len(parts) > 3 {
			return fmt.Errorf("--subnet %s: expected ID=CIDR or ID=CIDR=USED", text)
		}
		s := out[parts[0]]
		if _, err := netip.ParsePrefix(parts[1]); err != nil {
			return fmt.Errorf("--subnet %s: %w", text, err)
		}
		s.Name, s.CIDR = parts[0], parts[1]
		if len(parts) == 3 {
			n, err := strconv.Atoi(parts[2])
			if err != nil || n < 0 {
				return fmt.Errorf("--subnet %s: %q: expected a number of addresses", text, parts[2])
			}
			s.Used = n
		}
		out[parts[0]] = s
	}
	return nil
}

// blockKnown reports a subnet whose block is not known.
func blockKnown(id string, s planner.Subnet) error {
	if s.CIDR == "" && !s.IPv6 {
		return fmt.Errorf("subnet %s: its block is not known here: add --subnet %s=CIDR, or --ec2", id, id)
	}
	return nil
}
