package plan

import (
	"fmt"
	"math"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Kind is the kind of an Action, and its name in logs and metrics.
type Kind string

// The kinds of action.
const (
	Assign                 Kind = "assign"       // assign addresses or prefixes to an attached ENI
	Create                 Kind = "create"       // create a detached ENI with its first addresses
	Attach                 Kind = "attach"       // attach a detached ENI of Berth's
	Unassign               Kind = "unassign"     // release free addresses or prefixes of an ENI
	Detach                 Kind = "detach"       // detach an ENI that is not needed
	Delete                 Kind = "delete"       // delete a detached ENI of Berth's
	SetDeleteOnTermination Kind = "set-deletion" // correct DeleteOnTermination
	Retag                  Kind = "tag"          // correct an instance tag that names another instance
	SetGroups              Kind = "set-groups"   // set the security groups to the primary's

	CreateTrunk Kind = "create-trunk" // create a detached trunk
	AttachTrunk Kind = "attach-trunk" // attach a detached trunk of Berth's
	DetachTrunk Kind = "detach-trunk" // detach a trunk that is not configured
)

// Activities of a reconciler other than the actions of a plan. The names appear where failures are recorded and
// calls counted.
const (
	Observe      Kind = "observe"       // describe the node's ENIs
	FindSubnets  Kind = "find-subnets"  // describe the candidate subnets
	FindRoutes   Kind = "find-routes"   // describe the route tables of the VPC
	FindGroups   Kind = "find-groups"   // find the security groups of new ENIs
	FindLimits   Kind = "find-limits"   // fetch the limits of the instance type
	FindInstance Kind = "find-instance" // find out whether the instance exists and runs
	Collect      Kind = "collect"       // delete orphans
)

// Action is one step towards the policy, small enough for one EC2 call.
type Action struct {
	Kind         Kind
	ENI          string // all kinds except Create and CreateTrunk
	Subnet       string // Create, CreateTrunk, and a prepared Assign
	Index        int    // device index; Create, Attach, and those of trunks
	cloud.Amount        // Create; of one family for Assign and Unassign
}

// Count returns the number of IPv4 addresses in an amount, including those in prefixes.
func Count(a cloud.Amount) int { return CountOf(ipfamily.IPv4, a) }

// CountOf returns the number of addresses of a family in an amount, including those in prefixes; an IPv6 /80 counts
// as ipam.IPv6PrefixAddresses.
func CountOf(f ipfamily.Family, a cloud.Amount) int {
	addresses, prefixes := a.Of(f)
	return addresses + prefixes*prefixAddresses[f]
}

// prefixAddresses is the number of addresses that a delegated prefix counts as.
var prefixAddresses = [ipfamily.Number]int{ipam.PrefixAddresses, ipam.IPv6PrefixAddresses}

// Pods returns how many pods an amount on one ENI can serve: each takes one address of every family.
func Pods(s ipfamily.Set, a cloud.Amount) int {
	n := math.MaxInt
	for _, f := range s.Families() {
		n = min(n, CountOf(f, a))
	}
	return n
}

// Weight returns how many IPv4 addresses of the subnet an action takes or releases. A new ENI takes one for itself.
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
