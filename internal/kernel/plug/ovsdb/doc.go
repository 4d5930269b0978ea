// Package ovsdb keeps the rows of Open vSwitch's database by which a link on the node is a
// port of the integration bridge, and waits for what Open vSwitch and OVN write beside them.
//
// What is decided on is asked for each time: what the library keeps in memory of the
// database trails the transactions of one's own. It is used for waiting alone.
//
// The external IDs iface-id, attached-mac, iface-status and vm-uuid are those that OVN's
// controller and Neutron's OVS agent look for (ovn-architecture(7), "Life Cycle of a VIF";
// Open vSwitch's Documentation/topics/integration.rst). berth-attachment is Berth's own.
package ovsdb

// External IDs of an Interface.
const (
	IfaceID      = "iface-id"
	AttachedMAC  = "attached-mac"
	IfaceStatus  = "iface-status"
	VMUUID       = "vm-uuid"
	AttachmentID = "berth-attachment"
	OVNInstalled = "ovn-installed" // "true" from OVN's controller when all flows of the port are there
)

// database is the name of Open vSwitch's schema.
const database = "Open_vSwitch"
