package datapath

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplinks tells how packets of pods leave the node and reach it: a VPC, where each address is of an ENI, a Routed,
// where routers know the node's blocks, or Ports, where package plug makes the links. The implementations are
// independent of each other.
type Uplinks interface {
	// kind names the implementation.
	kind() string
	// validate returns an error about the first invalid field.
	validate() error
	// ipv6 reports whether the IPv6 data path is on.
	ipv6() bool
	// links selects the links by which packets leave from all links of the node. The first is the primary one.
	links(n *Node, all []netlink.Link) ([]netlink.Link, error)
	// rules are the policy rules of a family, except that of PodTable.
	rules(family int) []netlink.Rule
	// owns reports whether a rule is the node's, and not of one ENI or branch.
	owns(r netlink.Rule) bool
	// addTo adds its sets and chains to the nftables table.
	addTo(rs *ruleset, primary string)
	// state is the part of the table that changes with ENIs, which addTo leaves out. It includes that of the kernel.
	state(n *Node, conn *nftables.Conn) (uplinkState, error)
	// replaced is called after the nftables table was replaced.
	replaced(n *Node) (did []string, err error)
	// follow sets up ENIs again after the Config changed.
	follow(n *Node) error
	// none is the Supply of a Repair that wants none.
	none() Supply
	// clear removes the routes of a node that has other uplinks now, and forgets what this Node set up. It is called
	// on a zero value.
	clear(n *Node) (changed []string, err error)
}

// Supply is what the addresses of pods come from: an UplinkList with a VPC, a BlockList with a Routed, nothing with
// Ports.
type Supply interface {
	// restore sets them up.
	restore(n *Node) (did []string, err error)
	// tidy removes others that the node has.
	tidy(n *Node, has Inventory) (did []string, err error)
}

// implementations are all kinds, as zero values.
var implementations = []Uplinks{VPC{}, Routed{}, Ports{}}

// chosen returns the node's uplinks, which must be of type U.
func chosen[U Uplinks](s *established) (u U, err error) {
	u, ok := s.config.Uplinks.(U)
	if !ok {
		return u, fmt.Errorf("the node's uplinks are %T, expected %T", s.config.Uplinks, u)
	}
	return u, nil
}

// families are the address families of the data path. IPv4 is always one, as every node in EC2 has it.
func families(u Uplinks) []int {
	if u.ipv6() {
		return []int{unix.AF_INET, unix.AF_INET6}
	}
	return []int{unix.AF_INET}
}

// Ports are the uplinks of a node whose pods have VPC ports only. internal/kernel/plug makes their links, and the
// node's own routing is not involved. So the node does not forward IPv6, which would cost it a default route from
// router advertisements. State of earlier ENIs or blocks is removed.
type Ports struct{ noENIs }

func (Ports) kind() string                                        { return "ports" }
func (Ports) validate() error                                     { return nil }
func (Ports) ipv6() bool                                          { return false }
func (Ports) links(*Node, []netlink.Link) ([]netlink.Link, error) { return nil, nil }
func (Ports) none() Supply                                        { return noSupply{} }
func (Ports) clear(*Node) ([]string, error)                       { return nil, nil }

// noENIs is the part of Uplinks that is about ENIs, for nodes without.
type noENIs struct{}

func (noENIs) rules(int) []netlink.Rule                         { return nil }
func (noENIs) owns(netlink.Rule) bool                           { return true }
func (noENIs) addTo(*ruleset, string)                           {}
func (noENIs) state(*Node, *nftables.Conn) (uplinkState, error) { return uplinkState{}, nil }
func (noENIs) replaced(*Node) ([]string, error)                 { return nil, nil }
func (noENIs) follow(*Node) error                               { return nil }

// noSupply is the Supply of Ports.
type noSupply struct{}

func (noSupply) restore(*Node) ([]string, error)         { return nil, nil }
func (noSupply) tidy(*Node, Inventory) ([]string, error) { return nil, nil }
