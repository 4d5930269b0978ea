// Package alcor is a provider of VPC ports: Alcor (futurewei-cloud/alcor), by the REST API
// of its port, VPC and subnet managers behind one URL. There are no credentials: requests
// name the project. Nothing is repeated but what was refused for its host.
//
// No Alcor runs where this was written. What it does is by what Alcor's entities and
// controllers declare:
//
//   - A listing has ports of all projects, and is not narrowed by what the database's
//     record lacks: all is filtered here again.
//   - Bulk creation gives all of its ports in a subnet the same address
//     (FixedIpsProcessor.allocateFixedIpAddress sets each to the last that was allocated),
//     and, without addresses of their own, the same MAC address (MacProcessor does not
//     count). So ports are asked for one by one.
//   - A change leaves what it does not name or has null, but for port_security_enabled,
//     which becomes true; and its answer is the request. So a port is read before and
//     after.
//   - No host can be taken away: null leaves it, and "" is looked up at the node manager,
//     which has none of that name. A port that is bound to none has the tag Unbound.
//   - Revisions are there and not heeded.
//   - A host that the node manager does not have refuses the whole request. The port is
//     made or changed without it, and its binding has failed.
//   - Refusals of the managers of addresses come within the text of a 500.
//
// What follows:
//
//	settings.go  where Alcor is
//	call.go      one request
//	errors.go    failures into classes
//	wire.go      requests and replies as they are sent
//	network.go   Provider.Network
//	list.go      Provider.Ports and Get
//	create.go    Provider.Create
//	change.go    Provider.Update and Delete
//	binding.go   hosts
package alcor
