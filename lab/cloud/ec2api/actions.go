package ec2api

import (
	"maps"
	"slices"
)

// action reads its parameters, calls ready, and only then touches the cloud.
// It returns what to reply as XML.
type action func(*request) (any, error)

// Actions names all the actions that the lab knows.
func Actions() []string { return slices.Sorted(maps.Keys(actions())) }

// actions are all the actions that the lab knows.
func actions() map[string]action {
	return map[string]action{
		"AssignIpv6Addresses":                assignIPv6,
		"AssignPrivateIpAddresses":           assignIPv4,
		"AssociateTrunkInterface":            associateTrunk,
		"AttachNetworkInterface":             attachENI,
		"CreateNetworkInterface":             createENI,
		"CreateTags":                         createTags,
		"DeleteNetworkInterface":             deleteENI,
		"DeleteTags":                         deleteTags,
		"DescribeAvailabilityZones":          describeZones,
		"DescribeInstances":                  describeInstances,
		"DescribeInstanceStatus":             describeInstanceStatus,
		"DescribeInstanceTypes":              describeInstanceTypes,
		"DescribeNetworkInterfaceAttribute":  describeENIAttribute,
		"DescribeNetworkInterfaces":          describeENIs,
		"DescribeRouteTables":                describeRouteTables,
		"DescribeSecurityGroups":             describeGroups,
		"DescribeSubnets":                    describeSubnets,
		"DescribeTags":                       describeTags,
		"DescribeTrunkInterfaceAssociations": describeTrunkAssociations,
		"DescribeVpcs":                       describeVPCs,
		"DetachNetworkInterface":             detachENI,
		"DisassociateTrunkInterface":         disassociateTrunk,
		"ModifyNetworkInterfaceAttribute":    modifyENI,
		"RunInstances":                       runInstances,
		"StartInstances":                     startInstances,
		"StopInstances":                      stopInstances,
		"TerminateInstances":                 terminateInstances,
		"UnassignIpv6Addresses":              unassignIPv6,
		"UnassignPrivateIpAddresses":         unassignIPv4,
	}
}
