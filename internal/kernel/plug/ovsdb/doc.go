// Package ovsdb manages the rows of Open vSwitch's database that make a link on the node a port of the integration
// bridge, and waits for the values that Open vSwitch and OVN write into these rows.
//
// Decisions are based on queries. The library's cache lags behind the client's own transactions, so
// it is used for waiting only.
//
// OVN's controller and Neutron's OVS agent read the external IDs iface-id, attached-mac,
// iface-status and vm-uuid (ovn-architecture(7), "Life Cycle of a VIF"; Open vSwitch's
// Documentation/topics/integration.rst). berth-attachment is Berth's own.
package ovsdb

// External IDs of an Interface.
const (
	IfaceID      = "iface-id"
	AttachedMAC  = "attached-mac"
	IfaceStatus  = "iface-status"
	VMUUID       = "vm-uuid"
	AttachmentID = "berth-attachment"
	OVNInstalled = "ovn-installed" // OVN's controller sets it to "true" when it has installed all flows of the port
)

// database is the name of Open vSwitch's schema.
const database = "Open_vSwitch"
