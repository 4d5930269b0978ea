package egressclient

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// Errors that a caller tells apart with errors.Is.
var (
	// ErrNoFoU is egress.ErrNoFoU.
	ErrNoFoU = tunnel.ErrNoFoU
	// ErrNoNetns is rtnl.ErrNoNetns: the pod's namespace is gone.
	ErrNoNetns = rtnl.ErrNoNetns
)

// Routing tables in a pod. Those of destinations are the document's ("Routing"); each gateway
// has one of its own, by its ID.
const (
	tableDestinations = 117
	tableDefault      = 118
	tableGateways     = 11700
)

// Priorities of the rules in a pod, those from 1800 to 2100 as in the document. Those of a
// pod's further interfaces are at 2048 (rtnl.LaterMetric): what comes from their addresses
// passes over all of these.
const (
	priorityOthers      = 1790 // from a further interface: to priorityPassed
	priorityOthersBound = 1791 // by a further interface, as a program asked for: likewise
	priorityOwnWay      = 1795 // marked to go its own way: the main table
	priorityLinkLocal   = 1800
	priorityOuter       = 1810 // to a gateway that is within a destination: the main table
	priorityGateways    = 1850 // marked for a gateway: its table
	priorityDestination = 1900
	priorityCluster     = 2000 // and up, in order
	priorityClusterLast = 2046
	priorityPassed      = 2047
	priorityOthersLast  = 2099 // from a further interface: to priorityEnd
	priorityDefault     = 2100
	priorityEnd         = 2150
)

// Parts of the mark of packets and connections. Other bits are other people's.
const (
	markGateway = 0x00ff0000 // of connections and packets: the gateway's ID
	markOwnWay  = 0x01000000 // of packets: they go by the main table
	markShift   = 16
	maxGateway  = 255
)

// Metrics of the routes to destinations: what is beneath is there for when the other is not.
const (
	metricVia     = 1024
	metricBeneath = 4096
)

// noGateway stands for a gateway where there is none and a route must lead to the tunnel all
// the same, where nftables refuses what would go there: the dummy address of IPv4 (RFC 7600,
// section 4.8) and one of the discard-only prefix of IPv6 (RFC 6666). Neither is anybody's.
func noGateway(family int) netip.Addr {
	if family == unix.AF_INET6 {
		return netip.MustParseAddr("100::1")
	}
	return netip.MustParseAddr("192.0.0.8")
}

// nearby are the destinations that no Egress has: link-local ones, as the document says, and
// multicast, which no gateway passes on. (Those of IPv6 are in the kernel's table local.)
func nearby(family int) []netip.Prefix {
	if family == unix.AF_INET6 {
		return []netip.Prefix{netip.MustParsePrefix("fe80::/10")}
	}
	return []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4")}
}

// linkPrefix begins the names of the tunnels' devices.
const linkPrefix = "berth-egress"
