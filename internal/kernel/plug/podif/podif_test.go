package podif_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// subnet is a network of the VPC: a namespace with a bridge, whose address is the gateway.
type subnet struct {
	t      *testing.T
	router *podif.Namespace
	bridge netlink.Link
}

// addSubnet gives a router a subnet; the router's addresses in it are gateways.
func addSubnet(t *testing.T, router *podif.Namespace, name string, gateways ...string) subnet {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	b := &netlink.Bridge{LinkAttrs: attrs}
	plugtest.Must(t, router.NL.LinkAdd(b))
	for _, g := range gateways {
		a := &netlink.Addr{IPNet: rtnl.IPNet(netip.MustParsePrefix(g))}
		if netip.MustParsePrefix(g).Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		plugtest.Must(t, router.NL.AddrAdd(b, a))
	}
	plugtest.Must(t, router.NL.LinkSetUp(b))
	return subnet{t, router, b}
}

var cables int

// join plugs a pod's interface into the subnet.
func (s subnet) join(pod *podif.Namespace, name string) {
	s.t.Helper()
	cables++
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = fmt.Sprintf("p%d", cables), s.bridge.Attrs().Index
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerNamespace = name, netlink.NsFd(pod.NS)
	plugtest.Must(s.t, s.router.NL.LinkAdd(v))
	plugtest.Must(s.t, s.router.NL.LinkSetUp(v))
}

func nic(last byte, first bool, gateways []string, addresses ...string) plug.Interface {
	i := plug.Interface{MAC: net.HardwareAddr{0xfa, 0x16, 0x3e, 0, 0, last}, MTU: 1442, Default: first}
	for _, a := range addresses {
		i.Addresses = append(i.Addresses, netip.MustParsePrefix(a))
	}
	for _, g := range gateways {
		i.Gateways = append(i.Gateways, netip.MustParseAddr(g))
	}
	return i
}

func newRouter(t *testing.T) *podif.Namespace {
	router := plugtest.Space(t, "router")
	plugtest.Must(t, ns.Do(router.Path, func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"}, ns.Sysctl{Name: "net/ipv6/conf/all/forwarding", Value: "1"})
	}))
	return router
}

// A pod with ports of two subnets, two of them in one subnet: replies leave by the interface that has the address,
// for all clients, and the pod's own connections leave by the first.
func TestSeveralInterfaces(t *testing.T) {
	router := newRouter(t)
	a := addSubnet(t, router, "a", "10.1.0.1/24", "2001:db8:1::1/64")
	b := addSubnet(t, router, "b", "10.2.0.1/24", "2001:db8:2::1/64")
	pod, inA, inB := plugtest.Space(t, "pod"), plugtest.Space(t, "ina"), plugtest.Space(t, "inb")
	gwA, gwB := []string{"10.1.0.1", "2001:db8:1::1"}, []string{"10.2.0.1", "2001:db8:2::1"}
	nics := map[string]plug.Interface{
		"eth0": nic(1, true, gwA, "10.1.0.10/24", "2001:db8:1::10/64"),
		"eth1": nic(2, false, gwB, "10.2.0.10/24", "2001:db8:2::10/64"),
		"eth2": nic(3, false, gwA, "10.1.0.11/24", "2001:db8:1::11/64"),
	}
	a.join(pod, "eth0")
	b.join(pod, "eth1")
	a.join(pod, "eth2")
	for _, name := range []string{"eth1", "eth0", "eth2"} { // in any order
		plugtest.Must(t, pod.Configure(name, nics[name]))
	}
	a.join(inA, "eth0")
	plugtest.Must(t, inA.Configure("eth0", nic(4, true, gwA, "10.1.0.20/24", "2001:db8:1::20/64")))
	b.join(inB, "eth0")
	plugtest.Must(t, inB.Configure("eth0", nic(5, true, gwB, "10.2.0.20/24", "2001:db8:2::20/64")))

	state := routing(t, pod)
	for name, i := range nics {
		plugtest.Must(t, pod.Configure(name, i)) // changes nothing
		if found := plugtest.Differences(t, pod, name, i); len(found) > 0 {
			t.Errorf("%s: %q", name, found)
		}
	}
	if again := routing(t, pod); again != state {
		t.Errorf("Configure again changed\n%s\nto\n%s", state, again)
	}
	// As a VPC does: what leaves by an interface with another's address is dropped.
	for _, from := range []*podif.Namespace{inA, inB} {
		for _, i := range nics {
			for _, p := range i.Addresses {
				if err := talk(pod, p.Addr(), from, netip.Addr{}); err != nil {
					t.Errorf("from %s to %s: %v", from.Path, p.Addr(), err)
				}
			}
		}
	}
	for dst, by := range map[string]string{"192.0.2.1": "10.1.0.10", "10.2.0.20": "10.2.0.10", "2001:db8:99::1": "2001:db8:1::10"} {
		routes, err := pod.NL.RouteGet(net.ParseIP(dst))
		if err != nil || len(routes) != 1 || !routes[0].Src.Equal(net.ParseIP(by)) {
			t.Errorf("to %s: %v, %v, want from %s", dst, routes, err, by)
		}
	}
	// Answers leave by the interface that has the address.
	for _, i := range nics {
		for _, p := range i.Addresses {
			dst := "192.0.2.1"
			if p.Addr().Is6() {
				dst = "2001:db8:99::1"
			}
			routes, err := pod.NL.RouteGetWithOptions(net.ParseIP(dst), &netlink.RouteGetOptions{SrcAddr: p.Addr().AsSlice()})
			if err != nil || len(routes) != 1 {
				t.Errorf("from %s: %v, %v", p, routes, err)
				continue
			}
			l, err := pod.NL.LinkByIndex(routes[0].LinkIndex)
			if err != nil || l.Attrs().HardwareAddr.String() != i.MAC.String() {
				t.Errorf("from %s: leaves by %v, %v", p, l, err)
			}
		}
	}
	// A further interface goes with all that it had.
	l := plugtest.Link(t, pod, "eth2")
	plugtest.Must(t, pod.Forget(l.Attrs().Index))
	plugtest.Must(t, pod.NL.LinkDel(l))
	if rest := routing(t, pod); strings.Contains(rest, "10.1.0.11") || strings.Contains(rest, "1::11") {
		t.Errorf("left of eth2:\n%s", rest)
	}
	if err := talk(pod, netip.MustParseAddr("10.1.0.10"), inB, netip.Addr{}); err != nil {
		t.Error(err)
	}
}

