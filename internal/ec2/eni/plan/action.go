package plan

import (
	"fmt"
	"math"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Kind is what an Action does, and its name in logs and metrics.
type Kind string

// The kinds of action.
const (
	Assign                 Kind = "assign"       // addresses or prefixes to an attached ENI
	Create                 Kind = "create"       // a detached ENI with its first addresses
	Attach                 Kind = "attach"       // a detached ENI of ours
	Unassign               Kind = "unassign"     // free addresses or prefixes off an ENI
	Detach                 Kind = "detach"       // an ENI that nobody needs
	Delete                 Kind = "delete"       // a detached ENI of ours
	SetDeleteOnTermination Kind = "set-deletion" // corrects DeleteOnTermination
	Retag                  Kind = "tag"          // an ENI whose tag names another instance
	SetGroups              Kind = "set-groups"   // gives an ENI those of the primary

	CreateTrunk Kind = "create-trunk" // a detached trunk
	AttachTrunk Kind = "attach-trunk" // a detached trunk of ours
	DetachTrunk Kind = "detach-trunk" // a trunk that is not configured
)

// What a reconciler does besides the actions of a plan. The names are used where failures are recorded
// and calls counted.
const (
	Observe      Kind = "observe"       // describe the node's ENIs
	FindSubnets  Kind = "find-subnets"  // describe the candidate subnets
	FindRoutes   Kind = "find-routes"   // describe the route tables of the VPC
	FindGroups   Kind = "find-groups"   // find the security groups of new ENIs
	FindLimits   Kind = "find-limits"   // ask what the instance type allows
	FindInstance Kind = "find-instance" // ask whether the instance exists and runs
	Collect      Kind = "collect"       // delete orphans
)

// Action is one step towards the policy, small enough for one EC2 call.
type Action struct {
	Kind         Kind
	ENI          string // all but Create and CreateTrunk
	Subnet       string // Create, CreateTrunk; Assign, once it is prepared
	Index        int    // Create, Attach, and those of trunks: the device index
	cloud.Amount        // Create; Assign, Unassign: of one family
}

// Count returns the number of IPv4 addresses in an amount, those inside prefixes included.
func Count(a cloud.Amount) int { return CountOf(ipfamily.IPv4, a) }

// CountOf returns the number of addresses of a family in an amount, those inside prefixes included; a
// /80 counts as ipam.IPv6PrefixAddresses.
func CountOf(f ipfamily.Family, a cloud.Amount) int {
	addresses, prefixes := a.Of(f)
	return addresses + prefixes*prefixAddresses[f]
}

// prefixAddresses is the number of addresses that a delegated prefix counts as.
var prefixAddresses = [ipfamily.Number]int{ipam.PrefixAddresses, ipam.IPv6PrefixAddresses}

// Pods returns the number of pods that an amount on one ENI is enough for: each takes one address of
// every family.
func Pods(s ipfamily.Set, a cloud.Amount) int {
	n := math.MaxInt
	for _, f := range s.Families() {
		n = min(n, CountOf(f, a))
	}
	return n
}

// Weight returns how many IPv4 addresses of the subnet an action takes or releases. A new ENI takes one
// for itself.
func (a Action) Weight() int {
	n := Count(a.Amount)
	if a.Kind == Create || a.Kind == CreateTrunk {
		n++
	}
	return n
}

// String formats an action as "assign 5 addresses to eni-a".
func (a Action) String() string {
	switch a.Kind {
	case Assign:
		return fmt.Sprintf("assign %s to %s", amount(a.Amount), a.ENI)
	case Unassign:
		return fmt.Sprintf("unassign %s from %s", amount(a.Amount), a.ENI)
	case Create:
		return fmt.Sprintf("create an ENI with %s in %s for device index %d", amount(a.Amount), a.Subnet, a.Index)
	case CreateTrunk:
		return fmt.Sprintf("create a trunk in %s for device index %d", a.Subnet, a.Index)
	case Attach, AttachTrunk:
		return fmt.Sprintf("attach %s at device index %d", a.ENI, a.Index)
	default:
		return fmt.Sprintf("%s %s", a.Kind, a.ENI)
	}
}

// amount formats an amount as "5 addresses and 1 IPv6 prefixes".
func amount(a cloud.Amount) string {
	var parts []string
	for _, p := range [...]struct {
		n    int
		what string
	}{{a.Addresses, "addresses"}, {a.Prefixes, "prefixes"}, {a.IPv6, "IPv6 addresses"}, {a.IPv6Prefixes, "IPv6 prefixes"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		return "0 addresses"
	}
	return strings.Join(parts, " and ")
}
