// Package ipam is pure address logic, without I/O, clock, cloud or Kubernetes. The Allocator assigns the addresses of one
// node in one family, and Node those of both, with all addresses of a holder from one group. Policy turns warm targets
// into a demand.
//
// Addresses come in groups (an ENI, or a block of a pool). A group consists of units: each delegated prefix is one, and
// the single addresses together are one. Take selects in this order, so that groups and prefixes become empty and can be
// released:
//
//  1. the group with the most used addresses; then the lowest index; then the one
//     whose next address has been free longest; then the lowest ID;
//  2. within it, prefixes before single addresses, as these come from a subnet
//     without free prefixes; then the prefix with the most used addresses;
//     then the lowest prefix;
//  3. within it, the address that has been free longest; then the lowest.
package ipam