// talk opens a TCP connection from one namespace to an address of another.
func talk(server *podif.Namespace, addr netip.Addr, client *podif.Namespace, from netip.Addr) error {
	l, err := ns.Listen(server.Path, netip.AddrPortFrom(addr, 0))
	if err != nil {
		return err
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := ns.Dial(ctx, client.Path, "tcp", l.Addr().(*net.TCPAddr).AddrPort(), from)
	if err != nil {
		return err
	}
	return c.Close()
}

// routing is the pod's routes and rules as text.
func routing(t *testing.T, s *podif.Namespace) string {
	t.Helper()
	var b strings.Builder
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return s.NL.RouteListFiltered(family, &netlink.Route{Protocol: rtnl.Protocol, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		})
		plugtest.Must(t, err)
		for _, r := range routes {
			fmt.Fprintln(&b, r, r.Table, r.Priority)
		}
		rules, err := rtnl.Whole(func() ([]netlink.Rule, error) { return s.NL.RuleList(family) })
		plugtest.Must(t, err)
		for _, r := range rules {
			fmt.Fprintln(&b, r)
		}
	}
	return b.String()
}

// Configure changes addresses, routes and prefix lengths in place. The result is the same as for a new interface, and
// keeps what the pod added itself.
func TestInterfaceThatChanges(t *testing.T) {
	router := newRouter(t)
	a := addSubnet(t, router, "a", "10.1.0.1/24", "2001:db8:1::1/64")
	gateways := []string{"10.1.0.1", "2001:db8:1::1"}
	with := func(i plug.Interface, routes ...string) plug.Interface {
		for _, r := range routes {
			i.Routes = append(i.Routes, plug.Route{Dst: netip.MustParsePrefix(r), Via: i.Gateways[0]})
		}
		return i
	}
	states := []plug.Interface{
		with(nic(1, false, gateways, "10.1.0.10/24", "10.1.0.11/24", "2001:db8:1::10/64"), "172.16.0.0/12", "172.30.0.0/16"),
		with(nic(1, false, gateways, "10.1.0.11/24", "2001:db8:1::10/64"), "172.16.0.0/12"),
		nic(2, false, gateways, "10.1.0.10/24", "10.1.0.12/24", "2001:db8:1::20/64"),
		nic(2, false, gateways[:1], "10.1.0.10/16"),
		nic(2, false, nil, "10.1.0.30/24"),
	}
	pod := plugtest.Space(t, "pod")
	a.join(pod, "eth0")
	l := plugtest.Link(t, pod, "eth0")
	plugtest.Must(t, pod.Configure("eth0", states[0]))
	own := &netlink.Addr{IPNet: rtnl.IPNet(netip.MustParsePrefix("10.99.0.1/24"))}
	plugtest.Must(t, pod.NL.AddrAdd(l, own))
	for n := range 2 * len(states) {
		was, is := states[n%len(states)], states[(n+1)%len(states)]
		before := plugtest.Differences(t, pod, "eth0", is)
		plugtest.Must(t, pod.Configure("eth0", is))
		if after := plugtest.Differences(t, pod, "eth0", is); len(before) == 0 || len(after) > 0 {
			t.Errorf("from %v to %v: before %q, after %q", was.Addresses, is.Addresses, before, after)
		}
		list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return pod.NL.AddrList(l, unix.AF_INET) })
		plugtest.Must(t, err)
		var got []string
		for _, a := range list {
			got = append(got, a.IPNet.String())
		}
		want := []string{"10.99.0.1/24"}
		for _, p := range is.Addresses {
			if p.Addr().Is4() {
				want = append(want, p.String())
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("it has %v, want %v", got, want)
		}
		for _, r := range was.Routes {
			if len(is.Routes) == 0 && strings.Contains(routing(t, pod), r.Dst.String()) {
				t.Errorf("the route to %s is left:\n%s", r.Dst, routing(t, pod))
			}
		}
	}
}

