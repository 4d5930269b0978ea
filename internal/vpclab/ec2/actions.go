package ec2

// actions are all the actions that the lab knows. Each reads its parameters,
// calls ready, and only then touches the cloud.
var actions = map[string]func(*request) (any, error){}

// An init avoids the cycle from the handler, which looks actions up, to the
// actions, which take the handler's request.
func init() {
	for name, run := range map[string]func(*request) (any, error){
		"AssignIpv6Addresses":             assignIPv6,
		"AssignPrivateIpAddresses":        assignIPv4,
		"AttachNetworkInterface":          attachENI,
		"CreateNetworkInterface":          createENI,
		"CreateTags":                      createTags,
		"DeleteNetworkInterface":          deleteENI,
		"DeleteTags":                      deleteTags,
		"DescribeInstances":               describeInstances,
		"DescribeInstanceTypes":           describeInstanceTypes,
		"DescribeNetworkInterfaces":       describeENIs,
		"DescribeRouteTables":             describeRouteTables,
		"DescribeSecurityGroups":          describeGroups,
		"DescribeSubnets":                 describeSubnets,
		"DescribeTags":                    describeTags,
		"DescribeVpcs":                    describeVPCs,
		"DetachNetworkInterface":          detachENI,
		"ModifyNetworkInterfaceAttribute": modifyENI,
		"RunInstances":                    runInstances,
		"StartInstances":                  startInstances,
		"StopInstances":                   stopInstances,
		"TerminateInstances":              terminateInstances,
		"UnassignIpv6Addresses":           unassignIPv6,
		"UnassignPrivateIpAddresses":      unassignIPv4,
	} {
		actions[name] = run
	}
}
