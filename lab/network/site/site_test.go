package site

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/poll"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("these tests create network namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func raise(t *testing.T, nodes ...string) *Site {
	t.Helper()
	s, err := New(Options{ID: fmt.Sprintf("st%d", os.Getpid()%100000), Dir: t.TempDir()})
	ok(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, n := range nodes {
		if _, err := s.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// until polls, because BIRD does not notify of learned routes.
func until(t *testing.T, what string, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := poll.Until(ctx, try); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// The router announces a block in a node's export table to the other nodes, so that they and the outside reach it, until
// it is withdrawn.
func TestExportTableIsAnnounced(t *testing.T) {
	s := raise(t, "one", "two")
	for _, p := range []netip.Prefix{netip.MustParsePrefix("10.2.0.32/27"), netip.MustParsePrefix("fd02::20/123")} {
		t.Run(p.String(), func(t *testing.T) {
			pod := p.Addr().Next()
			change(t, s, "one", p, (*netlink.Handle).RouteReplace)
			ok(t, ns.Netlink(s.NodePath("one"), func(h *netlink.Handle) error { // an address of the block responds
				return ns.Configure(h, "lo", []netip.Prefix{netip.PrefixFrom(pod, pod.BitLen())}, nil)
			}))
			server, err := echo.Serve(s.NodePath("one"))
			ok(t, err)
			defer server.Close()
			want := map[bool]netip.Addr{true: s.Addrs("one").IPv4, false: s.Addrs("one").IPv6}[p.Addr().Is4()]
			until(t, "the router learns the route", func() error {
				routes, err := s.Routes(t.Context())
				if err == nil && routes[p] != want {
					err = fmt.Errorf("routes = %v, want %s through %s", routes, p, want)
				}
				return err
			})
			for _, from := range []string{s.OutsidePath(), s.NodePath("two")} {
				until(t, "the block is reached from "+from, func() error {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					_, err := echo.Ask(ctx, from, "udp", netip.AddrPortFrom(pod, echo.Port), netip.Addr{}, "hello")
					return err
				})
			}
			change(t, s, "one", p, (*netlink.Handle).RouteDel)
			until(t, "the router withdraws the route", func() error {
				routes, err := s.Routes(t.Context())
				if _, ok := routes[p]; err == nil && ok {
					err = fmt.Errorf("routes = %v", routes)
				}
				return err
			})
		})
	}
}

// change adds or removes a route of a node's export table, in the format of docs/contribute/data-path.md, "Data path".
func change(t *testing.T, s *Site, node string, p netip.Prefix, do func(*netlink.Handle, *netlink.Route) error) {
	t.Helper()
	ok(t, ns.Netlink(s.NodePath(node), func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return do(h, &netlink.Route{Dst: ns.IPNet(p), LinkIndex: lo.Attrs().Index, Table: ExportTable, Protocol: 190})
	}))
}

func TestAddAndRemoveNodes(t *testing.T) {
	s := raise(t, "one", "two")
	first := s.Addrs("one")
	if _, err := s.AddNode("one"); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("AddNode() of an existing node = %v, want error", err)
	}
	ok(t, s.RemoveNode("one"))
	if a, err := s.AddNode("three"); err != nil || a != first {
		t.Errorf("AddNode() = %v, %v; want the addresses of the removed node", a, err)
	}
	if err := s.RemoveNode("nosuch"); err != nil {
		t.Error(err)
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
