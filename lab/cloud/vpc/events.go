package vpc

import "time"

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	// InstanceLaunched: the instance runs, for the first time or after a stop.
	// ENIAttached follows for each ENI that is attached.
	InstanceLaunched EventKind = "InstanceLaunched"
	// InstanceStopped: the machine is off and all its links are gone, though
	// its ENIs stay attached.
	InstanceStopped EventKind = "InstanceStopped"
	// InstanceTerminated: the machine is gone. ENIDetached preceded for each ENI, and
	// ENIDisassociated for each branch.
	InstanceTerminated EventKind = "InstanceTerminated"
	// ENIAttached: the link appears in the instance at this moment, which is
	// the link delay after AttachNetworkInterface returned.
	ENIAttached EventKind = "ENIAttached"
	// ENIDetached: the link is gone. ENI.Attachment still says from where.
	ENIDetached EventKind = "ENIDetached"
	// ENIAssociated: the trunk's link carries the branch's packets from this
	// moment. It follows ENIAttached of the trunk for each of its branches.
	ENIAssociated EventKind = "ENIAssociated"
	// ENIDisassociated: it does not any more. ENI.Trunk still says where it was.
	ENIDisassociated EventKind = "ENIDisassociated"
	// AddressesChanged: addresses or prefixes of an ENI, attached or not.
	AddressesChanged EventKind = "AddressesChanged"
	// GroupsChanged: the security groups of an ENI, or its source/destination
	// check.
	GroupsChanged EventKind = "GroupsChanged"
	// RulesChanged: those of a security group, or there is a new one.
	RulesChanged EventKind = "RulesChanged"
)

// Event is one change of the books. Instance and ENI are copies, zero where
// the event has none. Seq counts the events; Books.Seq says which a snapshot
// already contains.
type Event struct {
	Seq      uint64
	Time     time.Time
	Kind     EventKind
	Instance Instance
	ENI      ENI
}
