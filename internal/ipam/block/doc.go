// Package block implements the arithmetic of address pools (Coil's design, "IP Address Management"): a Layout maps indexes
// to blocks of addresses, and a Carver tracks which indexes are taken and which is next. It does no I/O and knows nothing
// of Kubernetes.
//
// The blocks of a pool are numbered from 0 over its subnets in order, so appending a subnet moves no block. An index stands
// for the same number of IPv4 and IPv6 addresses. All addresses of a block are usable, including the first and the last,
// as each pod has its own link.
//
// Indexes end at MaxIndex. The rest of a larger pool, such as an IPv6 /48, is never used.
package block
