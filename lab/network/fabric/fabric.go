// Package fabric carries the packets of a virtual VPC on one machine. A network namespace is the VPC's router; each
// node is a namespace; an ENI is a veth pair between the two with the ENI's MAC address on the node's side, and a
// branch of a trunk is a VLAN on the trunk's link. The router delivers to an ENI the packets for addresses that the
// ENI owns in EC2, and drops what a VPC would drop: packets with a source that is not assigned to the sending ENI, or
// with a destination that no ENI owns, packets that the security groups do not allow, and packets without a public
// address at the internet gateway. Beyond the router are two hosts: one on the internet and one on premises, behind a
// private gateway.
//
// It only uses netlink and executes no programs. The names of all namespaces of a fabric start with its prefix, so
// that Sweep finds the leftovers of a crash.
package fabric

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// Addresses outside the VPC. The internet ones are from the documentation ranges (RFC 5737, RFC 3849), so that they
// do not shadow a real network.
var (
	// InternetHost and InternetHost6 belong to the host on the internet.
	InternetHost  = netip.MustParseAddr("203.0.113.10")
	InternetHost6 = netip.MustParseAddr("2001:db8:ffff::10")
	// OnPremHost and OnPremHost6 belong to the host on premises.
	OnPremHost  = netip.MustParseAddr("192.168.100.10")
	OnPremHost6 = netip.MustParseAddr("fd64:0:0:100::10")
	// EC2Endpoint and EC2Endpoint6 are the addresses of the EC2 API, public addresses of the cloud.
	EC2Endpoint  = netip.MustParseAddr("198.51.100.10")
	EC2Endpoint6 = netip.MustParseAddr("2001:db8:fffe::10")
	// APIEndpoint is the address of the Kubernetes API, if any; APIEndpoint6 in an IPv6-only cluster.
	APIEndpoint  = netip.MustParseAddr("198.51.100.20")
	APIEndpoint6 = netip.MustParseAddr("2001:db8:fffe::20")
	// IMDSEndpoint and IMDSEndpoint6 are the addresses of the metadata service.
	IMDSEndpoint  = netip.MustParseAddr("169.254.169.254")
	IMDSEndpoint6 = netip.MustParseAddr("fd00:ec2::254")
	// Router6 is the router's address on every ENI's link for IPv6. A VPC announces its link-local address in router
	// advertisements.
	Router6 = netip.MustParseAddr("fe80::1")
	// VPCRouter6 is the router's other link-local address there, the same in every VPC (VPC User Guide, "Subnet CIDR
	// blocks").
	VPCRouter6 = netip.MustParseAddr("fe80:ec2::1")
)

// Networks behind the gateways; the router has the first address of each.
var (
	internetNet  = netip.MustParsePrefix("203.0.113.0/24")
	internetNet6 = netip.MustParsePrefix("2001:db8:ffff::/64")
	onPremNet    = netip.MustParsePrefix("192.168.100.0/24")
	onPremNet6   = netip.MustParsePrefix("fd64:0:0:100::/64")
)

// MTU of an ENI and of the networks beyond a gateway, in bytes (EC2 User Guide, "Network maximum transmission unit
// (MTU) for your EC2 instance").
const (
	ENIMTU     = 9001
	GatewayMTU = 1500
)

// Options describe a fabric.
type Options struct {
	// ID distinguishes this fabric from others on the machine: up to 12 lower-case letters and digits.
	ID string
	// CIDRs are the VPC's blocks of both families.
	CIDRs []netip.Prefix
	// Subnets whose router address responds on their ENIs' links.
	Subnets []vpc.Subnet
	// EgressOnly gives IPv6 an egress-only internet gateway, which allows no connections from outside (VPC User Guide,
	// "Egress-only internet gateways").
	EgressOnly bool
}

// Fabric is a running fabric. It is safe for concurrent use.
type Fabric struct {
	opts Options

	// mu serialises changes, as the kernel does too, and guards all below.
	mu     sync.Mutex
	closed bool
	router *router
	nft    *nftables.Conn // in the router's namespace
	rules  ruleset
	nodes  map[string]bool
	enis   map[string]*plugged // by ENI ID
	groups map[string]vpc.SecurityGroup

	adverts *adverts
}

// plugged is an ENI in a node, or a branch on a trunk there.
type plugged struct {
	eni  vpc.ENI
	node string
	link string // link on the router's side
	idx  int    // index of link
}

var validID = regexp.MustCompile(`^[a-z0-9]{1,12}$`)

// Prefix returns the prefix of the names of all namespaces of the fabric called id.
func Prefix(id string) string { return "vpclab-" + id + "-" }

// New creates the router and the two outside hosts. Leftovers of an earlier fabric with the same ID are an error:
// call Sweep first.
func New(o Options) (*Fabric, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	f := &Fabric{
		opts:   o,
		router: &router{path: o.path("vpc")},
		nodes:  map[string]bool{},
		enis:   map[string]*plugged{},
		groups: map[string]vpc.SecurityGroup{},
	}
	if err := f.raise(); err != nil {
		return nil, errors.Join(fmt.Errorf("create fabric %s: %w", o.ID, err), f.Close())
	}
	return f, nil
}

