package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// rack is a node of a data centre behind a router, which routes the node's blocks to it and is the node's default
// gateway.
//
//	node eth0 172.20.1.2 fd20::2 —— r0 172.20.1.1 fd20::1 router
//
// Behind the router is a host outside of the data centre.
type rack struct {
	bed
	outside, router *space
}

const (
	outside, outside6 = "203.0.113.5", "2001:db8:f::5"
	block4, block6    = "10.2.0.32/27", "fd02::20/123"
	single4, single6  = "10.9.0.7/32", "fd09::7/128"
)

func newRack(t testing.TB) *rack {
	t.Helper()
	r := &rack{bed: bed{t: t, host: newSpace(t, "node")}, outside: newSpace(t, "outside"), router: newSpace(t, "router")}
	wire(r.host, "eth0", r.router, "r0")
	wire(r.outside, "eth0", r.router, "r9")
	r.router.sysctl("net/ipv4/ip_forward", "1")
	r.router.sysctl("net/ipv6/conf/all/forwarding", "1")
	r.router.address("r9", "203.0.113.1/24")
	r.router.address("r9", "2001:db8:f::1/64")
	r.outside.address("eth0", outside+"/24")
	r.outside.address("eth0", outside6+"/64")
	r.outside.route("0.0.0.0/0", "203.0.113.1", "eth0")
	r.outside.route("::/0", "2001:db8:f::1", "eth0")
	r.router.address("r0", "172.20.1.1/24")
	r.router.address("r0", "fd20::1/64")
	for _, p := range []string{block4, single4} {
		r.router.route(p, "172.20.1.2", "r0")
	}
	for _, p := range []string{block6, single6} {
		r.router.route(p, "fd20::2", "r0")
	}
	r.host.address("eth0", "172.20.1.2/24")
	r.host.address("eth0", "fd20::2/64")
	r.host.route("0.0.0.0/0", "172.20.1.1", "eth0")
	r.host.route("::/0", "fd20::1", "eth0")
	r.node = r.host.open()
	r.setup(Config{Uplinks: Routed{ExportTable: 119, IPv6: true}})
	return r
}

func (r *rack) set(blocks ...Block) {
	r.t.Helper()
	r.ok(r.node.SetBlocks(ctx, blocks))
}

func block(name string, cidrs ...string) Block {
	return Block{Name: name, Prefixes: prefixes(cidrs...)}
}

// exports lists a routing table as a routing daemon sees it: destination, link's
// index, protocol.
func (r *rack) exports(table int) (out []string) {
	r.t.Helper()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return r.host.nl.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
		})
		r.host.must(err)
		for _, x := range routes {
			out = append(out, rtnl.RouteDst(x).String()+" "+x.Protocol.String())
			if x.LinkIndex != r.host.link("lo").Attrs().Index {
				r.t.Errorf("route %s is not by lo", x)
			}
		}
	}
	slices.Sort(out)
	return out
}

func (r *rack) announces(table int, want ...string) {
	r.t.Helper()
	if got := r.exports(table); !slices.Equal(got, want) {
		r.t.Errorf("table %d has %v, want %v", table, got, want)
	}
}

// refuses asserts the blocks that have an unreachable route.
func (r *rack) refuses(want ...string) {
	r.t.Helper()
	var got []string
	for _, b := range r.inventory().Blocks {
		if b.Unreachable {
			got = append(got, b.Prefix.String())
		}
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("unreachable routes %v, want %v", got, want)
	}
}

// wanted is the desired state of the rack.
func (r *rack) wanted(blocks ...Block) Desired {
	return Desired{Config: Config{Uplinks: Routed{ExportTable: 119, IPv6: true}}, Supply: BlockList(blocks)}
}

func TestPodsOfBlocks(t *testing.T) {
	r := newRack(t)
	r.set(block("b", block4, block6), block("one", single4, single6))
	for name, addrs := range map[string][2]string{
		"first of a block": {"10.2.0.32", "fd02::20"},
		"last of a block":  {"10.2.0.63", "fd02::3f"},
		"a block of one":   {"10.9.0.7", "fd09::7"},
	} {
		t.Run(name, func(t *testing.T) {
			p, outsider := r.as(t).pod(addrs[0], addrs[1]), r.outside.as(t)
			for i, host := range []string{outside, outside6} {
				server := outsider.serveTCP(net.JoinHostPort(host, "0"))
				p.seenAs(server.String(), addrs[i]) // nothing is translated
				server = p.serveTCP(net.JoinHostPort(addrs[i], "0"))
				outsider.seenAs(server.String(), host)
			}
			r.check(p)
			again, err := r.node.AddPod(ctx, p.want)
			if err != nil || again.HostIndex != p.links.HostIndex {
				t.Errorf("again: %+v, %v", again, err)
			}
		})
	}
}

