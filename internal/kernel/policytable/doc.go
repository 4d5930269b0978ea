// Package policytable enforces network policies by nftables, in a table of its own. Connections
// are judged by their first packet, after translation by Services; later packets pass by connection
// tracking. A pod's address leads, by a map, to the chain of its policies, which pods with the same policies share.
// A change is one transaction that has only what differs.
//
//	base.go     the chains that do not depend on policies
//	compile.go  the same as before for what did not change
//	inside.go   the table of a pod whose packets do not pass the node's IP stack
//	denied.go   counters and the log of refused packets
//	content.go  what the table should contain, as a function of policies, pods and sets
//	rules.go    a policy's rules in the terms of nftables
//	apply.go    the transaction from one content to another
//	ended.go    connections that began before a policy forbade them
//
// The kernel is shared: other tables at the same hooks judge too, and what one of them drops is dropped.
package policytable
