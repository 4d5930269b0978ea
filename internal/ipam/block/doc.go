// Package block does the arithmetic of address pools (Coil's design, "IP Address Management"): a Layout
// maps indexes to blocks of addresses, a Carver knows which indexes are taken and which is next. No
// I/O, no Kubernetes.
//
// A pool's blocks are counted from 0 over its subnets in their order, so appending a subnet moves no
// block. The same index stands for as many IPv4 and IPv6 addresses. All addresses of a block are
// usable, its first and last too, as each pod has a link of its own.
//
// Indexes end at MaxIndex: the part of a larger pool, such as an IPv6 /48, beyond it is never used.
package block
