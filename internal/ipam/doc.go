// Package ipam is address logic without a world around it: no I/O, no clock,
// no cloud, no Kubernetes. The Allocator hands out the addresses of one node
// in one family, Node those of both, a holder's all of one group; Policy turns warm
// targets into a demand.
//
// Addresses come in groups (an ENI, or a block of a pool). A group holds units:
// each delegated prefix is one, and the single addresses together are one.
// Take picks by a stated order, so that groups and prefixes empty and can be
// given back:
//
//  1. the group with the most used addresses; then the lowest index; then the one
//     whose address to be taken has been free longest; then the lowest ID;
//  2. in it, prefixes before single addresses, as these are what a subnet
//     without free prefixes forced upon us; the prefix with the most used
//     addresses; then the lowest prefix;
//  3. in it, the address that has been free longest; then the lowest.
package ipam