func TestDefaultRouteOfAnotherInterface(t *testing.T) {
	router := newRouter(t)
	a := addSubnet(t, router, "a", "10.1.0.1/24")
	pod := plugtest.Space(t, "pod")
	a.join(pod, "eth0")
	a.join(pod, "eth1")
	plugtest.Must(t, pod.Configure("eth0", nic(1, true, []string{"10.1.0.1"}, "10.1.0.10/24")))
	err := pod.Configure("eth1", nic(2, true, []string{"10.1.0.1"}, "10.1.0.11/24"))
	if !errors.Is(err, plug.ErrDefaultRoute) || !strings.Contains(err.Error(), "eth0") {
		t.Errorf("a second default interface: %v, want %v that names eth0", err, plug.ErrDefaultRoute)
	}
}

// A gateway outside of the port's subnets, a link-local gateway, addresses without a subnet, on-link routes, and a
// sandbox with IPv6 turned off.
func TestUnusualNetworks(t *testing.T) {
	for name, i := range map[string]plug.Interface{
		"gateway elsewhere":  nic(1, true, []string{"10.9.0.1", "2001:db8:9::1"}, "10.1.0.10/24", "2001:db8:1::10/64"),
		"gateway link-local": nic(1, true, []string{"fe80::1"}, "2001:db8:1::10/64"),
		"no subnet":          nic(1, true, []string{"169.254.1.1", "fe80::1"}, "10.1.0.10/32", "2001:db8:1::10/128"),
		"no gateway":         nic(1, true, nil, "10.1.0.10/24"),
		"two of a family":    nic(1, true, []string{"10.1.0.1"}, "10.1.0.10/24", "10.1.0.11/24", "10.3.0.10/24"),
		"nothing":            nic(1, false, nil),
	} {
		t.Run(name, func(t *testing.T) {
			router := newRouter(t)
			pod := plugtest.Space(t, "pod")
			plugtest.Must(t, ns.Do(pod.Path, func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0) }))
			addSubnet(t, router, "a").join(pod, "eth0")
			if len(i.Addresses) > 0 {
				i.Routes = []plug.Route{{Dst: prefixOf(i, "10.77.0.0/16", "2001:db8:77::/48")}}
			}
			plugtest.Must(t, i.Validate())
			for range 2 {
				plugtest.Must(t, pod.Configure("eth0", i))
				if found := plugtest.Differences(t, pod, "eth0", i); len(found) > 0 {
					t.Errorf("%q", found)
				}
			}
		})
	}
}

func prefixOf(i plug.Interface, v4, v6 string) netip.Prefix {
	if i.Addresses[0].Addr().Is4() {
		return netip.MustParsePrefix(v4)
	}
	return netip.MustParsePrefix(v6)
}

// Router advertisements of the VPC's routers change nothing in the pod.
func TestAdvertisementsAreIgnored(t *testing.T) {
	router := newRouter(t)
	pod := plugtest.Space(t, "pod")
	addSubnet(t, router, "a", "2001:db8:1::1/64").join(pod, "eth0")
	plugtest.Must(t, pod.Configure("eth0", nic(1, true, nil, "2001:db8:1::10/64")))
	plugtest.Must(t, ns.Do(pod.Path, func() error {
		now, right, err := rtnl.Sysctl{Path: "net/ipv6/conf/eth0/accept_ra", Value: "0"}.Look("")
		if !right {
			t.Errorf("accept_ra of eth0 is %s, want 0", now)
		}
		return err
	}))
}

// A link is moved and renamed at once, and stays if the name is taken.
func TestMove(t *testing.T) {
	from, to := plugtest.Space(t, "from"), plugtest.Space(t, "to")
	plugtest.Must(t, plugtest.Veth(from, "veth1", "peer1"))
	plugtest.Must(t, plugtest.Veth(to, "taken", "x"))
	index := plugtest.Link(t, from, "veth1").Attrs().Index
	if err := from.Move(index, to, "taken"); !errors.Is(err, unix.EEXIST) {
		t.Errorf("to a name that is taken: %v", err)
	}
	if plugtest.Link(t, from, "veth1") == nil || len(plugtest.Links(t, to)) != 2 {
		t.Fatal("the link went all the same")
	}
	plugtest.Must(t, from.Move(index, to, "eth0"))
	if plugtest.Link(t, to, "eth0") == nil || plugtest.Link(t, from, "veth1") != nil {
		t.Error("the link did not move")
	}
}

// FillChecksums makes the kernel compute checksums.
func TestFillChecksums(t *testing.T) {
	s := plugtest.Space(t, "pod")
	plugtest.Must(t, plugtest.Veth(s, "eth0", "x"))
	for range 2 {
		plugtest.Must(t, podif.FillChecksums(s.NS, "eth0"))
	}
	if err := podif.FillChecksums(s.NS, "none"); err == nil {
		t.Error("of a link that is not there: no error")
	}
}
