// Package migrate describes how a node's pods move from another network to Berth, and back. It holds what the node
// tool (berthctl migrate) and the cluster tool (kubectl berth migrate) share: plans, reports and their text. Each
// former system has a package below this one, which implements System for one node.
package migrate

import (
	"context"
	"net/netip"
	"slices"
)

// The former systems: FROM in `berthctl migrate FROM`.
const (
	AmazonVPCCNI = "amazon-vpc-cni"
	Coil         = "coil"
	CoilV1       = "coil-v1"
	Cilium       = "cilium"
)

// System migrates one node from a former system. Each method can be called again after the process was killed.
type System interface {
	// Plan reads the state of the node, and changes nothing.
	Plan(ctx context.Context) (Plan, error)
	// Apply adopts the pods of the former system. It refuses while the former daemon or berthd runs, and when the plan
	// has an obstacle that blocks.
	Apply(ctx context.Context) (Report, error)
	// Finish removes what the former system left on the node. It cannot be rolled back. It refuses while pods of
	// the former system are left.
	Finish(ctx context.Context) (Report, error)
	// Rollback returns to the former system all pods that it can serve. It refuses while either daemon runs.
	Rollback(ctx context.Context) (Report, error)
	// Verify compares records, kernel and the former system's state, and changes nothing: each address has one owner, and
	// each pod answers.
	Verify(ctx context.Context) (Report, error)
}

// Fate is what the migration does with a pod.
type Fate string

// The fates of pods.
const (
	Adopt   Fate = "adopt"   // it keeps running and becomes Berth's
	Adopted Fate = "adopted" // it is Berth's, and was the former system's
	Replace Fate = "replace" // it must be deleted and created again
	Gone    Fate = "gone"    // the former system lists it, and it does not exist
	Berth   Fate = "berth"   // Berth created it
)

// Pod is a pod on the node, by one of its interfaces.
type Pod struct {
	Namespace   string       `json:"namespace"`
	Name        string       `json:"name"`
	ContainerID string       `json:"containerID"`
	Interface   string       `json:"interface"`
	Addresses   []netip.Addr `json:"addresses"`
	HostLink    string       `json:"hostLink,omitempty"` // on the node
	Uplink      string       `json:"uplink,omitempty"`   // the ENI or block that has the addresses
	Fate        Fate         `json:"fate"`
	Why         string       `json:"why,omitempty"` // for Replace
	// Reached are the addresses that answered, set by steps that probe them.
	Reached []Reached `json:"reached,omitempty"`
}

// Reached is an address of a pod that answered the node.
type Reached struct {
	Address netip.Addr `json:"address"`
	By      string     `json:"by"`
}

// How a pod answered.
const (
	ByICMP = "ICMP echo"
	ByARP  = "ARP"
	ByNDP  = "neighbour discovery"
)

// Step is a step of a migration, in the order of execution.
type Step struct {
	Name string `json:"name"` // a short word
	What string `json:"what"`
	Done bool   `json:"done,omitempty"`
	// Final marks the first step that cannot be undone.
	Final bool `json:"final,omitempty"`
}

// Obstacle is a condition on the node that hinders the migration.
type Obstacle struct {
	What   string `json:"what"`
	Remedy string `json:"remedy"`
	Blocks bool   `json:"blocks"` // the migration is refused; otherwise it is a warning
}

// Plan is what a migration found and would do. Lists are never null in JSON.
type Plan struct {
	From      string     `json:"from"`
	Found     []string   `json:"found"` // readable facts
	Pods      []Pod      `json:"pods"`
	Steps     []Step     `json:"steps"`
	Obstacles []Obstacle `json:"obstacles"`
}

// Report is the result of a step.
type Report struct {
	From    string   `json:"from"`
	Command string   `json:"command"` // apply, finish, rollback or verify
	Pods    []Pod    `json:"pods"`    // after the step
	Changed []string `json:"changed"` // what the step changed; empty: nothing was left to do
	// Kept are files of the former system that Finish left, with the reason.
	Kept []string `json:"kept,omitempty"`
	// Problems are violations that Verify found, and failures of the other steps.
	Problems []string `json:"problems"`
}

// Count returns the number of pods with a fate.
func Count(pods []Pod, fate Fate) (n int) {
	for _, p := range pods {
		if p.Fate == fate {
			n++
		}
	}
	return n
}

// Blocked returns the obstacles that block the migration.
func (p Plan) Blocked() []Obstacle {
	return slices.DeleteFunc(slices.Clone(p.Obstacles), func(o Obstacle) bool { return !o.Blocks })
}

// Lasting checks twice, and returns the second report with the problems that both found, since pods that start or end
// during one check look like problems. It checks once if the first report has none.
func Lasting(look func() (Report, error)) (Report, error) {
	first, err := look()
	if err != nil || len(first.Problems) == 0 {
		return first, err
	}
	r, err := look()
	r.Problems = slices.DeleteFunc(r.Problems, func(p string) bool { return !slices.Contains(first.Problems, p) })
	return r, err
}
