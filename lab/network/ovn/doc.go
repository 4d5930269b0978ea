// Package ovn is a VPC's data path in the lab: the real OVN and Open vSwitch, as packaged by Debian, without Neutron.
// OVN's databases and northd run in one namespace; each node has Open vSwitch, which switches in user space, and OVN's
// controller, and carries the pods' packets to the other nodes in Geneve over a separate link. Apply writes networks,
// ports and groups in the same form as Neutron's OVN driver, so that security groups, port security and ovn-installed
// work as in OVN.
//
//	central.go    programs, databases and northd
//	switch.go     a node
//	underlay.go   the link between nodes
//	uplink.go     connection of networks to the outside
//	state.go      networks, ports, groups
//	apply.go      changes from one state to the next
//	watch.go      status of ports
package ovn