func (o Options) validate() error {
	if !validID.MatchString(o.ID) {
		return fmt.Errorf("fabric ID %q: want 1 to 12 lower-case letters or digits", o.ID)
	}
	for _, c := range o.CIDRs {
		for _, taken := range []netip.Prefix{internetNet, internetNet6, onPremNet, onPremNet6, netip.PrefixFrom(EC2Endpoint, 32), netip.PrefixFrom(EC2Endpoint6, 128), netip.PrefixFrom(APIEndpoint, 32), netip.PrefixFrom(APIEndpoint6, 128)} {
			if c.Overlaps(taken) {
				return fmt.Errorf("VPC block %s overlaps %s, which the lab uses outside the VPC", c, taken)
			}
		}
	}
	return nil
}

// RouterPath returns the namespace file of the VPC's router, where the EC2 API, the metadata service and everything
// else that belongs to no node listen.
func (f *Fabric) RouterPath() string { return f.router.path }

// InternetPath returns the namespace file of the host on the internet.
func (f *Fabric) InternetPath() string { return f.opts.path("internet") }

// OnPremPath returns the namespace file of the host on premises.
func (f *Fabric) OnPremPath() string { return f.opts.path("onprem") }

// NodePath returns the namespace file of a node.
func (f *Fabric) NodePath(node string) string { return f.opts.path("node-" + node) }

func (o Options) name(part string) string     { return Prefix(o.ID) + part }
func (o Options) nodeName(node string) string { return o.name("node-" + node) }
func (o Options) path(part string) string     { return ns.Path(o.name(part)) }

func (o Options) subnet(e vpc.ENI) (vpc.Subnet, error) {
	i := slices.IndexFunc(o.Subnets, func(s vpc.Subnet) bool { return s.ID == e.SubnetID })
	if i < 0 {
		return vpc.Subnet{}, fmt.Errorf("the fabric has no subnet %s", e.SubnetID)
	}
	return o.Subnets[i], nil
}

// raise creates the router and the hosts outside.
func (f *Fabric) raise() error {
	for _, part := range []string{"vpc", "internet", "onprem"} {
		if err := ns.Create(f.opts.name(part)); err != nil {
			return err
		}
	}
	err := ns.Do(f.RouterPath(), func() (err error) {
		if f.router.rt, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return fmt.Errorf("open rtnetlink: %w", err)
		}
		// A netlink connection stays in the namespace in which it was opened.
		if f.nft, err = nftables.New(nftables.AsLasting()); err != nil {
			return fmt.Errorf("open nftables: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := f.router.setUp(f.opts); err != nil {
		return err
	}
	for _, g := range gateways {
		if err := f.router.addGateway(g, f.opts.path(g.part)); err != nil {
			return fmt.Errorf("gateway %s: %w", g.link, err)
		}
	}
	if err := f.rules.install(f.nft, f.opts.EgressOnly); err != nil {
		return err
	}
	f.adverts, err = advertise(f.RouterPath(), f.advertised)
	return err
}

// AddNode creates a node's namespace, with loopback up and the sysctls of a fresh machine: no forwarding, and strict
// reverse path filters on new links.
func (f *Fabric) AddNode(node string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes[node] {
		return fmt.Errorf("node %s already exists", node)
	}
	if err := ns.Create(f.opts.nodeName(node)); err != nil {
		return err
	}
	f.nodes[node] = true
	return ns.Netlink(f.NodePath(node), func(h *netlink.Handle) error {
		err := ns.SetSysctls(
			ns.Sysctl{Name: "net/ipv4/ip_forward", Value: "0"},
			ns.Sysctl{Name: "net/ipv4/conf/all/rp_filter", Value: "0"},
			ns.Sysctl{Name: "net/ipv4/conf/default/rp_filter", Value: "1"},
		)
		if err != nil {
			return err
		}
		return ns.LinkUp(h, "lo")
	})
}

// RemoveNode detaches a node's ENIs and removes its namespace. The caller must have ended the node's processes. An
// unknown node is not an error.
func (f *Fabric) RemoveNode(node string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, id := range f.attached() {
		if p := f.enis[id]; p.node == node {
			delete(f.enis, id)
			errs = append(errs, f.rules.remove(f.nft, p), f.forgetNDP(p))
		}
	}
	delete(f.nodes, node)
	// The links are deleted with the namespace, all at once.
	return errors.Join(append(errs, ns.Remove(f.opts.nodeName(node)))...)
}

// attached lists the attached ENIs by ID, in order.
func (f *Fabric) attached() []string { return slices.Sorted(maps.Keys(f.enis)) }

// Close removes the whole fabric. The processes in its namespaces must have ended. A second Close does nothing.
func (f *Fabric) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	if f.adverts != nil {
		f.adverts.close()
	}
	if f.router.rt != nil {
		f.router.rt.Close()
	}
	var errs []error
	if f.nft != nil {
		errs = append(errs, f.nft.CloseLasting())
	}
	_, err := Sweep(f.opts.ID)
	return errors.Join(append(errs, err)...)
}

// Sweep kills every process in the namespaces of the fabric called id and removes the namespaces with their links,
// even if the process that created them crashed. It returns the names of what it removed.
func Sweep(id string) ([]string, error) {
	names, err := ns.List(Prefix(id))
	if err != nil || len(names) == 0 {
		return nil, err
	}
	paths := make([]string, len(names))
	for i, n := range names {
		paths[i] = ns.Path(n)
	}
	if _, err := ns.Kill(time.Minute, paths...); err != nil {
		return nil, err
	}
	// In parallel, because the kernel delays each removal until its links are gone.
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		wg.Go(func() { errs[i] = ns.Remove(n) })
	}
	wg.Wait()
	return names, errors.Join(errs...)
}
