package egressclient

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// Errors that callers distinguish with errors.Is.
var (
	// ErrNoFoU is tunnel.ErrNoFoU.
	ErrNoFoU = tunnel.ErrNoFoU
	// ErrNoNetns is rtnl.ErrNoNetns: the pod's namespace is gone.
	ErrNoNetns = rtnl.ErrNoNetns
)

// Routing tables in a pod. Those of destinations have the numbers of Coil's design ("Routing"). Each gateway has a
// table, numbered by its ID.
const (
	tableDestinations = 117
	tableDefault      = 118
	tableGateways     = 11700
)

// Priorities of the rules in a pod, those from 1800 to 2100 as in Coil's design. The rules of a pod's further
// interfaces are at 2048 (rtnl.LaterMetric); packets from their addresses skip all of these.
const (
	priorityOthers      = 1790 // from a further interface: to priorityPassed
	priorityOthersBound = 1791 // from a socket bound to a further interface: likewise
	priorityOwnWay      = 1795 // marked to go its own way: the main table
	priorityLinkLocal   = 1800
	priorityOuter       = 1810 // to a gateway within a destination: the main table
	priorityGateways    = 1850 // marked for a gateway: its table
	priorityDestination = 1900
	priorityCluster     = 2000 // and up, in order
	priorityClusterLast = 2046
	priorityPassed      = 2047
	priorityOthersLast  = 2099 // from a further interface: to priorityEnd
	priorityDefault     = 2100
	priorityEnd         = 2150
)

// Parts of the mark of packets and connections. Berth does not change other bits.
const (
	markGateway = 0x00ff0000 // on connections and packets: the gateway's ID
	markOwnWay  = 0x01000000 // on packets that use the main table
	markShift   = 16
	maxGateway  = 255
)

// Metrics of the routes to destinations. The unreachable fallback is used when the other one is missing.
const (
	metricVia      = 1024
	metricFallback = 4096
)

// noGateway is the next hop of a route to the tunnel if there is no gateway; nftables rejects packets to it. It is
// the IPv4 dummy address (RFC 7600, section 4.8) or one of the IPv6 discard-only prefix (RFC 6666).
func noGateway(family int) netip.Addr {
	if family == unix.AF_INET6 {
		return netip.MustParseAddr("100::1")
	}
	return netip.MustParseAddr("192.0.0.8")
}

// nearby are destinations that no Egress can have: link-local addresses, as in Coil's design, and multicast, which
// gateways do not forward. (IPv6 multicast is in the kernel's table local.)
func nearby(family int) []netip.Prefix {
	if family == unix.AF_INET6 {
		return []netip.Prefix{netip.MustParsePrefix("fe80::/10")}
	}
	return []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4")}
}

// linkPrefix begins the names of the tunnels' devices.
const linkPrefix = "berth-egress"
