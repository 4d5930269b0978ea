// Package cloud is the cloud as the rest of Berth sees it: values for network
// interfaces, subnets and instances, the calls that Berth makes on them, and
// the classes into which a call's failure falls. It knows no SDK and no
// Kubernetes; cloud/aws implements it for EC2.
package cloud

import (
	"context"
	"net"
	"net/netip"
)

// InterfaceType tells ordinary ENIs from others, as EC2 spells it (EC2 API,
// NetworkInterface.InterfaceType). Those that are not named here Berth never uses.
type InterfaceType string

// The types that Berth uses.
const (
	InterfaceOrdinary InterfaceType = "interface"
	// InterfaceTrunk is an ENI on whose link branches are VLANs.
	InterfaceTrunk InterfaceType = "trunk"
	// InterfaceBranch is what an ordinary ENI is called while it is associated with a
	// trunk. It has no attachment then, and its status is "in-use".
	InterfaceBranch InterfaceType = "branch"
)

// ENI is one elastic network interface as the cloud described it at one
// moment. Slices are in the cloud's order and owned by the receiver.
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
	Addresses    []netip.Addr   // secondary private IPv4 addresses, the primary not among them
	Prefixes     []netip.Prefix // delegated IPv4 /28 prefixes
	IPv6         []netip.Addr
	IPv6Prefixes []netip.Prefix // delegated IPv6 /80 prefixes

	// Attachment is nil for a detached ENI.
	Attachment *Attachment
}

// Attachment says where an ENI is plugged in.
type Attachment struct {
	ID                  string
	InstanceID          string
	DeviceIndex         int
	NetworkCard         int
	Status              string // attaching, attached, detaching, detached
	DeleteOnTermination bool
}

// Subnet is one subnet with the free address count that the cloud last gave.
type Subnet struct {
	ID    string
	VPCID string
	Zone  string
	CIDR  netip.Prefix // of IPv4; zero with IPv6Native
	IPv6  []netip.Prefix
	Free  int // AvailableIpAddressCount: IPv4 addresses
	Tags  map[string]string
	// IPv6Native: it has IPv6 alone. Its ENIs have no IPv4 address, and are for instances that are
	// built on Nitro (Amazon VPC User Guide, "Subnet types").
	IPv6Native bool
}

// RouteTable is a route table of a VPC with the subnets that use it. A subnet
// that no table names uses the main one.
type RouteTable struct {
	ID      string
	Main    bool
	Subnets []string // associated explicitly
}

// Instance is what the cloud says of one virtual machine.
type Instance struct {
	ID       string
	Type     string
	State    string // pending, running, stopping, stopped, shutting-down, terminated
	Zone     string
	VPCID    string
	SubnetID string
	Primary  netip.Addr // none in an IPv6-only subnet
	DNSName  string     // its private one; empty where the VPC has none
	Tags     map[string]string
	ENIs     []ENI // attached interfaces
}

// Limits are what an instance type allows. IPv4PerENI and IPv6PerENI count
// every address slot of an ENI, its primary address included; a prefix takes
// one slot (EC2 User Guide, "IP addresses per network interface per instance
// type" and "Assigning prefixes to network interfaces").
type Limits struct {
	MaxENIs    int // of network card 0
	IPv4PerENI int
	IPv6PerENI int  // 0 where IPv6 is not supported
	Prefixes   bool // Nitro and bare metal: prefixes can be delegated
}

// Identity is what an instance's metadata service says of the instance itself.
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

// CreateENI is a request for a new ENI. ClientToken makes a repeat of the same
// request return the ENI that the first one made. Node mode stores it as JSON.
type CreateENI struct {
	SubnetID    string
	Groups      []string
	Description string
	Tags        map[string]string // applied in the creation call itself
	ClientToken string
	Type        InterfaceType `json:",omitempty"` // InterfaceTrunk; empty: an ordinary one
	Primary     netip.Addr    `json:",omitzero"`  // the primary IPv4 address that it is to have; zero: any of the subnet
	IPv6Address netip.Addr    `json:",omitzero"`  // an IPv6 address that it is to have; zero: Amount says how many. Not both
	Amount                    // to assign at creation; of one kind a family
}

// ENIFilter narrows a listing of ENIs. Empty fields do not narrow, nor does a key of
// Tagged without values.
type ENIFilter struct {
	IDs         []string
	InstanceID  string              // attached to this instance; a branch is not attached
	InstanceIDs []string            // attached to one of these
	VPCID       string              //
	Status      string              // "available": detached ones only
	Types       []InterfaceType     // of one of these
	Tags        map[string]string   // all must match exactly
	Tagged      map[string][]string // by key: the tag has exactly one of these values
}

