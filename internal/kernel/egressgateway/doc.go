// Package egressgateway is an egress gateway in the kernel: it takes clients' packets out of their
// tunnels, translates what goes to the Egress's destinations to the gateway's own address, and
// sends answers back through the tunnels.
//
// All of it lives in the gateway's network namespace and goes on without the program that set it
// up. The next one takes it over: Apply reads what the kernel has and changes what differs.
//
// Of each client the kernel has an element of an nftables set, with the client's UID as its
// comment, and a route. What is taken of FoU has the client's address as its source, inside and
// outside, and no IP options in either header, so that what is looked at is where it is looked for.
package egressgateway
