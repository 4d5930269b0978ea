// Package plugtest provides the common parts of the tests of packages that plug ports: network namespaces, an OVSDB
// server that enforces the schema, the real Open vSwitch if it is installed, and the contract tests of plug.Plugger.
package plugtest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Space creates a network namespace with lo up. It is removed with the test.
func Space(t testing.TB, role string) *podif.Namespace {
	t.Helper()
	return NamedSpace(t, nstest.Unique(role))
}

// NamedSpace is like Space, with a given name.
func NamedSpace(t testing.TB, name string) *podif.Namespace {
	t.Helper()
	s, err := podif.Open(nstest.New(t, name))
	Must(t, err)
	t.Cleanup(s.Close)
	Must(t, s.NL.LinkSetUp(rtnl.LinkRef(1)))
	return s
}

// Must fails the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Settings creates a substitute for /proc/sys with folders for the IPv6 sysctls of the given links. read
// returns the value of a sysctl there.
func Settings(t testing.TB, links ...string) (dir string, read func(link, setting string) string) {
	t.Helper()
	dir = t.TempDir()
	of := func(link string) string { return filepath.Join(dir, "net/ipv6/conf", link) }
	for _, l := range links {
		Must(t, os.MkdirAll(of(l), 0o755))
	}
	return dir, func(link, setting string) string {
		value, _ := os.ReadFile(filepath.Join(of(link), setting))
		return string(value)
	}
}

// ID returns the identity of an open namespace.
func ID(t testing.TB, s *podif.Namespace) rtnl.NetnsID {
	t.Helper()
	id, err := rtnl.Identify(s.NS)
	Must(t, err)
	return id
}

// Link returns a link, or nil if it is missing.
func Link(t testing.TB, s *podif.Namespace, name string) netlink.Link {
	t.Helper()
	l, err := s.Link(name)
	Must(t, err)
	return l
}

// Links lists the names of a namespace's links, except those that the kernel creates in each
// namespace: lo, and tunl0 and ip6tnl0 if the modules of tunnels are loaded, as in the guest
// (ip-sysctl, fb_tunnels_only_for_init_net).
func Links(t testing.TB, s *podif.Namespace) []string {
	t.Helper()
	list, err := rtnl.Whole(s.NL.LinkList)
	Must(t, err)
	var names []string
	for _, l := range list {
		if name := l.Attrs().Name; name != "lo" && name != "tunl0" && name != "ip6tnl0" {
			names = append(names, name)
		}
	}
	return names
}

// Veth creates a veth with both ends in a namespace.
func Veth(s *podif.Namespace, name, peer string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	v := netlink.NewVeth(attrs)
	v.PeerName = peer
	return s.NL.LinkAdd(v)
}

// Describe lists the links of a namespace, one on each line, without properties that change on their own.
func Describe(t testing.TB, s *podif.Namespace) string {
	t.Helper()
	list, err := rtnl.Whole(s.NL.LinkList)
	Must(t, err)
	var lines []string
	for _, l := range list {
		a := l.Attrs()
		lines = append(lines, fmt.Sprintf("%s %s group %d master %d alias %q", a.Name, l.Type(), a.Group, a.MasterIndex, a.Alias))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Port IDs for tests. PortA and PortA2 have the same first 11 characters.
const (
	PortA  = "3f2a9c10-76f7-46d4-9d11-057063db1a14"
	PortA2 = "3f2a9c10-76aa-4bbb-8ccc-1234567890ab"
	PortB  = "a2815656-76f7-46d4-9d11-057063db1a14"
)

// Want is a port for a pod, with one address for each IP family.
func Want(kind plug.Kind, attachment, portID string, pod *podif.Namespace, t testing.TB) plug.Want {
	t.Helper()
	return plug.Want{
		Ref: plug.Ref{
			Attachment: attachment, PortID: portID, Kind: kind, Bridge: "br-int",
			Pod: plug.Pod{Netns: pod.Path, NetnsID: ID(t, pod), IfName: "eth0"},
		},
		Interface: plug.Interface{
			MAC: net.HardwareAddr{0xfa, 0x16, 0x3e, 1, 2, 3}, MTU: 1442, Default: true,
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.0.12/24"), netip.MustParsePrefix("2001:db8:1::12/64")},
			Gateways:  []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("2001:db8:1::1")},
			Routes:    []plug.Route{{Dst: netip.MustParsePrefix("10.9.0.0/16"), Via: netip.MustParseAddr("192.168.0.254")}},
		},
	}
}

// Within polls until a condition of another process is true.
func Within(t testing.TB, what string, ok func() bool) {
	t.Helper()
	nstest.Within(t, what, ok)
}
