package vpc

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Tags are a resource's tags by key.
type Tags map[string]string

// VPC is one virtual network.
type VPC struct {
	ID        string
	Name      string
	CIDRs     []netip.Prefix // the first is the primary block
	IPv6CIDRs []netip.Prefix
	Tags      Tags
}

// Subnet is one subnet, with the count that EC2 calls AvailableIpAddressCount.
type Subnet struct {
	ID    string
	Name  string
	VPCID string
	Zone  string
	CIDR  netip.Prefix // zero if the subnet is IPv6-only
	IPv6  netip.Prefix // zero without IPv6
	// AssignIPv6 means that a new ENI gets an IPv6 address by default.
	AssignIPv6 bool
	Free       int // free IPv4 addresses, without reserved ones
	Public     bool
	Tags       Tags
}

// IPv6Native reports whether it is an IPv6-only subnet, whose ENIs have no IPv4 address.
func (s Subnet) IPv6Native() bool { return !s.CIDR.IsValid() }

// SecurityGroup is a stateful filter of ENIs.
type SecurityGroup struct {
	ID          string
	Name        string
	Description string
	VPCID       string
	Ingress     []Rule
	Egress      []Rule
	Tags        Tags
}

// Rule allows traffic in one direction. Protocol is "-1" (everything), "tcp", "udp", "icmp", "icmpv6" or a
// number. The ports are inclusive; for ICMP they are type and code, -1 for any.
type Rule struct {
	Protocol         string
	FromPort, ToPort int
	CIDRs            []netip.Prefix
	Groups           []string // security group IDs
}

// RouteTable is a table of the VPC's router.
type RouteTable struct {
	ID      string
	VPCID   string
	Main    bool
	Subnets []string // explicitly associated
	Routes  []Route
	Tags    Tags
}

// Route sends a destination to a target: "local", an internet gateway, or for IPv6 an
// egress-only internet gateway.
type Route struct {
	Destination netip.Prefix
	Target      string
}

// egressOnlyGateway is the prefix of the IDs of egress-only internet gateways.
const egressOnlyGateway = "eigw"

// EgressOnly reports whether the target is an egress-only internet gateway, which allows outbound
// connections only (VPC User Guide, "Egress-only internet gateways").
func (r Route) EgressOnly() bool { return strings.HasPrefix(r.Target, egressOnlyGateway+"-") }

// InstanceState is the state of an instance.
type InstanceState string

// Instance states, as EC2 spells them.
const (
	Pending      InstanceState = "pending"
	Running      InstanceState = "running"
	ShuttingDown InstanceState = "shutting-down"
	Terminated   InstanceState = "terminated"
	Stopping     InstanceState = "stopping"
	Stopped      InstanceState = "stopped"
)

// Instance is a virtual machine. Its ENIs have attachments to it.
type Instance struct {
	ID            string
	Name          string // the tag Name at launch
	ReservationID string
	Type          string
	State         InstanceState
	VPCID         string
	SubnetID      string
	Zone          string
	Role          string // IAM role, "" for none
	ImageID       string
	ClientToken   string // of the call that launched it
	LaunchIndex   int    // index among the instances of that call
	Launched      time.Time
	Ended         time.Time // when it became terminated
	Tags          Tags
}

// AttachmentStatus is the status of an attachment.
type AttachmentStatus string

// Attachment states, as EC2 spells them.
const (
	Attaching AttachmentStatus = "attaching"
	Attached  AttachmentStatus = "attached"
	Detaching AttachmentStatus = "detaching"
	Detached  AttachmentStatus = "detached" // only in ENIDetached events
)

// Attachment is the attachment of an ENI to an instance.
type Attachment struct {
	ID                  string
	InstanceID          string
	DeviceIndex         int
	NetworkCard         int
	Status              AttachmentStatus
	LinkUp              bool // the link has appeared in the instance
	DeleteOnTermination bool
	Time                time.Time
}

// Primary reports whether it is the attachment of an instance's primary ENI: index 0 of card 0.
func (a *Attachment) Primary() bool { return a.DeviceIndex == 0 && a.NetworkCard == 0 }

// ENI is one elastic network interface.
type ENI struct {
	ID              string
	VPCID           string
	SubnetID        string
	Zone            string
	MAC             net.HardwareAddr
	Type            string // as created: "interface", "efa", "efa-only", "trunk"
	Description     string
	Primary         netip.Addr     // zero for the type "efa-only" and in IPv6-only subnets
	Secondary       []netip.Addr   // in order of assignment
	Prefixes        []netip.Prefix // IPv4 /28
	IPv6            []netip.Addr
	IPv6Prefixes    []netip.Prefix // /80
	Groups          []string       // security group IDs
	SourceDestCheck bool
	RequesterID     string // the key or role that created it
	Created         time.Time
	Tags            Tags
	Attachment      *Attachment  // nil unless attached
	Trunk           *Association // nil unless it is a branch
}

