package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// The list that events keep up to date is what a reading of all tables has: routes of other software to single addresses
// behind links, in any table.
func TestForeignRoutes(t *testing.T) {
	v := newVPC(t)
	p := v.pod(podA)
	for _, link := range []string{"eni1", "eni2"} {
		v.host.run("ip link add " + link + " type veth peer name " + link + "p")
		v.host.run("ip link set " + link + " up")
		v.host.run("ip link set " + link + "p up")
	}
	v.host.run("ip link set eni2 alias COIL:default:ab12:eth0")
	v.host.run("ip route add 10.0.0.201 dev eni1") // before berthd watches
	w := v.watch()
	read := v.host.open() // watches nothing, and so reads
	go func() {
		for range w.events { // nobody waits for the reader
		}
	}()
	list := func(n *Node) string {
		t.Helper()
		routes, err := n.ForeignRoutes(ctx)
		v.ok(err)
		var texts []string
		for _, r := range routes {
			texts = append(texts, fmt.Sprintf("%s %s %d", r.Addr, r.Link, r.Table))
		}
		return strings.Join(texts, ", ")
	}
	first, second := "10.0.0.201 eni1 254", "10.0.0.202 eni2 116"
	for _, c := range []struct{ command, want string }{
		{"", first},
		{"ip route add 10.0.0.202 dev eni2 table 116 proto 30", first + ", " + second},
		{"ip -6 route add " + podB6 + " dev eni2", first + ", " + second + ", " + podB6 + " eni2 254"},
		{"ip -6 route del " + podB6 + " dev eni2", first + ", " + second},
		{"ip route add 169.254.172.2 dev eni1", first + ", " + second + ", 169.254.172.2 eni1 254"}, // as the Amazon VPC CNI's egress plugin
		{"ip route del 169.254.172.2", first + ", " + second},
		// None of these leads to somebody behind a link.
		{"ip route add 10.0.0.203 via 10.0.0.1 dev eth0 onlink", first + ", " + second},
		{"ip route add 10.0.9.0/24 dev eni1", first + ", " + second},
		{"ip route add blackhole 10.0.0.204", first + ", " + second},
		{"ip route add 10.0.0.205 dev lo table 119", first + ", " + second},
		{"ip route add 10.0.0.206 dev " + p.want.HostIfName, first + ", " + second},
		{"ip route add 10.0.0.207 dev eni1 proto 190", first + ", " + second},
		{"ip route replace 10.0.0.201 dev eni2", "10.0.0.201 eni2 254, " + second},
		{"ip route replace 10.0.0.201 dev eni1", first + ", " + second},
		{"ip route add 10.0.0.201 dev eni2 metric 5", "10.0.0.201 eni1 254, 10.0.0.201 eni2 254, " + second},
		{"ip route del 10.0.0.202 table 116", "10.0.0.201 eni1 254, 10.0.0.201 eni2 254"},
		{"ip link set eni2 down", first}, // without an event about the route
		{"ip link del eni1", ""},
	} {
		if c.command != "" {
			v.host.run(c.command)
		}
		got := ""
		within(t, fmt.Sprintf("%q: routes are %q", c.command, c.want), func() bool { got = list(v.node); return got == c.want })
		if fresh := list(read); fresh != c.want {
			t.Errorf("%q: read again, routes are %q, want %q", c.command, fresh, c.want)
		}
	}
	if routes, _ := v.node.ForeignRoutes(ctx); len(routes) > 0 {
		t.Errorf("routes = %v", routes)
	}
}

// A new pod never gets an address that the node delivers elsewhere. A running pod keeps its address.
func TestAddPodRefusesAddressesOfOthers(t *testing.T) {
	v := newVPC(t)
	v.host.run("ip link add eni1 type veth peer name eni1p")
	v.host.run("ip link set eni1 up")
	v.host.run("ip link set eni1p up")
	for _, c := range []struct {
		name, do, undo string
		watched        bool // whether only the list of all tables shows it
	}{
		{"route in the main table", "ip route add " + podB + " dev eni1", "ip route del " + podB, false},
		{"IPv6 route", "ip -6 route add " + podB6 + " dev eni1", "ip -6 route del " + podB6, false},
		{"route in the table of pods", fmt.Sprintf("ip route add %s dev eni1 metric 5 table %d", podB, PodTable), fmt.Sprintf("ip route del %s metric 5 table %d", podB, PodTable), false},
		{"address of a link", "ip address add " + podB + "/32 dev eni1", "ip address del " + podB + "/32 dev eni1", false},
		{"route in a table of which no rule tells", "ip route add " + podB + " dev eni1 table 116", "ip route del " + podB + " table 116", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := v.as(t)
			if c.watched {
				w := v.watch()
				go func() {
					for range w.events {
					}
				}()
			}
			v.host.run(c.do)
			before := fmt.Sprint(v.inventory())
			within(t, "the route is seen", func() bool {
				routes, err := v.node.ForeignRoutes(ctx)
				return err == nil && (len(routes) > 0 || strings.Contains(c.name, "address"))
			})
			p := v.sandbox(podB, podB6)
			if _, err := v.node.AddPod(ctx, p.want); !errors.Is(err, ErrAddressInUse) {
				t.Errorf("AddPod() = %v, want ErrAddressInUse", err)
			}
			if after := fmt.Sprint(v.inventory()); after != before {
				t.Errorf("state after the failed AddPod = %s, want %s as before it", after, before)
			}
			v.host.run(c.undo)
			within(t, "the pod can be added", func() bool { _, err := v.node.AddPod(ctx, p.want); return err == nil })
			v.host.run(c.do)
			if _, err := v.node.AddPod(ctx, p.want); err != nil {
				t.Errorf("AddPod() of a running pod = %v", err)
			}
			v.host.run(c.undo)
			v.remove(p)
		})
	}
}

// BenchmarkHeldByOthers is the part of an ADD that looks whether others have its address, on a node with pods of another
// network.
func BenchmarkHeldByOthers(b *testing.B) {
	v := newVPC(b)
	v.host.run("ip link add eni1 type veth peer name eni1p")
	v.host.run("ip link set eni1 up")
	w := v.watch()
	go func() {
		for range w.events {
		}
	}()
	for i := range 100 {
		v.host.run(fmt.Sprintf("ip route add 10.1.0.%d dev eni1", i))
	}
	addr := netip.MustParseAddr(podB)
	for b.Loop() {
		v.ok(v.node.foreign.held(v.node.kernel, addr, 0))
	}
}
