// Package ipam is pure address logic: no I/O, no clock,
// no cloud, no Kubernetes. The Allocator hands out the addresses of one node
// in one family, and Node those of both, all of a holder from one group. Policy turns warm
// targets into a demand.
//
// Addresses come in groups (an ENI, or a block of a pool). A group holds units:
// each delegated prefix is one, and the single addresses together are one.
// Take picks in this order, so that groups and prefixes become empty and can be
// released:
//
//  1. the group with the most used addresses; then the lowest index; then the one
//     whose next address has been free longest; then the lowest ID;
//  2. in it, prefixes before single addresses, as these come from a subnet
//     without free prefixes; the prefix with the most used
//     addresses; then the lowest prefix;
//  3. in it, the address that has been free longest; then the lowest.
package ipam
