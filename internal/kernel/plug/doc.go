// Package plug defines the desired state (Want), the errors, and the contract (Plugger) of the packages below it,
// which plug ports of a VPC into pods.
//
//	podif       the pod's end: name, MAC address, addresses, MTU, routes, source rules
//	ovs         directly on the integration bridge of Open vSwitch, for OVN and Neutron's OVS agent
//	hybrid      through a Linux bridge for each port, for firewalls that filter there
//	nsveth      an interface that an agent (Alcor's) puts into the VPC's namespace
//	vlan        a VLAN on a link of the node, such as an EC2 branch interface on a trunk ENI
//	routedvlan  the same with the VLAN on the node, which routes between it and the pod
//	tap         a tap device in front of any of them, for a virtual machine in the pod
//
// These packages know neither Kubernetes nor providers. The caller describes the port in a Want.
// All values from other systems are validated (Want.Validate) before the kernel or Open vSwitch is
// changed.
//
// # Ownership
//
// Everything that is created for a port records its owner. Links on the node and VLANs in pods are created in the link
// group LinkGroup, and their alias contains the attachment and the full port ID (Mark). Rows of OVSDB have both in their
// external IDs. A link of the group without an alias is incomplete: the program ended while creating it. Berth never
// changes or removes anything else.
package plug
