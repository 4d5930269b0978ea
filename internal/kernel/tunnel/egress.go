// Package tunnel has what both sides of an egress tunnel share: the pod whose packets
// go to the outside by a gateway (internal/kernel/egressclient), and the gateway
// (internal/kernel/egressgateway). Either sends IP packets of a pod inside UDP to the other
// (Foo over UDP, https://lwn.net/Articles/614348/): IPv4 in IPv4 by a device of type
// ipip, IPv6 in IPv6 by one of type ip6tnl, both made by internal/kernel/tunnel.
//
// The packages below know no Kubernetes: what is to be set up comes as values.
package tunnel

import "errors"

// ErrNoFoU tells that this kernel cannot carry the tunnels: it lacks Foo over UDP, or the
// devices ipip or ip6tnl. The error that wraps it says which, and what to load.
var ErrNoFoU = errors.New("the kernel lacks what egress tunnels need")

// Names of the tunnel devices, one of a family, in the network namespaces of clients and of
// gateways.
const (
	Link4 = "berth-egress4"
	Link6 = "berth-egress6"
)

// Table is the nftables table (family inet) that has Berth's egress rules in a network
// namespace of either side.
const Table = "berth-egress"