// SubnetFilter narrows a listing of subnets. Empty fields do not narrow.
type SubnetFilter struct {
	IDs   []string
	VPCID string
	Zone  string
	Tags  map[string]string
}

// API is what Berth asks of a cloud. Every error is (or wraps) an *Error, so
// that ClassOf tells what to do about it. Listings are complete: pages are
// followed. What is not idempotent is not made again when its reply was lost.
type API interface {
	// Instance describes one instance with its attached ENIs. An instance
	// that does not exist is an error of class Gone.
	Instance(ctx context.Context, id string) (Instance, error)
	// Instances describes those of ids that the cloud knows; unknown ones are
	// left out without an error. Their ENIs are not told.
	Instances(ctx context.Context, ids []string) ([]Instance, error)
	// Limits tells what an instance type allows.
	Limits(ctx context.Context, instanceType string) (Limits, error)
	// ENIs lists the interfaces that match.
	ENIs(ctx context.Context, f ENIFilter) ([]ENI, error)
	// Subnets lists the subnets that match.
	Subnets(ctx context.Context, f SubnetFilter) ([]Subnet, error)
	// SecurityGroups lists the IDs of a VPC's security groups that carry all the
	// tags, in order.
	SecurityGroups(ctx context.Context, vpcID string, tags map[string]string) ([]string, error)
	// RouteTables lists the route tables of a VPC, with their subnets but without
	// their routes.
	RouteTables(ctx context.Context, vpcID string) ([]RouteTable, error)
	Changes
}

// Changes are the calls of an API that change something.
type Changes interface {
	// CreateENI creates a detached ENI with its addresses and tags in one call.
	CreateENI(ctx context.Context, req CreateENI) (ENI, error)
	// AttachENI attaches an ENI at a device index and returns the attachment
	// ID; the link shows up in the instance later.
	AttachENI(ctx context.Context, eniID, instanceID string, deviceIndex int) (attachmentID string, err error)
	// DetachENI begins a detachment.
	DetachENI(ctx context.Context, attachmentID string) error
	// DeleteENI deletes a detached ENI.
	DeleteENI(ctx context.Context, eniID string) error
	// SetDeleteOnTermination sets whether an ENI goes with its instance.
	SetDeleteOnTermination(ctx context.Context, eniID, attachmentID string, on bool) error
	// AssignAddresses assigns further addresses or prefixes of the cloud's
	// choice, of one kind and family, and returns them, an address as its HostPrefix. Not
	// idempotent: after an error of class Transient the caller describes the ENI
	// before it asks again.
	AssignAddresses(ctx context.Context, eniID string, n Amount) ([]netip.Prefix, error)
	// UnassignAddresses takes addresses, each given as its HostPrefix, or prefixes
	// off an ENI; of one kind and family.
	UnassignAddresses(ctx context.Context, eniID string, things []netip.Prefix) error
	// Tag creates or replaces tags on a resource.
	Tag(ctx context.Context, resourceID string, tags map[string]string) error
	Trunks
}

// Metadata is the instance's own view, from its metadata service. It lags
// behind the cloud and is trusted for identity only, never for addresses.
type Metadata interface {
	Identity(ctx context.Context) (Identity, error)
}

// MaxVLAN is the last ID of a VLAN that frames may carry; the first is 1 (IEEE 802.1Q).
const MaxVLAN = 4094

// Association makes an ENI a branch of a trunk: what the trunk's link carries with the
// VLAN's ID (IEEE 802.1Q) is the branch's.
type Association struct {
	ID       string
	TrunkID  string
	BranchID string
	VLAN     int // 1 to MaxVLAN
}

// Trunks are the calls about branches of trunks (EC2 API Reference,
// AssociateTrunkInterface and its like).
type Trunks interface {
	// AssociateBranch makes a detached ordinary ENI a branch of an attached trunk, by
	// a.TrunkID, a.BranchID and a.VLAN, and returns the association with its ID. The same
	// clientToken with the same request gives the association that the first call made. A
	// VLAN that another branch of the trunk has, and a branch that is associated already,
	// are errors of class Conflict; an instance with as many branches as its type may have
	// is one of class LimitReached.
	AssociateBranch(ctx context.Context, a Association, clientToken string) (Association, error)
	// DisassociateBranch makes a branch a detached ENI again. An association that there
	// is not is an error of class Gone.
	DisassociateBranch(ctx context.Context, associationID string) error
	// SetGroups replaces the security groups of an ENI; there must be one at least.
	SetGroups(ctx context.Context, eniID string, groups []string) error
}
