package aws

import (
	"fmt"
	"net"
	"net/netip"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// family is an IP version with the size of its delegated prefixes (EC2 User Guide, "Prefix
// delegation").
type family struct {
	name      string
	bits      int
	delegated int
}

var (
	ipv4 = family{"IPv4", 32, 28}
	ipv6 = family{"IPv6", 128, 80}
)

// has reports whether an address belongs to the family. IPv4-mapped addresses and addresses with a zone do not.
func (f family) has(a netip.Addr) bool { return a.BitLen() == f.bits && !a.Is4In6() && a.Zone() == "" }

// addr parses an address; false if it does not belong to the family.
func (f family) addr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil || !f.has(a) {
		return netip.Addr{}, false
	}
	return a, true
}

// reading keeps the first error of decoding a reply, with the path of the field, so that conversions can
// be plain assignments.
type reading struct {
	path string
	err  error
}

// in adds an element to the path of errors, until the returned function is called.
func (r *reading) in(field, id string) func() {
	was := r.path
	r.path += field + "[" + id + "]."
	return func() { r.path = was }
}

func (r *reading) bad(field, value, expected string) {
	if r.err == nil {
		r.err = &badAnswer{fmt.Errorf("%s%s %q: expected %s", r.path, field, value, expected)}
	}
}

func (r *reading) text(field string, s *string) string {
	if s == nil || *s == "" {
		r.bad(field, "", "a value")
	}
	return sdk.ToString(s)
}

func (r *reading) number(field string, n *int32) int {
	switch {
	case n == nil:
		r.bad(field, "", "a number")
	case *n < 0:
		r.bad(field, fmt.Sprint(*n), "a number that is not negative")
	}
	return int(sdk.ToInt32(n))
}

func (r *reading) addr(f family, field string, s *string) netip.Addr {
	a, ok := f.addr(sdk.ToString(s))
	if !ok {
		r.bad(field, sdk.ToString(s), "an "+f.name+" address")
	}
	return a
}

func (r *reading) prefix(f family, field string, s *string) netip.Prefix {
	p, err := netip.ParsePrefix(sdk.ToString(s))
	if err != nil || !f.has(p.Addr()) || p != p.Masked() {
		r.bad(field, sdk.ToString(s), "an "+f.name+" prefix without host bits")
		return netip.Prefix{}
	}
	return p
}

// delegated parses a delegated prefix.
func (r *reading) delegated(f family, field string, s *string) netip.Prefix {
	p := r.prefix(f, field, s)
	if p.IsValid() && p.Bits() != f.delegated {
		r.bad(field, p.String(), fmt.Sprintf("a /%d", f.delegated))
	}
	return p
}

func (r *reading) mac(field string, s *string) net.HardwareAddr {
	if s == nil {
		return nil
	}
	m, err := net.ParseMAC(*s)
	if err != nil || len(m) != 6 {
		r.bad(field, *s, "a MAC address")
		return nil
	}
	return m
}

func tagsOf(tags []types.Tag) map[string]string {
	m := make(map[string]string, len(tags))
	for _, t := range tags {
		m[sdk.ToString(t.Key)] = sdk.ToString(t.Value)
	}
	return m
}

