// Package portcloud provides the ports of a lab: the OpenStack, the Alcor, or the EC2 from which Berth requests them, and
// the data path that carries their packets on the lab's nodes.
//
//	portcloud.go  the interface for the lab, tests and proofs
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

// Cloud is a provider of ports of one project in a lab: its services, and Open vSwitch or an agent on the lab's nodes.
// Names of networks, subnets and groups are chosen by the lab; IDs by the cloud. It is safe for concurrent use.
type Cloud interface {
	// Access returns the settings by which berth-operator connects.
	Access() Access
	// Join makes a namespace a compute host with a name, whose packets reach the other hosts.
	Join(ctx context.Context, host Host) (Joined, error)
	// Leave kills a host's programs, like a power failure. An unknown host is not an error.
	Leave(host string) error
	// AddNetwork creates a network with subnets, and routes between them through their gateways.
	AddNetwork(ctx context.Context, n Network) (Network, error)
	// AddGroup creates a security group that allows all egress and the ingress in rules. The lab's Alcor stores groups
	// but does not filter.
	AddGroup(ctx context.Context, name string, in ...Rule) (id string, err error)
	// Allow adds a rule to a group.
	Allow(ctx context.Context, group string, in Rule) error
	// AddPort creates a port as a user does, with Network and Addresses, Groups if not the default one, and Tags.
	AddPort(ctx context.Context, p Port) (Port, error)
	// RemovePort deletes a port without Berth. A missing port is not an error.
	RemovePort(ctx context.Context, id string) error
	// Ports returns the ports of workloads, without those of routers.
	Ports(ctx context.Context) ([]Port, error)
	// Plugged returns the links on a host that are assigned to a port: from its OVSDB; or those of an agent whose other
	// ends are in use; or VLANs in pods.
	Plugged(ctx context.Context, host string) ([]ovn.Interface, error)
	// Alive returns an error if one of its programs has exited by itself.
	Alive() error
	Close() error
}

// Options of a cloud. All are required, except EC2.
type Options struct {
	Dir      string     // for its files and logs; short, because of socket paths
	Netns    string     // path of the network namespace of the central services
	Address  netip.Addr // address there on which nodes and operators reach its services
	Log      *slog.Logger
	Progress func(string)
	EC2      *vpc.Cloud // the lab's EC2, or nil
}

// Access is the part of a VPC's spec that describes how to connect.
type Access struct {
	Provider v1alpha1.VPCProvider
	Endpoint string            // URL of Keystone, or of Neutron or Alcor if there are no credentials
	Project  string            // ID; only without credentials
	Secret   map[string]string // username, password and project, as in VPC.spec.credentials; nil: no credentials
}

// Joined is the settings of a host's daemon.
type Joined struct {
	OVSDB         string   // such as unix:/run/openvswitch/db.sock; empty if there is none
	NetnsPrefixes []string // prefixes of the names of the VPCs' namespaces; nil if there are none
}

// Host is a compute host.
type Host struct {
	Name  string
	Netns string // path of its network namespace
	Dir   string // for sockets
	State string // for files that survive a restart of the machine
	Pods  string // prefix of the names of its pods' namespaces
}

// Network is a network.
type Network struct {
	ID, Name string
	Subnets  []Subnet
	// Routed networks and the namespace of Options reach each other with their own addresses. Their subnets must not
	// overlap.
	Routed bool
}

// Subnet is a subnet of a network. Gateway is the first address after the network address.
type Subnet struct {
	ID, Name string
	CIDR     netip.Prefix
}

// Gateway is the address of the subnet's router.
func (s Subnet) Gateway() netip.Addr { return s.CIDR.Masked().Addr().Next() }

// Subnet returns a network's subnet by name.
func (n Network) Subnet(name string) Subnet {
	for _, s := range n.Subnets {
		if s.Name == name {
			return s
		}
	}
	return Subnet{}
}

// Rule allows ingress.
type Rule struct {
	Protocol string // tcp, udp or icmp
	Port     uint16 // destination port of tcp and udp; 0: any
}

// Port is a port.
type Port struct {
	ID, Name, Network string
	Device, Owner     string
	MAC               string
	Addresses         []Address
	Groups            []string
	Tags              []string // not set for ports of EC2
	Host, Status      string
}

// Address is an address of a port.
type Address struct {
	Subnet string // ID
	IP     netip.Addr
}

// WarmFor returns the UID of the VPC object whose warm pool contains a port, according to Berth's tags (docs/guides/ports/README.md); ok
// is false for other ports.
func (p Port) WarmFor() (vpcUID string, ok bool) {
	_, of, ok := strings.Cut(p.Device, ":warm/")
	vpcUID, _, whole := strings.Cut(of, "/")
	return vpcUID, ok && whole && p.Owner == berthOwner
}
