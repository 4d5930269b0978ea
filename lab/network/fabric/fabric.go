// Package fabric is the packet side of a virtual VPC on one machine. A network
// namespace is the VPC's router; a node is a namespace; an ENI is a veth
// between the two with the ENI's MAC on the node's side, and a branch of a trunk
// is a VLAN on the trunk's. The router delivers
// to an ENI what EC2 says the ENI owns and drops what a VPC would drop: a
// source that is not assigned to the ENI it came from, a destination that
// nobody owns, what the security groups do not let through, and what the
// internet gateway has no public address for. Beyond the router lie two hosts:
// one on the internet and one on premises, behind a private gateway.
//
// Everything is made by netlink; nothing is executed. All namespaces of a
// fabric begin with its prefix, so that Sweep finds what a crash left.
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

// Addresses outside the VPC. The internet ones are of the documentation
// ranges (RFC 5737, RFC 3849), so no real network is shadowed.
var (
	// InternetHost and InternetHost6 belong to the host on the internet.
	InternetHost  = netip.MustParseAddr("203.0.113.10")
	InternetHost6 = netip.MustParseAddr("2001:db8:ffff::10")
	// OnPremHost and OnPremHost6 belong to the host on premises.
	OnPremHost  = netip.MustParseAddr("192.168.100.10")
	OnPremHost6 = netip.MustParseAddr("fd64:0:0:100::10")
	// EC2Endpoint and EC2Endpoint6 are where the EC2 API is served, public addresses of the cloud.
	EC2Endpoint  = netip.MustParseAddr("198.51.100.10")
	EC2Endpoint6 = netip.MustParseAddr("2001:db8:fffe::10")
	// APIEndpoint is where the Kubernetes API is served, if it is; APIEndpoint6 in an
	// IPv6-only cluster.
	APIEndpoint  = netip.MustParseAddr("198.51.100.20")
	APIEndpoint6 = netip.MustParseAddr("2001:db8:fffe::20")
	// IMDSEndpoint and IMDSEndpoint6 are where the metadata service is served.
	IMDSEndpoint  = netip.MustParseAddr("169.254.169.254")
	IMDSEndpoint6 = netip.MustParseAddr("fd00:ec2::254")
	// Router6 is the router on every ENI's link for IPv6. A VPC announces its
	// link-local address in router advertisements.
	Router6 = netip.MustParseAddr("fe80::1")
	// VPCRouter6 is the router's other link-local address there, the same in
	// every VPC (VPC User Guide, "Subnet CIDR blocks").
	VPCRouter6 = netip.MustParseAddr("fe80:ec2::1")
)

// The networks at the far end of the gateways; the router has the first address of each.
var (
	internetNet  = netip.MustParsePrefix("203.0.113.0/24")
	internetNet6 = netip.MustParsePrefix("2001:db8:ffff::/64")
	onPremNet    = netip.MustParsePrefix("192.168.100.0/24")
	onPremNet6   = netip.MustParsePrefix("fd64:0:0:100::/64")
)

// MTU of an ENI and of what lies beyond a gateway, in bytes (EC2 User Guide,
// "Network maximum transmission unit (MTU) for your EC2 instance").
const (
	ENIMTU     = 9001
	GatewayMTU = 1500
)

// Options describe a fabric.
type Options struct {
	// ID distinguishes this fabric from others on the machine: up to 12 lower-case
	// letters and digits.
	ID string
	// CIDRs are the VPC's blocks, both families.
	CIDRs []netip.Prefix
	// Subnets whose router address answers on their ENIs' links.
	Subnets []vpc.Subnet
	// EgressOnly has IPv6 leave by an egress-only internet gateway, which lets no
	// connection in (VPC User Guide, "Egress-only internet gateways").
	EgressOnly bool
}

// Fabric is a running one. Its methods may be called concurrently.
type Fabric struct {
	opts Options

	// mu serialises changes, which the kernel does too, and guards all below.
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
	link string // the router's side
	idx  int    // its index
}

var validID = regexp.MustCompile(`^[a-z0-9]{1,12}$`)

// Prefix begins the name of every namespace of the fabric called id.
func Prefix(id string) string { return "vpclab-" + id + "-" }

// New raises the router and the two outside hosts. Leftovers of an earlier
// fabric of the same ID are an error: Sweep them first.
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
		return nil, errors.Join(fmt.Errorf("raise fabric %s: %w", o.ID, err), f.Close())
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

// RouterPath is the namespace file of the VPC's router, where the EC2 API and
// the metadata service listen, and whatever else belongs to no node.
func (f *Fabric) RouterPath() string { return f.router.path }

// InternetPath is the namespace file of the host on the internet.
func (f *Fabric) InternetPath() string { return f.opts.path("internet") }

// OnPremPath is the namespace file of the host on premises.
func (f *Fabric) OnPremPath() string { return f.opts.path("onprem") }

// NodePath is the namespace file of a node.
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

// raise makes the router and the outside.
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
		// A lasting connection stays in the namespace that it was opened in.
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

// AddNode makes a node's namespace, with loopback up and the sysctls of a
// fresh machine: no forwarding, strict reverse path filter on new links.
func (f *Fabric) AddNode(node string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes[node] {
		return fmt.Errorf("node %s exists", node)
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

// RemoveNode takes a node's ENIs off the fabric and removes its namespace. The
// caller has ended the node's processes. An unknown node is no error.
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
	// The links go with the namespace, all at once.
	return errors.Join(append(errs, ns.Remove(f.opts.nodeName(node)))...)
}

// attached lists the attached ENIs by ID, in order.
func (f *Fabric) attached() []string { return slices.Sorted(maps.Keys(f.enis)) }

// Close removes everything of the fabric. Processes in its namespaces must
// have ended. A second Close does nothing.
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

// Sweep ends every process inside the namespaces of the fabric called id and
// removes the namespaces with their links, also when the process that made
// them died. It returns the names of what it removed.
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
	// Side by side, since the kernel makes each wait for its links.
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		wg.Go(func() { errs[i] = ns.Remove(n) })
	}
	wg.Wait()
	return names, errors.Join(errs...)
}
