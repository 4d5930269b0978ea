// Package cloud is Berth's model of the cloud: network interfaces, subnets and instances, the calls that
// Berth makes, and the classes of their errors. It depends on neither an SDK nor Kubernetes; cloud/aws
// implements it for EC2.
package cloud

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// InterfaceType is the type of an ENI as EC2 spells it (EC2 API, NetworkInterface.InterfaceType).
// Berth never uses ENIs of types other than those below.
type InterfaceType string

// The types that Berth uses.
const (
	InterfaceOrdinary InterfaceType = "interface"
	// InterfaceTrunk is an ENI whose link carries the traffic of its branches as VLANs.
	InterfaceTrunk InterfaceType = "trunk"
	// InterfaceBranch is the type of an ordinary ENI while it is associated with a trunk. Meanwhile it has no
	// attachment, and its status is "in-use".
	InterfaceBranch InterfaceType = "branch"
)

// ENI is an elastic network interface as the cloud described it at one moment. Its slices are in the
// cloud's order and belong to the receiver.
type ENI struct {
	ID          string
	MAC         net.HardwareAddr
	Type        InterfaceType
	Status      string // "available" when detached, "in-use" when attached, attaching or a branch
	Description string
	VPCID       string
	SubnetID    string
	Zone        string
	Groups      []string // security group IDs
	Tags        map[string]string

	Primary      netip.Addr     // primary private IPv4 address; none in an IPv6-only subnet
	Addresses    []netip.Addr   // secondary private IPv4 addresses, without the primary one
	Prefixes     []netip.Prefix // delegated IPv4 /28 prefixes
	IPv6         []netip.Addr
	IPv6Prefixes []netip.Prefix // delegated IPv6 /80 prefixes

	// Attachment is nil for a detached ENI.
	Attachment *Attachment
}

// Attachment is the attachment of an ENI to an instance.
type Attachment struct {
	ID                  string
	InstanceID          string
	DeviceIndex         int
	NetworkCard         int
	Status              string // attaching, attached, detaching, detached
	DeleteOnTermination bool
}

// Subnet is a subnet with the free-address count of the cloud's last reply.
type Subnet struct {
	ID    string
	VPCID string
	Zone  string
	CIDR  netip.Prefix // IPv4; zero if IPv6Native
	IPv6  []netip.Prefix
	Free  int // AvailableIpAddressCount: IPv4 addresses
	Tags  map[string]string
	// IPv6Native means that the subnet is IPv6-only. Its ENIs have no IPv4 address, and it accepts only
	// instances built on Nitro (Amazon VPC User Guide, "Subnet types").
	IPv6Native bool
}

// RouteTable is a route table of a VPC with its associated subnets. A subnet without an association
// uses the main table.
type RouteTable struct {
	ID      string
	Main    bool
	Subnets []string // IDs of explicitly associated subnets
}

// Instance is a virtual machine as the cloud described it at one moment.
type Instance struct {
	ID       string
	Type     string
	State    string // pending, running, stopping, stopped, shutting-down, terminated
	Zone     string
	VPCID    string
	SubnetID string
	Primary  netip.Addr // none in an IPv6-only subnet
	DNSName  string     // private name; empty if the VPC has none
	Tags     map[string]string
	ENIs     []ENI // attached interfaces
}

// Limits are the limits of an instance type. IPv4PerENI and IPv6PerENI count all address slots of an ENI,
// including its primary address; a prefix takes one slot (EC2 User Guide, "IP addresses per network interface
// per instance type" and "Assigning prefixes to network interfaces").
type Limits struct {
	MaxENIs    int // of network card 0
	IPv4PerENI int
	IPv6PerENI int  // 0 where IPv6 is not supported
	Prefixes   bool // supports delegated prefixes: Nitro and bare metal
}

// Identity is the instance's identity according to the metadata service.
type Identity struct {
	InstanceID   string
	InstanceType string
	Region       string
	Zone         string
	VPCID        string
	SubnetID     string // of the primary interface
	PrimaryMAC   net.HardwareAddr
	PrimaryIPv4  netip.Addr // none in an IPv6-only subnet
	VPCCIDRs     []netip.Prefix
}

// AttachedENI is an ENI of the instance according to the metadata service, which may lag behind EC2.
type AttachedENI struct {
	ID          string
	MAC         net.HardwareAddr
	DeviceIndex int
	NetworkCard int
	Primary     netip.Addr // the ENI's own IPv4 address; none in an IPv6-only subnet
	Subnet      netip.Prefix
	// Held are the other IPv4 addresses and all IPv6 addresses, as single-address prefixes, and delegated prefixes.
	Held []netip.Prefix
}

// CreateENI is a request for a new ENI. Repeating it with the same ClientToken returns the ENI of the first
// request. Node mode stores the request as JSON.
type CreateENI struct {
	SubnetID    string
	Groups      []string
	Description string
	Tags        map[string]string // applied by the same call
	ClientToken string
	Type        InterfaceType `json:",omitempty"` // InterfaceTrunk, or empty for an ordinary ENI
	Primary     netip.Addr    `json:",omitzero"`  // requested primary IPv4 address; zero for any in the subnet
	IPv6Address netip.Addr    `json:",omitzero"`  // requested IPv6 address, instead of Amount.IPv6
	Amount                    // to assign at creation; addresses or prefixes per family, not both
}

