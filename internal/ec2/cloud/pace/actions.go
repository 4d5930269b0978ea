package pace

import (
	"slices"

	"github.com/berthnet/berth/internal/ipfamily"
)

// Call describes an EC2 action.
type Call struct {
	// Action is EC2's name, such as "AssignPrivateIpAddresses".
	Action string
	// Idempotent calls are repeated if the reply is lost.
	Idempotent bool
	// GoneIsDone means that, if a repeated call finds no resource, an earlier attempt with a lost reply
	// succeeded.
	GoneIsDone bool
	// Begins means that the call starts work that other calls have to complete.
	Begins bool
}

// The actions that Berth uses. CreateENI and AssociateBranch are idempotent because of their client
// tokens. Assign and Unassign are for IPv4.
var (
	DescribeInstances      = Call{Action: "DescribeInstances", Idempotent: true}
	DescribeTypes          = Call{Action: "DescribeInstanceTypes", Idempotent: true}
	DescribeENIs           = Call{Action: "DescribeNetworkInterfaces", Idempotent: true}
	DescribeSubnets        = Call{Action: "DescribeSubnets", Idempotent: true}
	DescribeSecurityGroups = Call{Action: "DescribeSecurityGroups", Idempotent: true}
	DescribeRouteTables    = Call{Action: "DescribeRouteTables", Idempotent: true}
	CreateENI              = Call{Action: "CreateNetworkInterface", Idempotent: true, Begins: true}
	AttachENI              = Call{Action: "AttachNetworkInterface"}
	DetachENI              = Call{Action: "DetachNetworkInterface", Idempotent: true, GoneIsDone: true}
	DeleteENI              = Call{Action: "DeleteNetworkInterface", Idempotent: true, GoneIsDone: true}
	ModifyENI              = Call{Action: "ModifyNetworkInterfaceAttribute", Idempotent: true}
	Assign                 = Call{Action: "AssignPrivateIpAddresses"}
	Unassign               = Call{Action: "UnassignPrivateIpAddresses", Idempotent: true}
	AssignIPv6             = Call{Action: "AssignIpv6Addresses"}
	UnassignIPv6           = Call{Action: "UnassignIpv6Addresses", Idempotent: true}
	Tag                    = Call{Action: "CreateTags", Idempotent: true}
	AssociateBranch        = Call{Action: "AssociateTrunkInterface", Idempotent: true}
	DisassociateBranch     = Call{Action: "DisassociateTrunkInterface", Idempotent: true, GoneIsDone: true}
)

// AssignOf and UnassignOf are the calls to assign and unassign, by family.
var (
	AssignOf   = [ipfamily.Number]Call{Assign, AssignIPv6}
	UnassignOf = [ipfamily.Number]Call{Unassign, UnassignIPv6}
)

// Actions returns the names of all actions, sorted.
func Actions() []string {
	var names []string
	for _, c := range []Call{
		DescribeInstances, DescribeTypes, DescribeENIs, DescribeSubnets, DescribeSecurityGroups, DescribeRouteTables,
		CreateENI, AttachENI, DetachENI, DeleteENI, ModifyENI, Assign, Unassign, AssignIPv6, UnassignIPv6, Tag,
		AssociateBranch, DisassociateBranch,
	} {
		names = append(names, c.Action)
	}
	slices.Sort(names)
	return names
}