// The node rejects a packet to an address that no pod has. Without the unreachable route the packet would loop
// between node and router until its TTL expires.
func TestFreeAddressDoesNotLoop(t *testing.T) {
	r := newRack(t)
	r.set(block("b", block4, block6), block("one", single4, single6))
	for _, free := range []string{"10.2.0.40", "fd02::30", "10.9.0.7", "fd09::7"} {
		before := r.router.link("r0").Attrs().Statistics.RxPackets
		_, err := r.outside.dialFrom("", net.JoinHostPort(free, "80"), dialTimeout)
		if err == nil || !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("%s: %v, want unreachable", free, err)
		}
		if n := r.router.link("r0").Attrs().Statistics.RxPackets - before; n > 20 {
			t.Errorf("%s: %d packets came back from the node: a loop", free, n)
		}
	}
	for free, cidr := range map[string]string{"10.2.0.40": block4, "fd02::30": block6} { // that it loops without
		lost := unreachableRoute(netip.MustParsePrefix(cidr))
		r.host.must(r.host.nl.RouteDel(&lost))
		within(t, "a loop to "+free+" without the unreachable route: this test cannot see one", func() bool {
			before := r.router.link("r0").Attrs().Statistics.RxPackets
			_, _ = r.outside.dialFrom("", net.JoinHostPort(free, "80"), 200*time.Millisecond)
			return r.router.link("r0").Attrs().Statistics.RxPackets-before >= 20
		})
	}
}

func TestExportTable(t *testing.T) {
	r := newRack(t)
	foreign := &netlink.Route{Dst: rtnl.IPNet(netip.MustParsePrefix("192.0.2.0/24")), LinkIndex: r.host.link("lo").Attrs().Index, Table: 119, Protocol: unix.RTPROT_STATIC}
	r.host.must(r.host.nl.RouteAdd(foreign))
	both := []string{block4 + " 190", "192.0.2.0/24 static", block6 + " 190"}
	r.set(block("b", block4, block6))
	r.announces(119, both...)
	r.refuses(block4, block6)
	r.set(block("b", block4, block6))
	r.announces(119, both...)

	r.ok(r.node.WithdrawBlocks(ctx))
	r.announces(119, "192.0.2.0/24 static")
	r.refuses(block4, block6)

	// Another daemon, with another table: the old one's routes go.
	n := r.host.open()
	r.ok(n.Setup(ctx, Config{Uplinks: Routed{ExportTable: 120, IPv6: true}}))
	r.ok(n.SetBlocks(ctx, []Block{block("c", single4)}))
	r.announces(119, "192.0.2.0/24 static")
	r.announces(120, single4+" 190")
	r.refuses(single4)
}

// A node whose mode changes keeps nothing of the mode before, takes no objects of another mode, and gets its own back.
func TestChangeOfMode(t *testing.T) {
	v := newVPC(t)
	ports := Desired{Config: Config{Uplinks: Ports{}}}
	pools := Desired{Config: Config{Uplinks: Routed{ExportTable: 119, IPv6: true}}, Supply: BlockList{block("b", block4)}}
	uplinks := Desired{Config: v.settings(), Supply: UplinkList{v.uplink()}}
	n := v.node
	for i, want := range []Desired{pools, uplinks, pools, ports, uplinks, ports, pools} {
		if i < 3 {
			n = v.host.open() // as another start of the daemon
		}
		v.ok(n.Setup(ctx, want.Config))
		left, err := n.Inventory(ctx) // Setup alone removes what is the other mode's
		v.ok(err)
		_, hasUplinks := want.Supply.(UplinkList)
		_, hasBlocks := want.Supply.(BlockList)
		rules := slices.ContainsFunc(left.Rules, func(r RuleInfo) bool { return r.Priority != RulePod })
		if !hasUplinks && (len(left.Uplinks) > 0 || rules || strings.Contains(v.host.filter(), "snat")) || !hasBlocks && len(left.Blocks) > 0 {
			t.Errorf("Setup left %+v\n%s", left, v.host.filter())
		}
		_, err = n.Repair(ctx, want)
		v.ok(err)
		kind := fmt.Sprintf("the node's uplinks are %T, expected", want.Config.Uplinks)
		for _, c := range []struct {
			own bool
			err error
		}{{hasUplinks, n.SetUplink(ctx, v.uplink())}, {hasBlocks, n.SetBlocks(ctx, []Block{block("b", block4)})}} {
			if c.own && c.err != nil || !c.own && !strings.Contains(fmt.Sprint(c.err), kind) {
				t.Errorf("an object of its mode (%t): %v, want %q of others", c.own, c.err, kind)
			}
		}
		inv, err := n.Inventory(ctx)
		v.ok(err)
		if len(inv.Uplinks) > 0 != hasUplinks || len(inv.Blocks) > 0 != hasBlocks {
			t.Errorf("with %T there are %+v and %+v", want.Config.Uplinks, inv.Uplinks, inv.Blocks)
		}
		if did, err := n.Repair(ctx, want); err != nil || len(did) > 0 {
			t.Errorf("a second repair did %v, %v", did, err)
		}
	}
}

func TestBlockThatCannotBe(t *testing.T) {
	r := newRack(t)
	r.setup(Config{Uplinks: Routed{ExportTable: 119}})
	for want, b := range map[string]Block{
		"at least one":        {Name: "b"},
		"without host bits":   block("b", "10.2.0.33/27"),
		"data path is not on": block("b", block6),
	} {
		err := r.node.SetBlocks(ctx, []Block{b})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "block b") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := r.host.open().SetBlocks(ctx, nil); !errors.Is(err, ErrNotSetUp) {
		t.Errorf("got %v", err)
	}
	for _, table := range []int{-1, 253, 254, 255, PodTable, UplinkTableBase + 3} {
		if err := (Config{Uplinks: Routed{ExportTable: table}}).Validate(); err == nil || !strings.Contains(err.Error(), "ExportTable") {
			t.Errorf("table %d: %v", table, err)
		}
	}
}
