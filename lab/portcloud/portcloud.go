// Package portcloud has the ports of a lab in which pods have such: the OpenStack, the Alcor, or
// the EC2 that Berth asks for them, and the data path that carries their packets on the lab's nodes.
//
//	portcloud.go  what the lab, tests and proofs ask of it
//	model.go      the strict fake of Neutron and Keystone over OVN
//	real.go       the real Neutron and Keystone, with OVN or Neutron's own agent
//	alcor.go      the strict fake of Alcor, with the agents of nodes
//	branches.go   the lab's own EC2, whose ENIs become branches of the nodes' trunks
package portcloud

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/ovn"
)

// Cloud is a provider of ports of one project, as far as a lab is concerned: its services,
// and Open vSwitch or an agent on the lab's nodes. Names of networks, subnets and groups are
// the lab's own; IDs are the cloud's. Methods may be called concurrently.
type Cloud interface {
	// Access is how berth-operator gets in.
	Access() Access
	// Join makes a namespace a compute host of a name, whose packets reach the other hosts.
	Join(ctx context.Context, host Host) (Joined, error)
	// Leave kills what runs on a host, as a power failure does. An unknown host is no error.
	Leave(host string) error
	// AddNetwork makes a network with subnets, between which it routes by their gateways.
	AddNetwork(ctx context.Context, n Network) (Network, error)
	// AddGroup makes a security group that lets out everything, and in what rules say. The
	// lab's Alcor knows groups and filters nothing.
	AddGroup(ctx context.Context, name string, in ...Rule) (id string, err error)
	// Allow adds a rule to a group.
	Allow(ctx context.Context, group string, in Rule) error
	// AddPort makes a port as a user does: Network and Addresses, Groups if not the
	// default one, and Tags say how.
	AddPort(ctx context.Context, p Port) (Port, error)
	// RemovePort deletes a port without Berth. A missing port is no error.
	RemovePort(ctx context.Context, id string) error
	// Ports are those of workloads: not of routers.
	Ports(ctx context.Context) ([]Port, error)
	// Plugged are the links on a host that say which port they are, as its OVSDB has them;
	// or the ends of an agent's links whose other ends somebody has taken; or VLANs in pods.
	Plugged(ctx context.Context, host string) ([]ovn.Interface, error)
	// Alive is an error when one of its programs ended by itself.
	Alive() error
	Close() error
}

// Options of a cloud. All are needed, but EC2.
type Options struct {
	Dir      string     // for its files and logs; short, as sockets lie in it
	Netns    string     // the file of the namespace of what belongs to no node
	Address  netip.Addr // there, by which nodes and operators reach its services
	Log      *slog.Logger
	Progress func(string)
	EC2      *vpc.Cloud // the lab's; nil: it has none
}

// Access is the part of a VPC's spec that is about how to get in.
type Access struct {
	Provider v1alpha1.VPCProvider
	Endpoint string            // of Keystone, or of Neutron or Alcor if there are no credentials
	Project  string            // ID; without credentials only
	Secret   map[string]string // username, password, project, as VPC.spec.credentials has them; nil: no credentials
}

// Joined has the settings of a host's daemon.
type Joined struct {
	OVSDB         string   // such as unix:/run/openvswitch/db.sock; empty without one
	NetnsPrefixes []string // begin the names of the VPCs' namespaces; nil without any
}

// Host is a compute host.
type Host struct {
	Name  string
	Netns string // the file of its namespace
	Dir   string // for sockets
	State string // for what outlives a restart of the machine
	Pods  string // begins the names of the namespaces of its pods
}

// Network is a network.
type Network struct {
	ID, Name string
	Subnets  []Subnet
	// Routed networks reach what the namespace of Options reaches, and are reached from
	// there, by their own addresses: subnets of two may not overlap.
	Routed bool
}

// Subnet is a subnet of a network. Gateway is the first address after the network's own.
type Subnet struct {
	ID, Name string
	CIDR     netip.Prefix
}

// Gateway is the address of the subnet's router.
func (s Subnet) Gateway() netip.Addr { return s.CIDR.Masked().Addr().Next() }

// Subnet finds a network's subnet by name.
func (n Network) Subnet(name string) Subnet {
	for _, s := range n.Subnets {
		if s.Name == name {
			return s
		}
	}
	return Subnet{}
}

// Rule lets packets in.
type Rule struct {
	Protocol string // tcp, udp or icmp
	Port     uint16 // of tcp and udp; 0: any
}

// Port is a port.
type Port struct {
	ID, Name, Network string
	Device, Owner     string
	MAC               string
	Addresses         []Address
	Groups            []string
	Tags              []string // not of EC2's
	Host, Status      string
}

// Address is an address of a port.
type Address struct {
	Subnet string // ID
	IP     netip.Addr
}

// WarmFor is the UID of the VPC object in whose warm pool a port is, by what Berth writes on it
// (docs/ports.md); ok is false for others.
func (p Port) WarmFor() (vpcUID string, ok bool) {
	_, of, ok := strings.Cut(p.Device, ":warm/")
	vpcUID, _, whole := strings.Cut(of, "/")
	return vpcUID, ok && whole && p.Owner == berthOwner
}
