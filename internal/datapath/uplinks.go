package datapath

import (
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplinks is how packets of pods leave the node and come to it: a VPC, where each
// address is of an ENI, or a Routed, where a router knows the node's blocks. All
// that differs between the two is behind it.
type Uplinks interface {
	// validate names the first field that cannot work.
	validate() error
	// ipv6 tells whether the IPv6 data path is wanted.
	ipv6() bool
	// links picks the links by which packets leave, of all that the node has. The
	// first is the primary one.
	links(n *Node, all []netlink.Link) ([]netlink.Link, error)
	// rules are the policy rules of a family besides that of PodTable.
	rules(family int) []netlink.Rule
	// owns tells the rules of the node from those of a single ENI.
	owns(r netlink.Rule) bool
	// addTo adds its sets and chains to the nftables table.
	addTo(rs *ruleset, primary string)
	// entries are what the maps of addTo have to hold, those in the kernel included.
	entries(n *Node, conn *nftables.Conn) (uplinkEntries, error)
	// restore sets up what a Repair wants.
	restore(n *Node, want Wanted) (did []string, err error)
	// clearOther removes the routes of the other implementation, which another
	// daemon left, and forgets what this Node set up for it. Rules and filters follow
	// from the rest.
	clearOther(n *Node) (changed []string, err error)
}

var (
	_ Uplinks = VPC{}
	_ Uplinks = Routed{}
)

// families are the address families of the data path. IPv4 is always there: it
// costs nothing, and a node without it does not exist in EC2.
func families(u Uplinks) []int {
	if u.ipv6() {
		return []int{unix.AF_INET, unix.AF_INET6}
	}
	return []int{unix.AF_INET}
}
