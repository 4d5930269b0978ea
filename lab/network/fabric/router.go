package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// gateway connects the VPC to one host outside.
type gateway struct {
	part  string // suffix of the host's namespace name
	link  string // link on the router's side
	nets  [2]netip.Prefix
	hosts [2]netip.Addr
	route bool // the router's default route uses it
}

// Links of the router other than those of ENIs.
const (
	internetLink = "igw"
	onPremLink   = "vgw"
)

var gateways = [...]gateway{
	{"internet", internetLink, [2]netip.Prefix{internetNet, internetNet6}, [2]netip.Addr{InternetHost, InternetHost6}, true},
	{"onprem", onPremLink, [2]netip.Prefix{onPremNet, onPremNet6}, [2]netip.Addr{OnPremHost, OnPremHost6}, false},
}

// routerSysctls leave the check of sources to nftables, and make the router answer ARP immediately for addresses that
// it has a route to on another link. New links inherit the defaults.
var routerSysctls = slices.Concat(ns.Forwarding, []ns.Sysctl{
	{Name: "net/ipv4/conf/all/send_redirects", Value: "0"},
	{Name: "net/ipv4/conf/default/send_redirects", Value: "0"},
	{Name: "net/ipv4/conf/default/proxy_arp", Value: "1"},
	{Name: "net/ipv6/conf/default/addr_gen_mode", Value: "1"}, // no link-local address except Router6
	{Name: "net/ipv6/conf/default/proxy_ndp", Value: "1"},
})

// router is the kernel of the VPC's router. The fabric's lock guards it.
type router struct {
	path  string          // path of its namespace
	rt    *netlink.Handle // in that namespace
	links int             // number of ENI links created so far, for unique names
}

// newLink returns a new link name.
func (r *router) newLink() string {
	r.links++
	return fmt.Sprintf("eni%d", r.links)
}

// setUp assigns the router's own addresses, and drops packets for unowned addresses of the VPC.
func (r *router) setUp(o Options) error {
	if err := ns.Do(r.path, func() error { return ns.SetSysctls(routerSysctls...) }); err != nil {
		return err
	}
	if err := ns.LinkUp(r.rt, "lo"); err != nil {
		return err
	}
	// The router itself uses the first address as a source, for example when the API server calls pods.
	own := []netip.Addr{APIEndpoint, APIEndpoint6, EC2Endpoint, EC2Endpoint6, IMDSEndpoint, IMDSEndpoint6}
	for _, s := range o.Subnets {
		if !s.IPv6Native() {
			own = append(own, RouterOf(s.CIDR))
		}
		if s.IPv6.IsValid() {
			own = append(own, RouterOf(s.IPv6))
		}
	}
	lo, err := r.rt.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	for _, a := range own {
		if err := ns.AddAddr(r.rt, lo, netip.PrefixFrom(a, a.BitLen())); err != nil {
			return err
		}
	}
	for _, c := range o.CIDRs {
		hole := &netlink.Route{Dst: ns.IPNet(c), Type: unix.RTN_BLACKHOLE}
		if err := r.rt.RouteAdd(hole); err != nil {
			return fmt.Errorf("add blackhole route for %s: %w", c, err)
		}
	}
	return nil
}

// RouterOf returns the router's address in a subnet: the first after the network address (VPC User Guide, "Subnet
// CIDR blocks").
func RouterOf(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next() }

// addGateway connects an outside host to the router.
func (r *router) addGateway(g gateway, host string) error {
	var own []netip.Prefix
	var via []netip.Addr
	for i, n := range g.nets {
		own = append(own, netip.PrefixFrom(g.hosts[i], n.Bits()))
		via = append(via, RouterOf(n))
	}
	if err := ns.AddHost(r.rt, g.link, host, own, via, GatewayMTU); err != nil {
		return err
	}
	// Source address of the router's neighbour solicitations.
	if err := ns.Configure(r.rt, g.link, []netip.Prefix{netip.PrefixFrom(Router6, 64)}, nil); err != nil {
		return err
	}
	if err := r.answerAtOnce(g.link); err != nil || !g.route {
		return err
	}
	return ns.DefaultRoutes(r.rt, g.link, g.hosts[:])
}

// answerAtOnce disables the delay of proxy replies, which is up to 0.8 s (arp(7), proxy_delay). The parameter has no
// default for new links to inherit.
func (r *router) answerAtOnce(link string) error {
	return ns.Do(r.path, func() error {
		return ns.SetSysctls(
			ns.Sysctl{Name: "net/ipv4/neigh/" + link + "/proxy_delay", Value: "0"},
			ns.Sysctl{Name: "net/ipv6/neigh/" + link + "/proxy_delay", Value: "0"},
		)
	})
}

func (r *router) setProxy(p *plugged, a netip.Addr, on bool) error {
	// Permanent: the kernel forgets other entries when the node sets its end of the link down.
	n := &netlink.Neigh{LinkIndex: p.idx, Family: unix.AF_INET6, Flags: netlink.NTF_PROXY, State: netlink.NUD_PERMANENT, IP: a.AsSlice()}
	var err error
	if on {
		err = r.rt.NeighSet(n)
	} else if err = r.rt.NeighDel(n); errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("answer for %s on %s: %w", a, p.link, err)
	}
	return nil
}

// addVLAN creates the router's link of a branch on the link of its trunk.
func (r *router) addVLAN(p, t *plugged) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.MTU = p.link, t.idx, ENIMTU
	err := r.rt.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: p.eni.Trunk.VLAN, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("add link %s: this kernel does not support VLANs (802.1Q), unlike that of vpclab vm: %w", p.link, err)
	}
	if err != nil {
		return fmt.Errorf("add link %s of VLAN %d on %s: %w", p.link, p.eni.Trunk.VLAN, t.link, err)
	}
	return nil
}

// For ARP, the kernel answers for any address that it has a route to on another link (proxy_arp). For NDP, each
// address must be added to each link: the subnet's router and the addresses of all other ENIs in the subnet. Prefixes
// are not included; a VPC routes them (and RFC 4389 proxies cannot answer for them).

// answerNDP makes the link of a new ENI answer for existing addresses.
func (f *Fabric) answerNDP(p *plugged) error {
	s, err := f.opts.subnet(p.eni)
	if err != nil || !s.IPv6.IsValid() {
		return err
	}
	if err := f.router.setProxy(p, RouterOf(s.IPv6), true); err != nil {
		return err
	}
	for _, id := range f.attached() {
		other := f.enis[id]
		if other.eni.SubnetID != p.eni.SubnetID {
			continue
		}
		for _, a := range other.eni.IPv6 {
			if err := f.router.setProxy(p, a, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// proxyNDP makes the other links of the subnet start or stop answering for dst.
func (f *Fabric) proxyNDP(p *plugged, dst netip.Prefix, on bool) error {
	if dst.Bits() != 128 {
		return nil
	}
	for _, id := range f.attached() {
		other := f.enis[id]
		if other == p || other.eni.SubnetID != p.eni.SubnetID {
			continue
		}
		if err := f.router.setProxy(other, dst.Addr(), on); err != nil {
			return err
		}
	}
	return nil
}

// forgetNDP makes all links stop answering for an ENI's addresses.
func (f *Fabric) forgetNDP(p *plugged) error {
	for _, a := range p.eni.IPv6 {
		if err := f.proxyNDP(p, netip.PrefixFrom(a, 128), false); err != nil {
			return err
		}
	}
	return nil
}
