// Package spec describes a lab's virtual cloud: its initial resources and its behaviour, in YAML or as Go
// values.
package spec

import (
	"net/netip"
	"time"
)

// Duration is a time.Duration that YAML writes as "1.5s".
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// D returns the duration as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// Spec describes one lab. Names refer to other parts of the spec. Missing IDs are derived from the seed.
type Spec struct {
	Region  string `json:"region,omitempty"`  // default "lab-1"
	Account string `json:"account,omitempty"` // 12 digits; default "123456789012"
	Seed    uint64 `json:"seed,omitempty"`    // for IDs, addresses and random faults; default 1

	VPCs      []VPC      `json:"vpcs"`
	Instances []Instance `json:"instances,omitempty"`
	Roles     []Role     `json:"roles,omitempty"`
	// LaunchTags are the tags of every instance launched by a spec, and of its primary ENI, like those of a
	// launch template.
	LaunchTags map[string]string `json:"launchTags,omitempty"`
	AccessKeys []AccessKey       `json:"accessKeys,omitempty"` // default: one key with all permissions

	Delays      Delays      `json:"delays,omitempty"`
	Consistency Consistency `json:"consistency,omitempty"`
	IMDS        IMDS        `json:"imds,omitempty"`
	Quotas      Quotas      `json:"quotas,omitempty"`

	// Throttle is "documented" (the default: EC2's published token buckets) or "none". RateLimits, by action
	// name or pattern ("Describe*"), override it.
	Throttle   string               `json:"throttle,omitempty"`
	RateLimits map[string]RateLimit `json:"rateLimits,omitempty"`
	// Latencies are added to every call of an action (name or pattern).
	Latencies map[string]Duration `json:"latencies,omitempty"`
	Faults    []Fault             `json:"faults,omitempty"`
}

// VPC is one virtual network.
type VPC struct {
	Name  string         `json:"name"`
	ID    string         `json:"id,omitempty"`
	CIDRs []netip.Prefix `json:"cidrs"`          // IPv4, /16 to /28; the first is the primary block
	IPv6  []netip.Prefix `json:"ipv6,omitempty"` // /56
	// EgressOnlyIPv6 gives the VPC an egress-only internet gateway for IPv6 instead of the internet gateway:
	// it allows outbound connections only.
	EgressOnlyIPv6 bool              `json:"egressOnlyIPv6,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
	Subnets        []Subnet          `json:"subnets"`
	SecurityGroups []SecurityGroup   `json:"securityGroups,omitempty"` // a "default" group is created if absent
}

// Subnet is one subnet of a VPC.
type Subnet struct {
	Name string       `json:"name"`
	ID   string       `json:"id,omitempty"`
	Zone string       `json:"zone"`
	CIDR netip.Prefix `json:"cidr,omitzero"`  // /16 to /28; none with IPv6Native
	IPv6 netip.Prefix `json:"ipv6,omitempty"` // /64
	// IPv6Native makes it an IPv6-only subnet: neither it nor its ENIs have IPv4 addresses. It assigns
	// IPv6 addresses as with AssignIPv6.
	IPv6Native bool `json:"ipv6Native,omitempty"`
	// AssignIPv6 is the attribute AssignIpv6AddressOnCreation: a new ENI gets an IPv6 address unless the
	// call specifies otherwise.
	AssignIPv6 bool              `json:"assignIPv6,omitempty"`
	Public     bool              `json:"public,omitempty"`
	Tags       map[string]string `json:"tags,omitempty"`
}

// SecurityGroup is a stateful filter of ENIs.
type SecurityGroup struct {
	Name        string            `json:"name"`
	ID          string            `json:"id,omitempty"`
	Description string            `json:"description,omitempty"`
	Ingress     []Rule            `json:"ingress,omitempty"`
	Egress      *[]Rule           `json:"egress,omitempty"` // absent: all traffic, as in EC2
	Tags        map[string]string `json:"tags,omitempty"`
}

// Rule allows traffic in one direction.
type Rule struct {
	Protocol string         `json:"protocol"`           // "-1" (all), "tcp", "udp", "icmp", "icmpv6" or a number
	FromPort int            `json:"fromPort,omitempty"` // for ICMP the type, -1 for any
	ToPort   int            `json:"toPort,omitempty"`   // for ICMP the code, -1 for any
	CIDRs    []netip.Prefix `json:"cidrs,omitempty"`
	Groups   []string       `json:"groups,omitempty"` // names of groups in the same VPC
}

// Instance is a virtual machine that is launched when the lab starts.
type Instance struct {
	Name           string            `json:"name"` // also the tag Name
	ID             string            `json:"id,omitempty"`
	Type           string            `json:"type"`
	Subnet         string            `json:"subnet"`
	PrivateIP      netip.Addr        `json:"privateIP,omitempty"` // of the primary ENI; default: any free address
	SecurityGroups []string          `json:"securityGroups,omitempty"`
	Role           string            `json:"role,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
	// Secondary addresses of the primary ENI.
	Secondary int `json:"secondary,omitempty"`
	Prefixes  int `json:"prefixes,omitempty"`
	IPv6      int `json:"ipv6,omitempty"`
	// Interfaces are attached at launch in addition to the primary ENI.
	Interfaces []Interface `json:"interfaces,omitempty"`
}

