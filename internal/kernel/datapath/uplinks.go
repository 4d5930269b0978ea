package datapath

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplinks is how packets of pods leave the node and come to it: a VPC, where each
// address is of an ENI, a Routed, where a router knows the node's blocks, or Ports,
// where others carry them. All that differs between them is behind it, and none knows
// of another.
type Uplinks interface {
	// kind is a word that tells one implementation from the others.
	kind() string
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
	// state is what addTo leaves out, as it comes and goes with ENIs; that in the kernel is included.
	state(n *Node, conn *nftables.Conn) (uplinkState, error)
	// replaced is called after the nftables table was made anew.
	replaced(n *Node) (did []string, err error)
	// follow adapts to the Config what was set up for pods' addresses before.
	follow(n *Node) error
	// none are the Carriers of a Repair that wants none.
	none() Carriers
	// clear removes the routes of a node that has other uplinks now, which another
	// daemon left, and forgets what this Node set up. Rules and filters follow from
	// those of the others. It is asked of a zero value.
	clear(n *Node) (changed []string, err error)
}

// Carriers is what the addresses of pods are of, in the kernel: an UplinkList with a
// VPC, a BlockList with a Routed, nothing with Ports.
type Carriers interface {
	// restore sets them up.
	restore(n *Node) (did []string, err error)
	// tidy removes those that the node has besides.
	tidy(n *Node, has Inventory) (did []string, err error)
}

// implementations are all that there are, as zero values.
var implementations = []Uplinks{VPC{}, Routed{}, Ports{}}

// chosen are the node's uplinks, which must be of a kind to be asked what only that
// kind can do.
func chosen[U Uplinks](s *established) (u U, err error) {
	u, ok := s.config.Uplinks.(U)
	if !ok {
		return u, fmt.Errorf("the node's uplinks are %T, expected %T", s.config.Uplinks, u)
	}
	return u, nil
}

// families are the address families of the data path. IPv4 is always there: it
// costs nothing, and a node without it does not exist in EC2.
func families(u Uplinks) []int {
	if u.ipv6() {
		return []int{unix.AF_INET, unix.AF_INET6}
	}
	return []int{unix.AF_INET}
}

// Ports are the uplinks of a node whose pods have ports of VPCs only: others carry their
// packets, by links that internal/kernel/plug makes, and the node's own tables have no part in
// it, whatever their family: the node itself is not made to forward IPv6, which would
// cost it a default route that a router advertised. What ENIs or blocks of before left is
// removed.
type Ports struct{}

func (Ports) kind() string                                        { return "ports" }
func (Ports) validate() error                                     { return nil }
func (Ports) ipv6() bool                                          { return false }
func (Ports) links(*Node, []netlink.Link) ([]netlink.Link, error) { return nil, nil }
func (Ports) rules(int) []netlink.Rule                            { return nil }
func (Ports) owns(netlink.Rule) bool                              { return true }
func (Ports) addTo(*ruleset, string)                              {}
func (Ports) state(*Node, *nftables.Conn) (uplinkState, error)    { return uplinkState{}, nil }
func (Ports) replaced(*Node) ([]string, error)                    { return nil, nil }
func (Ports) follow(*Node) error                                  { return nil }
func (Ports) none() Carriers                                      { return noCarriers{} }

// clear has nothing to remove: nothing was made.
func (Ports) clear(*Node) ([]string, error) { return nil, nil }

// noCarriers are the Carriers of Ports.
type noCarriers struct{}

func (noCarriers) restore(*Node) ([]string, error)         { return nil, nil }
func (noCarriers) tidy(*Node, Inventory) ([]string, error) { return nil, nil }