// available is the status of an unused ENI.
const available = "available"

// Status returns "in-use" while the ENI is attached or a branch, and "available" otherwise. The status of
// branches is not documented; the Amazon VPC resource controller relies on it to find lost branches.
func (e *ENI) Status() string {
	if e.Attachment == nil && e.Trunk == nil {
		return available
	}
	return "in-use"
}

// InterfaceType returns the ENI's type as EC2 describes it.
func (e *ENI) InterfaceType() string {
	if e.Trunk != nil {
		return branch
	}
	return e.Type
}

// Owns reports whether packets from and to addr belong to this ENI.
func (e *ENI) Owns(addr netip.Addr) bool {
	has := func(p netip.Prefix) bool { return p.Contains(addr) }
	return addr == e.Primary || slices.Contains(e.Secondary, addr) || slices.Contains(e.IPv6, addr) ||
		slices.ContainsFunc(e.Prefixes, has) || slices.ContainsFunc(e.IPv6Prefixes, has)
}

// IPv4 returns the ENI's IPv4 addresses, the primary one first.
func (e *ENI) IPv4() []netip.Addr {
	if !e.Primary.IsValid() {
		return nil
	}
	return append([]netip.Addr{e.Primary}, e.Secondary...)
}

// IPv6Native reports whether the ENI has only IPv6 addresses, as in IPv6-only subnets.
func (e *ENI) IPv6Native() bool { return !e.Primary.IsValid() && len(e.IPv6)+len(e.IPv6Prefixes) > 0 }

// Own returns the addresses that an operating system assigns to the link of a primary ENI: the primary IPv4
// address, if any, and the IPv6 addresses.
func (e *ENI) Own() []netip.Addr {
	var out []netip.Addr
	if e.Primary.IsValid() {
		out = append(out, e.Primary)
	}
	return append(out, e.IPv6...)
}

// slots4 returns the number of the type's IPv4 slots that the ENI uses.
func (e *ENI) slots4() int { return len(e.IPv4()) + len(e.Prefixes) }

// slots6 returns the number of the type's IPv6 slots that the ENI uses.
func (e *ENI) slots6() int { return len(e.IPv6) + len(e.IPv6Prefixes) }

// Clone returns a deep copy.
func (e ENI) Clone() ENI {
	e.MAC = slices.Clone(e.MAC)
	e.Secondary = slices.Clone(e.Secondary)
	e.Prefixes = slices.Clone(e.Prefixes)
	e.IPv6 = slices.Clone(e.IPv6)
	e.IPv6Prefixes = slices.Clone(e.IPv6Prefixes)
	e.Groups = slices.Clone(e.Groups)
	e.Tags = maps.Clone(e.Tags)
	if e.Attachment != nil {
		a := *e.Attachment
		e.Attachment = &a
	}
	if e.Trunk != nil {
		a := *e.Trunk
		e.Trunk = &a
	}
	return e
}

// Clone returns a deep copy.
func (i Instance) Clone() Instance { i.Tags = maps.Clone(i.Tags); return i }

// Clone returns a deep copy.
func (s Subnet) Clone() Subnet { s.Tags = maps.Clone(s.Tags); return s }

// Clone returns a deep copy.
func (v VPC) Clone() VPC {
	v.CIDRs, v.IPv6CIDRs = slices.Clone(v.CIDRs), slices.Clone(v.IPv6CIDRs)
	v.Tags = maps.Clone(v.Tags)
	return v
}

// Clone returns a deep copy.
func (g SecurityGroup) Clone() SecurityGroup {
	g.Ingress, g.Egress, g.Tags = cloneRules(g.Ingress), cloneRules(g.Egress), maps.Clone(g.Tags)
	return g
}

func cloneRules(in []Rule) []Rule {
	out := slices.Clone(in)
	for i := range out {
		out[i].CIDRs, out[i].Groups = slices.Clone(out[i].CIDRs), slices.Clone(out[i].Groups)
	}
	return out
}

// Clone returns a deep copy.
func (t RouteTable) Clone() RouteTable {
	t.Subnets, t.Routes, t.Tags = slices.Clone(t.Subnets), slices.Clone(t.Routes), maps.Clone(t.Tags)
	return t
}
