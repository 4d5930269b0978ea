// Package policytable enforces network policies with nftables, in a separate table. Policies judge the first packet of
// a connection, after the translation by Services; connection tracking accepts later packets. A map leads from a pod's
// address to the chain of its policies, which pods with the same policies share. A change is one transaction that
// contains only the differences.
//
//	base.go     the chains that do not depend on policies
//	compile.go  a cache of compiled policies
//	inside.go   the table of a pod whose packets do not pass the node's IP stack
//	denied.go   counters and the log of rejected packets
//	content.go  the desired content of the table, as a function of policies, pods and sets
//	rules.go    a policy's rules as nftables rules
//	apply.go    the transaction from one content to another
//	ended.go    connections that began before a policy denied them
//
// Other tables at the same hooks apply too: a packet that one of them drops is dropped.
package policytable
