package planner

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Scenario is a cluster with a workload over time. The settings of the scenario are its first alternative.
type Scenario struct {
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`
	// Duration is the simulated time; a day if empty.
	Duration Duration `json:"duration,omitzero"`
	// Sample is the time between two points of the result's series. If empty, the series have 240 points.
	Sample Duration `json:"sample,omitzero"`
	// Seed selects the random delays. The same scenario with the same seed has the same result.
	Seed uint64 `json:"seed,omitempty"`

	Subnets      []Subnet      `json:"subnets"`
	Nodes        []NodeGroup   `json:"nodes"`
	Settings     Settings      `json:"settings,omitzero"`
	EC2          EC2           `json:"ec2,omitzero"`
	Workload     Workload      `json:"workload,omitzero"`
	Alternatives []Alternative `json:"alternatives,omitempty"`
}

// Subnet is a subnet of the VPC.
type Subnet struct {
	Name string            `json:"name"`
	CIDR string            `json:"cidr,omitempty"` // IPv4, /28 to /16; none in an IPv6-only subnet
	IPv6 bool              `json:"ipv6,omitempty"` // the subnet also has an IPv6 /64
	Used int               `json:"used,omitempty"` // IPv4 addresses of other users, such as load balancers
	Zone string            `json:"zone,omitempty"`
	Tags map[string]string `json:"tags,omitempty"` // that settings.eni.subnetTags may select
}

// NodeGroup is a number of nodes of one instance type.
type NodeGroup struct {
	Name         string `json:"name"`
	InstanceType string `json:"instanceType"`
	Count        int    `json:"count"`
	// Subnets are the subnets of the nodes, which alternate between them.
	Subnets []string `json:"subnets"`
	// MaxPods is the kubelet's limit. If 0, it is the output of `berthctl max-pods` for the first alternative's settings.
	MaxPods int `json:"maxPods,omitempty"`
	// Changes set the number of nodes at later times.
	Changes []Change `json:"changes,omitempty"`
	// Replace replaces nodes by new ones regularly.
	Replace *Replacement `json:"replace,omitempty"`
}

// Change sets a number at a time.
type Change struct {
	At    Duration `json:"at"`
	Count int      `json:"count"`
}

// Replacement replaces the oldest nodes of a group.
type Replacement struct {
	Every Duration `json:"every"`
	Nodes int      `json:"nodes,omitempty"` // at once; 1 if 0
}

// Settings are settings of Berth.
type Settings struct {
	// Name of the alternative.
	Name string `json:"name,omitempty"`
	// Mode is node (the default: each node manages its own ENIs) or operator.
	Mode string `json:"mode,omitempty"`
	// Cooling is the cooling period of the addresses of ended pods; 30s if empty. "0s" means none.
	Cooling *Duration `json:"cooling,omitempty"`
	// ShrinkDelay and ListingInterval are the settings of these names, with their defaults if empty: 1m, and 5m in node
	// mode or 1m in operator mode.
	ShrinkDelay     Duration `json:"shrinkDelay,omitzero"`
	ListingInterval Duration `json:"listingInterval,omitzero"`
	// ENI has the fields of a NodeNetwork's spec.eni. Subnets are given by name in subnetIDs.
	ENI v1alpha1.ENISpec `json:"eni,omitzero"`
}

// EC2 describes the simulated EC2.
type EC2 struct {
	// RateLimits is the factor by which EC2's documented rate limits are multiplied; 1 if empty, 0 for no limits.
	RateLimits *float64 `json:"rateLimits,omitempty"`
	// Latency is the time until a call has an effect and a reply; 150ms if empty.
	Latency Duration `json:"latency,omitzero"`
	// AttachTime is the time from the reply until a network interface is attached; 2s if empty.
	AttachTime Duration `json:"attachTime,omitzero"`
}

// Workload describes the pods on the nodes.
type Workload struct {
	// DaemonPods is the number of daemon pods with their own address on every node.
	DaemonPods  int          `json:"daemonPods,omitempty"`
	Deployments []Deployment `json:"deployments,omitempty"`
}

// Deployment is a set of identical pods.
type Deployment struct {
	Name     string    `json:"name"`
	Replicas int       `json:"replicas"`
	Changes  []Change  `json:"changes,omitempty"` // of the number of replicas
	Rollouts []Rollout `json:"rollouts,omitempty"`
	// Ready is the time from a pod's address to its readiness, for which rollouts wait; 5s if empty.
	Ready Duration `json:"ready,omitzero"`
	// Lifetime is how long a pod runs until it ends and another one replaces it, like pods of jobs; forever if empty.
	Lifetime Duration `json:"lifetime,omitzero"`
	// CrashLoop makes pods fail, so that their controller replaces them with a growing delay.
	CrashLoop *CrashLoop `json:"crashLoop,omitempty"`
	// Branch pods get a branch interface of their node's trunk instead of an address of an ENI.
	Branch bool `json:"branch,omitempty"`
}

// Rollout replaces all pods of a deployment, as a rolling update does. MaxSurge and MaxUnavailable are numbers or
// percentages; 25% if empty.
type Rollout struct {
	At             Duration `json:"at"`
	MaxSurge       string   `json:"maxSurge,omitempty"`
	MaxUnavailable string   `json:"maxUnavailable,omitempty"`
}

// CrashLoop makes each pod of a deployment fail shortly after its start. Its replacement starts after 10 s, and after
// each further failure after twice the time, up to 5 minutes. Containers that restart in their pod keep its
// address, and need no crash loop here.
type CrashLoop struct {
	From  Duration `json:"from"`
	Until Duration `json:"until,omitzero"` // the end of the simulation if empty
	After Duration `json:"after,omitzero"` // from a pod's address to its failure; 1s if empty
	Pods  int      `json:"pods,omitempty"` // number of pods that fail; all if 0
}

// Alternative is the same scenario with other settings. Fields that are set replace those of the scenario.
type Alternative struct {
	Name string `json:"name"`
	// Settings replace those of the scenario as a whole.
	Settings *Settings `json:"settings,omitempty"`
	// InstanceTypes and Counts replace those of node groups, by name.
	InstanceTypes map[string]string `json:"instanceTypes,omitempty"`
	Counts        map[string]int    `json:"counts,omitempty"`
	// CIDRs replace those of subnets, by name.
	CIDRs map[string]string `json:"cidrs,omitempty"`
}

// Duration is a time.Duration in Go's notation, such as 1h30m.
type Duration time.Duration

// Std returns the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// Or returns d, or another duration if d is 0.
func (d Duration) Or(other time.Duration) time.Duration {
	if d == 0 {
		return other
	}
	return time.Duration(d)
}

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%s: expected a duration such as \"90s\" or \"1h30m\"", data)
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		return fmt.Errorf("%q: expected a duration such as \"90s\" or \"1h30m\"", s)
	}
	*d = Duration(v)
	return nil
}
