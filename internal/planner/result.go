package planner

import "strings"

// Result is the outcome of a scenario.
type Result struct {
	Name         string          `json:"name,omitempty"`
	Description  string          `json:"description,omitempty"`
	Duration     Duration        `json:"duration"`
	Alternatives []OfAlternative `json:"alternatives"` // in the order of the scenario; the first has its own settings
}

// OfAlternative is the outcome of one alternative.
type OfAlternative struct {
	Name    string  `json:"name"`
	Totals  Totals  `json:"totals"`
	Events  []Event `json:"events"` // in order of time
	Calls   []Calls `json:"calls"`  // by action, sorted
	Series  Series  `json:"series"`
	Stopped string  `json:"stopped,omitempty"` // why the simulation ended early; the numbers are up to there
}

// Totals sum up an alternative, for a table of all side by side.
type Totals struct {
	// Of the pods' subnets together. Held are all addresses that nodes have: used, warm, cooling and the ENIs' own.
	PeakHeld int `json:"peakHeld"`
	EndHeld  int `json:"endHeld"`
	// Idle addresses are warm ones: no pod has them. IdleHours is their number over time.
	PeakIdle  int     `json:"peakIdle"`
	MeanIdle  float64 `json:"meanIdle"`
	IdleHours float64 `json:"idleHours"`
	PeakENIs  int     `json:"peakENIs"`
	LeastFree int     `json:"leastFree"` // the least number of free addresses of any subnet

	Calls     int `json:"calls"`
	Throttled int `json:"throttled"` // calls refused because of rate limits
	Refused   int `json:"refused"`   // calls refused for other reasons

	Pods    int  `json:"pods"`    // started, an address given or not
	Waited  int  `json:"waited"`  // of these, how many had to wait for an address
	Waiting int  `json:"waiting"` // without an address at the end
	Pending int  `json:"pending"` // not scheduled at the end, because every node has its maximum of pods
	Wait    Wait `json:"wait"`
}

// Wait is how long pods waited for an address, in seconds. Pods that got one at once count as 0, those that still
// wait at the end with their time so far.
type Wait struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Event is a limit that was reached, or a change of the workload.
type Event struct {
	At   Duration `json:"at"`
	Kind string   `json:"kind"`           // one of the Kind constants
	On   string   `json:"on,omitempty"`   // name of the subnet, node group or deployment
	Text string   `json:"text"`           // a sentence
	For  Duration `json:"for,omitzero"`   // for limits: how long pods waited
	Pods int      `json:"pods,omitempty"` // for limits: the maximum number of pods that waited at once
}

// Kinds of events. The first ones are limits that pods waited for.
const (
	KindSubnetFull   = "subnet-full"
	KindENILimit     = "eni-limit"
	KindMaxPods      = "max-pods"      // the kubelet's limit: pods are pending
	KindAddressCap   = "address-cap"   // maxPods or maxAllocate of the settings
	KindThrottled    = "throttled"     // EC2's rate limits, and Berth's limiter
	KindBranchLimit  = "branch-limit"  // branch interfaces of the node's trunk
	KindCooling      = "cooling"       // every address that the node may have is in use or cooling
	KindOtherReason  = "other"         // another reason, given in the text
	KindScale        = "scale"         // replicas changed
	KindRollout      = "rollout"       // a rollout began
	KindRolloutDone  = "rollout-done"  // and ended
	KindNodes        = "nodes"         // the number of nodes changed, or nodes were replaced
	KindCrashLoop    = "crash-loop"    // pods begin to fail
	KindSubnetPeak   = "subnet-peak"   // the least number of free addresses of a subnet
	KindFirstRefusal = "first-refusal" // the first call that EC2 throttled
)

// Calls counts the calls of one EC2 action.
type Calls struct {
	Action      string `json:"action"`
	Calls       int    `json:"calls"`
	Throttled   int    `json:"throttled"`
	SubnetFull  int    `json:"subnetFull"`
	ENILimit    int    `json:"eniLimit"`
	OtherErrors int    `json:"otherErrors"`
}

// Series are values over time. All have the length of At.
type Series struct {
	At      []float64      `json:"at"` // seconds since the start
	Subnets []SubnetSeries `json:"subnets"`
	Nodes   []int          `json:"nodes"`
	ENIs    []int          `json:"enis"` // attached or being attached, the nodes' primary ones included
	// Of pods:
	Running []int `json:"running"` // with an address
	Waiting []int `json:"waiting"` // for an address
	Pending []int `json:"pending"` // for a node
	// Calls since the point before:
	Calls     []int `json:"calls"`
	Throttled []int `json:"throttled"`
	Refused   []int `json:"refused"`
	Branches  []int `json:"branches"` // associated branch interfaces
}

// SubnetSeries are the IPv4 addresses of a subnet over time. At each point, used + warm + cooling + enis + others +
// free = size.
type SubnetSeries struct {
	Name    string `json:"name"`
	CIDR    string `json:"cidr"`
	Size    int    `json:"size"`   // of the CIDR
	Others  int    `json:"others"` // the five that EC2 reserves, and those of other users in the scenario
	Used    []int  `json:"used"`   // by pods
	Warm    []int  `json:"warm"`   // on nodes, and free for pods or about to be
	Cooling []int  `json:"cooling"`
	ENIs    []int  `json:"enis"` // the ENIs' own addresses
	Free    []int  `json:"free"`
	IPv6    []int  `json:"ipv6,omitempty"` // IPv6 addresses that pods have, of a subnet with IPv6
}

// FieldError is a mistake in a scenario.
type FieldError struct {
	Field   string `json:"field"` // such as nodes[0].instanceType; empty if the document is not a scenario at all
	Message string `json:"message"`
}

// Error implements error.
func (e FieldError) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Problems lists all mistakes in a scenario.
type Problems []FieldError

// Error implements error.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, e := range p {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// TypeInfo describes an instance type for the page, as GET /api/types returns it.
type TypeInfo struct {
	Type       string `json:"type"`
	ENIs       int    `json:"enis"`
	IPv4PerENI int    `json:"ipv4PerENI"`
	IPv6PerENI int    `json:"ipv6PerENI"`
	Prefixes   bool   `json:"prefixes"`
	Branches   int    `json:"branches"`
	MaxPods    int    `json:"maxPods"` // with single IPv4 addresses
}

// Failure is the body of every reply that is not a success.
type Failure struct {
	Error  string       `json:"error"`
	Fields []FieldError `json:"fields,omitempty"`
}
