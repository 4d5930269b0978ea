// Package egressclient sets up a pod's network namespace so that packets to the destinations of the pod's Egresses go
// through Foo-over-UDP tunnels to their gateways, and all others take their usual route (the design of Coil v2,
// "On-demand NAT for egress traffics").
//
//   - A tunnel device of each family (internal/kernel/tunnel) leads to all gateways.
//   - Table 117 has the destinations, table 118 default routes. Networks of the cluster are exempt from the latter and
//     use the main table. Each route has an unreachable fallback: without a gateway or a device, packets are rejected
//     and do not take another route.
//   - nftables chooses a gateway for each new connection and stores it in the connection's mark. Each gateway has a
//     rule and a routing table for packets with its mark. So a connection keeps its gateway when others are added or
//     removed, and the connections of one client are spread over gateways, also those to one destination (the
//     kernel's choice among IPv6 next hops ignores the source port).
//   - Packets from tunnels are accepted from gateways only, and only as replies of connections that the pod opened:
//     tunnels do not bypass NetworkPolicies.
//
// Pure functions compute the desired state from a Setup (plan.go, filter.go). The rest compares it with the kernel
// and writes what differs, in an order in which no packet to a destination bypasses the gateways. Only routes and
// rules with routing protocol 190 (rtnl.Protocol) and the nftables table tunnel.Table are changed.
//
// Limitation: the kernel stores the path MTU beyond the gateway (RFC 1191, RFC 8201) at the route to the first gateway.
// TCP uses it with every gateway, UDP over IPv6 with the first one only.
package egressclient
