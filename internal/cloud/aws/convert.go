package aws

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/cloud"
)

// The sizes of delegated prefixes (EC2 User Guide, "Prefix delegation").
const (
	prefixBits     = 28
	ipv6PrefixBits = 80
)

// reading collects the first thing in an answer that cannot be read, by the
// path of its field, so that the conversions read as plain assignments.
type reading struct {
	path string
	err  error
}

// in opens a part of the answer; its errors are named under it.
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

func (r *reading) ipv4(field string, s *string) netip.Addr {
	a, err := netip.ParseAddr(sdk.ToString(s))
	if err != nil || !a.Is4() {
		r.bad(field, sdk.ToString(s), "an IPv4 address")
		return netip.Addr{}
	}
	return a
}

func (r *reading) ipv6(field string, s *string) netip.Addr {
	a, err := netip.ParseAddr(sdk.ToString(s))
	if err != nil || !a.Is6() || a.Is4In6() || a.Zone() != "" {
		r.bad(field, sdk.ToString(s), "an IPv6 address")
		return netip.Addr{}
	}
	return a
}

func (r *reading) ipv4Prefix(field string, s *string) netip.Prefix {
	p, err := netip.ParsePrefix(sdk.ToString(s))
	if err != nil || !p.Addr().Is4() || p != p.Masked() {
		r.bad(field, sdk.ToString(s), "an IPv4 prefix without host bits")
		return netip.Prefix{}
	}
	return p
}

func (r *reading) ipv6Prefix(field string, s *string) netip.Prefix {
	p, err := netip.ParsePrefix(sdk.ToString(s))
	if err != nil || !p.Addr().Is6() || p.Addr().Is4In6() || p != p.Masked() {
		r.bad(field, sdk.ToString(s), "an IPv6 prefix without host bits")
		return netip.Prefix{}
	}
	return p
}

// delegated reads a prefix that is delegated to an ENI.
func (r *reading) delegated(field string, s *string) netip.Prefix {
	p := r.ipv4Prefix(field, s)
	if p.IsValid() && p.Bits() != prefixBits {
		r.bad(field, p.String(), fmt.Sprintf("a /%d", prefixBits))
	}
	return p
}