// Differs compares an ENI returned for the request with the requested type, if both have one, and the
// requested addresses. It returns the first differing property, by EC2's name, with both values; an empty
// property means no difference.
func (q CreateENI) Differs(e ENI) (property, got, want string) {
	switch {
	case e.Type != "" && q.Type != "" && e.Type != q.Type:
		return "interfaceType", string(e.Type), string(q.Type)
	case q.Primary.IsValid() && e.Primary != q.Primary:
		return "privateIpAddress", e.Primary.String(), q.Primary.String()
	case q.IPv6Address.IsValid() && !slices.Contains(e.IPv6, q.IPv6Address):
		return "ipv6AddressesSet", fmt.Sprint(e.IPv6), q.IPv6Address.String()
	}
	return "", "", ""
}

// ENIFilter selects ENIs that match all fields. Empty fields, and keys of Tagged without values, match
// all ENIs.
type ENIFilter struct {
	IDs         []string
	InstanceID  string              // attached to this instance; branches are not
	InstanceIDs []string            // attached to one of these instances
	VPCID       string              //
	Status      string              // "available": detached
	Types       []InterfaceType     // one of these types
	Tags        map[string]string   // all must match exactly
	Tagged      map[string][]string // by tag key: accepted values
}

// SubnetFilter selects subnets that match all fields. Empty fields match all subnets.
type SubnetFilter struct {
	IDs   []string
	VPCID string
	Zone  string
	Tags  map[string]string
}

// API is the set of calls that Berth makes. Every error is or wraps an *Error; ClassOf returns its class.
// Listings are complete, with all their pages. A call that is not idempotent is not repeated when its
// reply is lost.
type API interface {
	// Instance describes an instance with its attached ENIs. An unknown instance is an error of class Gone.
	Instance(ctx context.Context, id string) (Instance, error)
	// Instances describes instances by their IDs, without their ENIs. Unknown IDs are left out without an
	// error.
	Instances(ctx context.Context, ids []string) ([]Instance, error)
	// Limits returns the limits of an instance type.
	Limits(ctx context.Context, instanceType string) (Limits, error)
	// ENIs lists the interfaces that match.
	ENIs(ctx context.Context, f ENIFilter) ([]ENI, error)
	// Subnets lists the subnets that match.
	Subnets(ctx context.Context, f SubnetFilter) ([]Subnet, error)
	// SecurityGroups lists the IDs of a VPC's security groups that have all the tags, in order.
	SecurityGroups(ctx context.Context, vpcID string, tags map[string]string) ([]string, error)
	// RouteTables lists the route tables of a VPC, with their subnets but without their routes.
	RouteTables(ctx context.Context, vpcID string) ([]RouteTable, error)
	Changes
}

// Changes are the mutating calls.
type Changes interface {
	// CreateENI creates a detached ENI with its addresses and tags in one call.
	CreateENI(ctx context.Context, req CreateENI) (ENI, error)
	// AttachENI attaches an ENI at a device index and returns the attachment ID. The link appears in the
	// instance later.
	AttachENI(ctx context.Context, eniID, instanceID string, deviceIndex int) (attachmentID string, err error)
	// DetachENI starts a detachment.
	DetachENI(ctx context.Context, attachmentID string) error
	// DeleteENI deletes a detached ENI.
	DeleteENI(ctx context.Context, eniID string) error
	// SetDeleteOnTermination sets whether an ENI is deleted with its instance.
	SetDeleteOnTermination(ctx context.Context, eniID, attachmentID string, on bool) error
	// AssignAddresses assigns more addresses or prefixes of one family, chosen by the cloud, and
	// returns them, addresses as their HostPrefix. It is not idempotent: after an error of class
	// Transient the caller must describe the ENI before repeating the call.
	AssignAddresses(ctx context.Context, eniID string, n Amount) ([]netip.Prefix, error)
	// UnassignAddresses removes addresses, given as their HostPrefix, or prefixes of one family from an
	// ENI.
	UnassignAddresses(ctx context.Context, eniID string, things []netip.Prefix) error
	// Tag creates or replaces tags on a resource.
	Tag(ctx context.Context, resourceID string, tags map[string]string) error
	Trunks
}

// Metadata is the metadata service of the instance. It lags behind the cloud: Berth uses it for the
// identity of the instance, never for addresses.
type Metadata interface {
	Identity(ctx context.Context) (Identity, error)
}

// MaxVLAN is the highest VLAN ID; the lowest is 1 (IEEE 802.1Q).
const MaxVLAN = 4094

// Association makes an ENI a branch of a trunk: frames with the VLAN ID (IEEE 802.1Q) on the trunk's link
// belong to the branch.
type Association struct {
	ID       string
	TrunkID  string
	BranchID string
	VLAN     int // 1 to MaxVLAN
}

// Trunks are the calls concerning trunks and branches (EC2 API Reference, AssociateTrunkInterface and related
// actions).
type Trunks interface {
	// AssociateBranch makes a detached ordinary ENI a branch of an attached trunk, by a.TrunkID, a.BranchID
	// and a.VLAN, and returns the association with its ID. Repeating the request with the same clientToken
	// returns the association of the first call. The error is of class Conflict if the VLAN is in use on the
	// trunk or the branch is already associated, and of class LimitReached if the instance has as many
	// branches as its type allows.
	AssociateBranch(ctx context.Context, a Association, clientToken string) (Association, error)
	// DisassociateBranch makes a branch a detached ENI again. An unknown association is an error of class
	// Gone.
	DisassociateBranch(ctx context.Context, associationID string) error
	// SetGroups replaces the security groups of an ENI; at least one is required.
	SetGroups(ctx context.Context, eniID string, groups []string) error
}