// Interface is an additional ENI of an instance.
type Interface struct {
	DeviceIndex         int               `json:"deviceIndex"`
	NetworkCard         int               `json:"networkCard,omitempty"`
	Type                string            `json:"type,omitempty"`   // "interface" (default), "efa", "efa-only", "trunk"
	Subnet              string            `json:"subnet,omitempty"` // default: the instance's
	SecurityGroups      []string          `json:"securityGroups,omitempty"`
	Description         string            `json:"description,omitempty"`
	Secondary           int               `json:"secondary,omitempty"`
	Prefixes            int               `json:"prefixes,omitempty"`
	IPv6                int               `json:"ipv6,omitempty"`
	Tags                map[string]string `json:"tags,omitempty"`
	DeleteOnTermination bool              `json:"deleteOnTermination,omitempty"`
}

// Role is an IAM role that instances assume through the metadata service, and pods by their service account.
type Role struct {
	Name    string   `json:"name"`
	Actions []string `json:"actions"`          // allowed on all resources: "ec2:Describe*", "*"
	Policy  string   `json:"policy,omitempty"` // an IAM policy document in JSON, in addition to actions
	// ServiceAccount, as "NAMESPACE/NAME", is the one whose tokens the role trusts, by web identity and by EKS Pod
	// Identity.
	ServiceAccount string `json:"serviceAccount,omitempty"`
}

// AccessKey is a static credential.
type AccessKey struct {
	ID      string   `json:"id"`
	Secret  string   `json:"secret"`
	Actions []string `json:"actions,omitempty"` // default: all, unless there is a policy
	Policy  string   `json:"policy,omitempty"`  // an IAM policy document in JSON, in addition to actions
}

// Delays are the times that operations take after the call that requested them has returned.
type Delays struct {
	Attach    Duration `json:"attach,omitempty"`    // until the attachment is described as attached
	Link      Duration `json:"link,omitempty"`      // until the link appears in the instance
	Detach    Duration `json:"detach,omitempty"`    // until the ENI is available again
	Launch    Duration `json:"launch,omitempty"`    // pending to running
	Stop      Duration `json:"stop,omitempty"`      // stopping to stopped
	Terminate Duration `json:"terminate,omitempty"` // shutting-down to terminated
}

// Consistency is the staleness of EC2's replies.
type Consistency struct {
	Describe Duration `json:"describe,omitempty"` // age of the state that describe calls return; default 0
	// Writes makes a change that names a resource younger than Describe fail with NotFound.
	Writes bool `json:"writes,omitempty"`
}

// IMDS is the behaviour of the instance metadata service.
type IMDS struct {
	Delay         Duration `json:"delay,omitempty"`         // lag behind EC2
	V1            *bool    `json:"v1,omitempty"`            // default true; false: requests without a token get 401
	CredentialTTL Duration `json:"credentialTTL,omitempty"` // of role credentials; default 6h
}

// Quotas are the account's limits.
type Quotas struct {
	NetworkInterfaces int `json:"networkInterfaces,omitempty"` // default 5000 per region
}

// RateLimit is a token bucket: it holds Bucket tokens and gains Refill tokens per second.
type RateLimit struct {
	Bucket float64 `json:"bucket"`
	Refill float64 `json:"refill"`
	// Shared makes all actions of the pattern use one bucket; otherwise each has its own.
	Shared bool `json:"shared,omitempty"`
}

// Fault makes calls of an action fail or misbehave.
type Fault struct {
	Action      string   `json:"action"`                // name or pattern
	Kind        string   `json:"kind"`                  // error, throttle, lostReply, lostRequest, wrongReply, latency
	Count       int      `json:"count,omitempty"`       // number of calls; 0: unlimited
	Skip        int      `json:"skip,omitempty"`        // number of calls that pass before the first
	Probability float64  `json:"probability,omitempty"` // 0 or 1: every call
	Code        string   `json:"code,omitempty"`        // of kind error
	Status      int      `json:"status,omitempty"`      // HTTP status of kind error; default 500
	Message     string   `json:"message,omitempty"`     // of kind error
	Latency     Duration `json:"latency,omitempty"`     // of kind latency
	Pattern     string   `json:"pattern,omitempty"`     // of kind wrongReply: regular expression of the text to replace in the reply's XML
	Replacement string   `json:"replacement,omitempty"` // of kind wrongReply: the replacement; $1 stands for the pattern's first group
}
