package datapath

import (
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

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
