// Package branch is a provider of VPC ports: branch interfaces of EC2 instances. A port is an
// ENI, and bound to an instance while it is a branch of the instance's trunk: what the
// trunk's link carries with the VLAN's ID is the port's, and EC2 enforces the port's
// security groups. The trunks are made elsewhere (internal/ec2/eni).
//
// What EC2 is like, and what follows:
//
//   - A port is made in a subnet of the zone of its instance: nothing is made before the
//     host is known (Traits.NeedsHost). The same request has the same client token, so
//     that one whose reply was lost makes no second ENI.
//   - Listings trail changes. What a reply told outranks them for Settings.Settle.
//   - Nothing that EC2 describes tells of which trunk an ENI is a branch, and under which
//     VLAN: tags do, which are written before the branch is associated. Anybody in the
//     account may write tags; what this process was told by a reply it believes more.
//   - Nothing tells the ID of an association either, without which it cannot be ended: it is
//     written down as a tag afterwards. Where a process ended before it could, the same
//     request is made again, whose client token follows from the tags.
//   - EC2 refuses a VLAN that another branch of the trunk has: the next one is tried.
//   - An ENI that is a branch may be deleted, which ends the association.
//   - Each ENI has an address of IPv4, and of a subnet with a block of IPv6 as many of that as are
//     asked for. Which of them are the port's follows from Settings.Families.
//
// The files:
//
//	settings.go  what a provider is made of
//	tags.go      by what its ENIs are known
//	network.go   Provider.Network; the subnets
//	port.go      an ENI as a port
//	list.go      Provider.Ports and Get
//	memory.go    what replies told
//	create.go    Provider.Create
//	change.go    Provider.Update and Delete
//	bind.go      a port as a branch of an instance's trunk
//	notes.go     the IDs of associations, written down when no pod waits
//	trunks.go    which instance has which trunk
//	vlans.go     which VLAN is next
//	errors.go    failures into classes
package branch
