// Package plug has what the packages below it have in common, which plug a VPC's ports
// into pods: what is wanted, what can go wrong, and what each of them promises (Plugger).
//
//	podif       the pod's end: name, MAC address, addresses, MTU, routes, source rules
//	ovs         straight on the integration bridge of Open vSwitch, for OVN and Neutron's OVS agent
//	hybrid      by a Linux bridge of the port's own before it, for firewalls that filter there
//	nsveth      an interface that an agent (Alcor's) has put into the VPC's namespace
//	vlan        a VLAN on a link of the node's, as EC2's branch interfaces are on a trunk's
//	routedvlan  the same with the VLAN on the node, which routes between it and the pod
//	tap         a tap device before any of them, for a virtual machine in the pod
//
// Nothing here knows Kubernetes or asks a provider: what to plug comes in a Want, and
// everything in it that came from elsewhere is checked (Want.Validate) before the
// kernel or Open vSwitch is touched.
//
// # Ownership
//
// What was made for a port can be told apart, whoever looks: links on the node,
// and VLANs in pods, are in the link group LinkGroup from their creation on and carry the
// attachment and the whole port ID in their alias (Mark); rows of OVSDB carry both in their
// external IDs. A link of the group without an alias was being made when the program
// ended. Nothing else is ever changed or removed.
package plug
