package reach_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/reach"
	"github.com/berthnet/berth/test/harness"
)

// nodeOf is a node with a pod for each kind of silence.
type nodeOf struct {
	t    *testing.T
	path string
	pods []migrate.Pod
}

// pod adds a pod with one address of each family, after which do runs in its namespace.
func (n *nodeOf) pod(name string, fate migrate.Fate, do func() error) {
	t := n.t
	t.Helper()
	at := len(n.pods) + 1
	addrs := []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.9.0.%d", at)), netip.MustParseAddr(fmt.Sprintf("fd00:9::%d", at))}
	inside, link := nstest.New(t, nstest.Unique(name)), fmt.Sprintf("pod%d", at)
	harness.OK(t, ns.Netlink(n.path, func(h *netlink.Handle) error {
		if err := ns.AddVeth(h, link, inside, "eth0", nil, 1500); err != nil {
			return err
		}
		if err := ns.LinkUp(h, link); err != nil {
			return err
		}
		l, err := h.LinkByName(link)
		if err != nil {
			return err
		}
		if err := ns.AddAddr(h, l, netip.MustParsePrefix("fd00:9:9::1/128")); err != nil { // neighbours are asked for on their link
			return err
		}
		for _, a := range addrs {
			if err := h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: rtnl.IPNet(rtnl.HostPrefix(a)), Scope: netlink.SCOPE_LINK}); err != nil {
				return err
			}
		}
		return nil
	}))
	var own []netip.Prefix
	for _, a := range addrs {
		own = append(own, rtnl.HostPrefix(a))
	}
	gateways := []netip.Prefix{netip.MustParsePrefix("10.9.9.0/24"), netip.MustParsePrefix("fd00:9:9::/64")} // of the node
	harness.OK(t, ns.Netlink(inside, func(h *netlink.Handle) error {
		if err := cmp.Or(ns.LinkUp(h, "lo"), ns.Configure(h, "eth0", own, nil)); err != nil {
			return err
		}
		l, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, g := range gateways {
			if err := h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: rtnl.IPNet(g), Scope: netlink.SCOPE_LINK}); err != nil {
				return err
			}
		}
		return nil
	}))
	if do != nil {
		harness.OK(t, ns.Do(inside, do))
	}
	n.pods = append(n.pods, migrate.Pod{Namespace: "default", Name: name, Addresses: addrs, HostLink: link, Fate: fate})
}

func set(params ...string) func() error {
	return func() error {
		for _, p := range params {
			name, value, _ := strings.Cut(p, "=")
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	}
}

func lose(addrs ...string) func() error {
	return func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if err := netlink.AddrDel(l, &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(netip.MustParseAddr(a)))}); err != nil {
				return err
			}
		}
		return nil
	}
}

// A pod answers ICMP echoes, or where it drops ICMP, ARP and neighbour discovery. One without its address does not, nor
// does one behind another link answer for it.
func TestPodsAnswer(t *testing.T) {
	n := &nodeOf{t: t, path: nstest.New(t, nstest.Unique("node"))}
	harness.OK(t, ns.Netlink(n.path, func(h *netlink.Handle) error {
		return ns.Configure(h, "lo", []netip.Prefix{netip.MustParsePrefix("10.9.9.1/32"), netip.MustParsePrefix("fd00:9:9::1/128")}, nil)
	}))
	n.pod("well", migrate.Adopted, nil)
	n.pod("drops-icmp", migrate.Berth, set("ipv4/icmp_echo_ignore_all=1", "ipv6/icmp/echo_ignore_all=1"))
	n.pod("lost-addresses", migrate.Adopt, lose("10.9.0.3", "fd00:9::3"))
	n.pod("gone", migrate.Gone, lose("10.9.0.4", "fd00:9::4"))
	n.pod("moved", migrate.Adopted, nil)
	n.pods[4].HostLink = "pod1" // its addresses answer by pod5
	n.pods = append(n.pods, migrate.Pod{Namespace: "default", Name: "no-link", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.9")}, HostLink: "none", Fate: migrate.Adopted})

	problems, err := reach.Pods(t.Context(), n.path, n.pods)
	harness.OK(t, err)
	got := map[string][]string{}
	for _, p := range n.pods {
		for _, r := range p.Reached {
			got[p.Name] = append(got[p.Name], r.Address.String()+" by "+r.By)
		}
		slices.Sort(got[p.Name])
	}
	want := map[string][]string{
		"well":       {"10.9.0.1 by ICMP echo", "fd00:9::1 by ICMP echo"},
		"drops-icmp": {"10.9.0.2 by ARP", "fd00:9::2 by neighbour discovery"},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("reached = %v, want %v", got, want)
	}
	var missing []string
	for _, p := range problems {
		missing = append(missing, strings.Join(strings.Fields(p)[:2], " "))
	}
	slices.Sort(missing)
	if want := []string{
		"default/lost-addresses: 10.9.0.3", "default/lost-addresses: fd00:9::3", "default/moved: 10.9.0.5", "default/moved: fd00:9::5", "default/no-link: link",
	}; !slices.Equal(missing, want) {
		t.Errorf("problems = %v, want %v", problems, want)
	}
}