func (r *reading) delegatedIPv6(field string, s *string) netip.Prefix {
	p := r.ipv6Prefix(field, s)
	if p.IsValid() && p.Bits() != ipv6PrefixBits {
		r.bad(field, p.String(), fmt.Sprintf("a /%d", ipv6PrefixBits))
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

// eni reads an element of networkInterfaceSet.
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
	// People edit tags: one that cannot be read counts as absent.
	if t, err := time.Parse(time.RFC3339, e.Tags[cloud.TagCreatedAt]); err == nil {
		e.CreatedAt = t
	}
	for _, g := range n.Groups {
		e.Groups = append(e.Groups, r.text("groupId", g.GroupId))
	}
	if n.PrivateIpAddress != nil {
		e.Primary = r.ipv4("privateIpAddress", n.PrivateIpAddress)
	}
	for _, a := range n.PrivateIpAddresses {
		if !sdk.ToBool(a.Primary) {
			e.Addresses = append(e.Addresses, r.ipv4("privateIpAddressesSet", a.PrivateIpAddress))
		}
	}
	for _, p := range n.Ipv4Prefixes {
		e.Prefixes = append(e.Prefixes, r.delegated("ipv4PrefixSet", p.Ipv4Prefix))
	}
	for _, a := range n.Ipv6Addresses {
		e.IPv6 = append(e.IPv6, r.ipv6("ipv6AddressesSet", a.Ipv6Address))
	}
	for _, p := range n.Ipv6Prefixes {
		e.IPv6Prefixes = append(e.IPv6Prefixes, r.delegatedIPv6("ipv6PrefixSet", p.Ipv6Prefix))
	}
	if n.Attachment != nil {
		e.Attachment = r.attachment(n.Attachment)
	}
	return e
}

// attachment reads an ENI's attachment. Those that AWS services make have no
// instance.
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

// subnet reads an element of subnetSet. An IPv6-only subnet has no CIDR.
func (r *reading) subnet(s *types.Subnet) cloud.Subnet {
	defer r.in("subnetSet", sdk.ToString(s.SubnetId))()
	out := cloud.Subnet{
		ID:     r.text("subnetId", s.SubnetId),
		VPCID:  sdk.ToString(s.VpcId),
		Zone:   sdk.ToString(s.AvailabilityZone),
		Free:   r.number("availableIpAddressCount", s.AvailableIpAddressCount),
		Tags:   tagsOf(s.Tags),
		Public: sdk.ToBool(s.MapPublicIpOnLaunch),
	}
	if s.CidrBlock != nil {
		out.CIDR = r.ipv4Prefix("cidrBlock", s.CidrBlock)
		switch {
		case !out.CIDR.IsValid():
		case !isVPCBlock(out.CIDR): // as large or small as a VPC's
			r.bad("cidrBlock", out.CIDR.String(), "a size that a subnet can have")
		case out.Free > 1<<(32-out.CIDR.Bits()):
			r.bad("availableIpAddressCount", fmt.Sprint(out.Free), "no more than "+out.CIDR.String()+" has")
		}
	}
	for _, a := range s.Ipv6CidrBlockAssociationSet {
		if a.Ipv6CidrBlockState != nil && a.Ipv6CidrBlockState.State == types.SubnetCidrBlockStateCodeAssociated {
			out.IPv6 = append(out.IPv6, r.ipv6Prefix("ipv6CidrBlock", a.Ipv6CidrBlock))
		}
	}
	return out
}

// isVPCBlock tells whether a VPC can have a CIDR block: of IPv4 from /16 to /28, of
// IPv6 from /44 to /60 (VPC user guide, "VPC CIDR blocks"). A larger one would have
// pods reach the world beyond the VPC with addresses that are not translated.
func isVPCBlock(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Bits() >= 16 && p.Bits() <= 28
	}
	return p.Bits() >= 44 && p.Bits() <= 60
}

// vpcCIDRs reads the associated blocks of an element of vpcSet.
func (r *reading) vpcCIDRs(v *types.Vpc) []netip.Prefix {
	defer r.in("vpcSet", sdk.ToString(v.VpcId))()
	var out []netip.Prefix
	for _, a := range v.CidrBlockAssociationSet {
		if a.CidrBlockState != nil && a.CidrBlockState.State == types.VpcCidrBlockStateCodeAssociated {
			out = append(out, r.ipv4Prefix("cidrBlock", a.CidrBlock))
		}
	}
	for _, a := range v.Ipv6CidrBlockAssociationSet {
		if a.Ipv6CidrBlockState != nil && a.Ipv6CidrBlockState.State == types.VpcCidrBlockStateCodeAssociated {
			out = append(out, r.ipv6Prefix("ipv6CidrBlock", a.Ipv6CidrBlock))
		}
	}
	for _, p := range out {
		if p.IsValid() && !isVPCBlock(p) {
			r.bad("cidrBlock", p.String(), "a size that a VPC can have")
		}
	}
	return out
}

// instance reads an element of instancesSet, without its ENIs: that answer
// does not have their tags. A terminated instance has lost its addresses.
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
		out.Primary = r.ipv4("privateIpAddress", i.PrivateIpAddress)
	}
	return out
}

// maxLimit is more than any limit of an instance type: the largest known is 64
// (package limits).
const maxLimit = 1024

// some is number for what there is little of.
func (r *reading) some(field string, n *int32) int {
	if sdk.ToInt32(n) > maxLimit {
		r.bad(field, fmt.Sprint(*n), fmt.Sprintf("at most %d", maxLimit))
	}
	return r.number(field, n)
}

// limits reads an element of instanceTypeSet.
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
