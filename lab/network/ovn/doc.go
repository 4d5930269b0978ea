// Package ovn is a VPC's data path in the lab: the real OVN and Open vSwitch, as Debian has
// them, without Neutron. OVN's databases and northd run in one namespace; each node has Open
// vSwitch, switched in user space, and OVN's controller, and carries the pods' packets to the
// other nodes in Geneve over a link of its own. What networks, ports and groups there are is
// written by Apply in the words in which Neutron's OVN driver writes it, so security groups,
// port security and ovn-installed are OVN's own.
//
//	central.go    which programs; databases and northd
//	switch.go     a node
//	underlay.go   the link between nodes
//	uplink.go     the way of networks to what is outside
//	state.go      networks, ports, groups
//	apply.go      from one state to the next
//	watch.go      which ports are up
package ovn