// eni decodes an element of networkInterfaceSet.
func (r *reading) eni(n *types.NetworkInterface) cloud.ENI {
	defer r.in("networkInterfaceSet", sdk.ToString(n.NetworkInterfaceId))()
	e := cloud.ENI{
		ID:          r.text("networkInterfaceId", n.NetworkInterfaceId),
		MAC:         r.mac("macAddress", n.MacAddress),
		Type:        cloud.InterfaceType(n.InterfaceType),
		Status:      string(n.Status),
		Description: sdk.ToString(n.Description),
		VPCID:       sdk.ToString(n.VpcId),
		SubnetID:    sdk.ToString(n.SubnetId),
		Zone:        sdk.ToString(n.AvailabilityZone),
		Tags:        tagsOf(n.TagSet),
	}
	for _, g := range n.Groups {
		e.Groups = append(e.Groups, r.text("groupId", g.GroupId))
	}
	if n.PrivateIpAddress != nil {
		e.Primary = r.addr(ipv4, "privateIpAddress", n.PrivateIpAddress)
	}
	for _, a := range n.PrivateIpAddresses {
		if !sdk.ToBool(a.Primary) {
			e.Addresses = append(e.Addresses, r.addr(ipv4, "privateIpAddressesSet", a.PrivateIpAddress))
		}
	}
	for _, p := range n.Ipv4Prefixes {
		e.Prefixes = append(e.Prefixes, r.delegated(ipv4, "ipv4PrefixSet", p.Ipv4Prefix))
	}
	if !e.Primary.IsValid() && len(e.Addresses)+len(e.Prefixes) > 0 {
		r.bad("privateIpAddress", "", "a value, because the ENI has further IPv4 addresses")
	}
	for _, a := range n.Ipv6Addresses {
		e.IPv6 = append(e.IPv6, r.addr(ipv6, "ipv6AddressesSet", a.Ipv6Address))
	}
	for _, p := range n.Ipv6Prefixes {
		e.IPv6Prefixes = append(e.IPv6Prefixes, r.delegated(ipv6, "ipv6PrefixSet", p.Ipv6Prefix))
	}
	if n.Attachment != nil {
		e.Attachment = r.attachment(n.Attachment)
	}
	return e
}

// attachment decodes an attachment. Attachments made by AWS services have no instance.
func (r *reading) attachment(a *types.NetworkInterfaceAttachment) *cloud.Attachment {
	out := &cloud.Attachment{
		ID:                  r.text("attachment.attachmentId", a.AttachmentId),
		InstanceID:          sdk.ToString(a.InstanceId),
		NetworkCard:         int(sdk.ToInt32(a.NetworkCardIndex)),
		Status:              string(a.Status),
		DeleteOnTermination: sdk.ToBool(a.DeleteOnTermination),
	}
	if out.InstanceID != "" {
		out.DeviceIndex = r.number("attachment.deviceIndex", a.DeviceIndex)
	}
	return out
}

// subnet decodes an element of subnetSet.
func (r *reading) subnet(s *types.Subnet) cloud.Subnet {
	defer r.in("subnetSet", sdk.ToString(s.SubnetId))()
	out := cloud.Subnet{
		ID:         r.text("subnetId", s.SubnetId),
		VPCID:      sdk.ToString(s.VpcId),
		Zone:       sdk.ToString(s.AvailabilityZone),
		Tags:       tagsOf(s.Tags),
		IPv6Native: sdk.ToBool(s.Ipv6Native),
	}
	r.subnetIPv4(s, &out)
	for _, a := range s.Ipv6CidrBlockAssociationSet {
		if a.Ipv6CidrBlockState != nil && a.Ipv6CidrBlockState.State == types.SubnetCidrBlockStateCodeAssociated {
			out.IPv6 = append(out.IPv6, r.prefix(ipv6, "ipv6CidrBlock", a.Ipv6CidrBlock))
		}
	}
	return out
}

// subnetIPv4 decodes the IPv4 block of a subnet and its free-address count. An IPv6-only subnet has
// no block, and a count of 0 or no count.
func (r *reading) subnetIPv4(s *types.Subnet, out *cloud.Subnet) {
	if out.IPv6Native {
		if sdk.ToString(s.CidrBlock) != "" || sdk.ToInt32(s.AvailableIpAddressCount) != 0 {
			r.bad("ipv6Native", fmt.Sprintf("true, with cidrBlock %q and availableIpAddressCount %d", sdk.ToString(s.CidrBlock), sdk.ToInt32(s.AvailableIpAddressCount)), "a subnet without IPv4")
		}
		return
	}
	out.Free = r.number("availableIpAddressCount", s.AvailableIpAddressCount)
	out.CIDR = r.prefix(ipv4, "cidrBlock", s.CidrBlock)
	switch {
	case !out.CIDR.IsValid():
	case !isVPCBlock(out.CIDR): // subnets have the same limits as VPCs
		r.bad("cidrBlock", out.CIDR.String(), "a size that a subnet can have")
	case out.Free > 1<<(32-out.CIDR.Bits()):
		r.bad("availableIpAddressCount", fmt.Sprint(out.Free), "at most the size of "+out.CIDR.String())
	}
}

// instance decodes an element of instancesSet without its ENIs, which lack tags in this reply. A terminated
// instance has no addresses.
func (r *reading) instance(i *types.Instance) cloud.Instance {
	defer r.in("instancesSet", sdk.ToString(i.InstanceId))()
	out := cloud.Instance{
		ID:       r.text("instanceId", i.InstanceId),
		Type:     string(i.InstanceType),
		VPCID:    sdk.ToString(i.VpcId),
		SubnetID: sdk.ToString(i.SubnetId),
		DNSName:  sdk.ToString(i.PrivateDnsName),
		Tags:     tagsOf(i.Tags),
	}
	if i.State == nil || i.State.Name == "" {
		r.bad("instanceState", "", "a state")
	} else {
		out.State = string(i.State.Name)
	}
	if i.Placement != nil {
		out.Zone = sdk.ToString(i.Placement.AvailabilityZone)
	}
	if i.PrivateIpAddress != nil {
		out.Primary = r.addr(ipv4, "privateIpAddress", i.PrivateIpAddress)
	}
	return out
}

// maxLimit exceeds the limits of all instance types; the highest known is 64 (package limits).
const maxLimit = 1024

// some is number with a maximum of maxLimit.
func (r *reading) some(field string, n *int32) int {
	if sdk.ToInt32(n) > maxLimit {
		r.bad(field, fmt.Sprint(*n), fmt.Sprintf("at most %d", maxLimit))
	}
	return r.number(field, n)
}

// limits decodes an element of instanceTypeSet.
func (r *reading) limits(t *types.InstanceTypeInfo) cloud.Limits {
	defer r.in("instanceTypeSet", string(t.InstanceType))()
	n := t.NetworkInfo
	if n == nil {
		r.bad("networkInfo", "", "a value")
		return cloud.Limits{}
	}
	l := cloud.Limits{
		IPv4PerENI: r.some("ipv4AddressesPerInterface", n.Ipv4AddressesPerInterface),
		Prefixes:   t.Hypervisor == types.InstanceTypeHypervisorNitro || sdk.ToBool(t.BareMetal),
	}
	if sdk.ToBool(n.Ipv6Supported) {
		l.IPv6PerENI = r.some("ipv6AddressesPerInterface", n.Ipv6AddressesPerInterface)
	}
	max := n.MaximumNetworkInterfaces
	for _, c := range n.NetworkCards {
		if sdk.ToInt32(c.NetworkCardIndex) == 0 && c.MaximumNetworkInterfaces != nil {
			max = c.MaximumNetworkInterfaces
		}
	}
	l.MaxENIs = r.some("maximumNetworkInterfaces", max)
	if l.MaxENIs == 0 || l.IPv4PerENI == 0 {
		r.bad("networkInfo", fmt.Sprintf("%d interfaces, %d addresses", l.MaxENIs, l.IPv4PerENI), "at least one of each")
	}
	return l
}

// routeTable decodes an element of routeTableSet.
func (r *reading) routeTable(t *types.RouteTable) cloud.RouteTable {
	defer r.in("routeTableSet", sdk.ToString(t.RouteTableId))()
	out := cloud.RouteTable{ID: r.text("routeTableId", t.RouteTableId)}
	for _, a := range t.Associations {
		if a.AssociationState != nil && a.AssociationState.State != types.RouteTableAssociationStateCodeAssociated {
			continue
		}
		out.Main = out.Main || sdk.ToBool(a.Main)
		if id := sdk.ToString(a.SubnetId); id != "" {
			out.Subnets = append(out.Subnets, id)
		}
	}
	return out
}
