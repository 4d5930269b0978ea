package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/lab/run/poll"
)

func TestHostLinkName(t *testing.T) {
	seen := map[string]string{}
	for _, key := range [][3]string{
		{"net", "c1", "eth0"}, {"net", "c1", "eth1"}, {"net", "c2", "eth0"}, {"other", "c1", "eth0"},
		{"net", "c", "1eth0"}, {"netc", "1", "eth0"}, // the boundaries between parts matter
	} {
		name := HostLinkName(key[0], key[1], key[2])
		if len(name) > 15 || !strings.HasPrefix(name, LinkPrefix) || !IsHostLinkName(name) {
			t.Errorf("HostLinkName%q = %q, want a valid pod link name", key, name)
		}
		if name != HostLinkName(key[0], key[1], key[2]) {
			t.Errorf("HostLinkName%q differs between calls", key)
		}
		if other, dup := seen[name]; dup {
			t.Errorf("HostLinkName%q is also the name of %s", key, other)
		}
		seen[name] = key[0] + key[1] + key[2]
	}
	for _, name := range []string{"", "bth", "eth0", "bth0", "bthabcdefghijk", "bthABCDEFGHIJKL", "bthabcdefghijk1", "bth-bcdefghijkl"} {
		if IsHostLinkName(name) {
			t.Errorf("IsHostLinkName(%q) = true, want false", name)
		}
	}
}

func TestDerivedMACs(t *testing.T) {
	p := Pod{HostIfName: HostLinkName("net", "c1", "eth0"), IPv4: netip.MustParseAddr(podA)}.complete(1500)
	for side, mac := range map[string][]byte{"host": p.HostMAC, "pod": p.PodMAC} {
		if len(mac) != 6 || mac[0]&1 != 0 || mac[0]&2 == 0 {
			t.Errorf("%s MAC = %x, want a locally administered unicast address", side, mac)
		}
	}
	if p.HostMAC.String() == p.PodMAC.String() {
		t.Error("both ends have the same MAC address")
	}
}

func TestPodValidate(t *testing.T) {
	good := Pod{Netns: "/run/netns/x", IfName: "eth0", HostIfName: HostLinkName("n", "c", "eth0"), IPv4: netip.MustParseAddr(podA)}
	validated(t, good, map[string]func(*Pod){
		"Netns":      func(p *Pod) { p.Netns = "" },
		"IfName":     func(p *Pod) { p.IfName = "averyverylongname" },
		"IfName \"a": func(p *Pod) { p.IfName = "a/b" },
		"HostIfName": func(p *Pod) { p.HostIfName = "eth0" },
		"IPv4 2001":  func(p *Pod) { p.IPv4 = netip.MustParseAddr(podA6) },
		"IPv6 10":    func(p *Pod) { p.IPv6 = netip.MustParseAddr(podA) },
		"IPv6 ::fff": func(p *Pod) { p.IPv6 = netip.MustParseAddr("::ffff:10.0.0.1") },
		"IPv4, IPv6": func(p *Pod) { p.IPv4 = netip.Addr{} },
		"MTU":        func(p *Pod) { p.MTU = 100 },
	})
}

func TestCheckPodNamesEveryDifference(t *testing.T) {
	v := newVPC(t)
	p, other := v.pod(podA, podA6), v.pod(podC)
	h, s := v.host.nl, p.nl
	p.must(h.RouteDel(podRoute(p.links.HostIndex, p.want.IPv4)))
	p.must(h.RouteAdd(podRoute(other.links.HostIndex, p.want.IPv4)))
	p.must(h.RouteDel(podRoute(p.links.HostIndex, p.want.IPv6)))
	p.must(h.LinkSetDown(rtnl.LinkRef(p.links.HostIndex)))
	p.must(s.AddrDel(rtnl.LinkRef(p.links.PodIndex), podAddress(p.want.IPv4)))
	p.must(s.NeighSet(rtnl.PermanentNeighbour(p.links.PodIndex, gateway4, other.links.HostMAC)))
	p.must(s.RouteDel(&podSideRoutes(p.links.PodIndex, p.want.IPv6)[0]))
	p.must(s.LinkSetMTU(rtnl.LinkRef(p.links.PodIndex), 1400))
	p.want.MTU = 1500

	err := v.node.CheckPod(ctx, p.want)
	var m *Mismatch
	if !errors.As(err, &m) {
		t.Fatalf("CheckPod() error = %v, want a Mismatch", err)
	}
	for _, part := range []string{"sends " + podA, "no route to " + podA6, p.want.HostIfName + " is down",
		"lacks address " + podA, "neighbour entry of 169.254.1.1", "lacks its route to ::/0", "MTU 1400"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("CheckPod() error = %q, want it to contain %q", err, part)
		}
	}
	if err := v.node.CheckPod(ctx, v.sandbox(podB).want); !strings.Contains(fmt.Sprint(err), "missing on the node; link eth0 is missing in the pod") {
		t.Errorf("CheckPod() of a pod that was never added: error = %v, want both ends missing", err)
	}
	p.want.Netns = "/run/netns/btdp-none"
	if err := v.node.CheckPod(ctx, p.want); !errors.Is(err, ErrNoNetns) {
		t.Errorf("CheckPod() error = %v, want ErrNoNetns", err)
	}
}

// Other software may set the source address of a route.
func TestCheckPodIgnoresSourceOfRoutes(t *testing.T) {
	v := newVPC(t)
	p := v.pod(podA, podA6)
	for _, addr := range p.want.Addrs() {
		for _, r := range podSideRoutes(p.links.PodIndex, addr) {
			r.Src = addr.AsSlice()
			p.must(p.nl.RouteReplace(&r))
		}
	}
	p.must(v.node.CheckPod(ctx, p.want))
}

func TestDetachPod(t *testing.T) {
	v := newVPC(t)
	a, b := v.pod(podA, podA6), v.pod(podB)
	b.serveTCP(":80")
	a.serveTCP(":80")
	a.seenAs(podB+":80", podA)
	v.detach(a)
	v.has(2, 1)
	a.cannotReach("", podB+":80")
	a.cannotReach("", nodeAddr+":80")
	v.host.cannotReach("", podA+":80")

	// The address may already belong to another pod, which keeps it.
	c := v.pod(podA)
	for range 2 {
		v.detach(a)
	}
	c.seenAs(podB+":80", podA)
	if err := v.node.ReapLinks(ctx, []string{a.want.HostIfName, HostLinkName("never", "was", "there")}); err != nil {
		t.Fatal(err)
	}
	v.has(2, 2)
	if _, err := a.nl.LinkByName("eth0"); err == nil {
		t.Error("the pod's end still exists")
	}
	if err := v.node.DetachPod(ctx, a.want.HostIfName, a.want.Addrs()); err != nil {
		t.Errorf("DetachPod() of a missing link: %v", err)
	}
	if err := v.node.ReapLinks(ctx, []string{a.want.HostIfName}); err != nil {
		t.Errorf("ReapLinks() of a missing link: %v", err)
	}
}

func TestReapLinksKeepsOtherLinks(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA)
	if err := v.node.ReapLinks(ctx, []string{"eth1"}); err == nil {
		t.Error("ReapLinks() accepted a link that is not Berth's")
	}
	v.reap(a)
	v.has(1, 1) // a is live, as it was never detached
	v.detach(a)
	v.add(a) // the runtime retries before the removal
	v.reap(a)
	if err := v.node.CheckPod(ctx, a.want); err != nil {
		t.Errorf("ReapLinks() removed a pod that was added again: %v", err)
	}
	if v.host.link("eth1") == nil || v.host.link("eth0") == nil {
		t.Error("ReapLinks() removed an ENI's link")
	}
}

func TestDetachPodOfDeletedSandbox(t *testing.T) {
	v := newVPC(t)
	p := v.pod(podA)
	p.must(p.nl.LinkDel(rtnl.LinkRef(p.links.PodIndex)))
	v.detach(p)
	v.has(0, 0)
}

// ended returns the result of a call, and fails the test if the call hangs.
func ended(t *testing.T, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(dialTimeout):
		t.Fatal("the call hung")
		return nil
	}
}

// If the path of a pod's namespace leads to another namespace at setup or repair, that namespace must not get the
// pod's address.
func TestNetnsPathToAnotherNamespace(t *testing.T) {
	v := newVPC(t)
	a, b := v.sandbox(podA), v.sandbox(podB)
	id, err := InspectNetns(a.path())
	a.must(err)
	a.want.NetnsID = id
	path := filepath.Join(t.TempDir(), "netns")
	lead := func(to string) {
		t.Helper()
		_ = os.Remove(path)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	a.want.Netns = path
	for to, want := range map[string]error{
		b.path(): ErrNoNetns, v.host.path(): ErrNoNetns,
		fifo: ErrNotNetns, "/dev/zero": ErrNotNetns, t.TempDir(): ErrNotNetns, "/proc/self/ns/mnt": ErrNotNetns,
	} {
		lead(to)
		for what, call := range map[string]func() error{
			"AddPod":   func() error { _, err := v.node.AddPod(ctx, a.want); return err },
			"CheckPod": func() error { return v.node.CheckPod(ctx, a.want) },
			"Repair":   func() error { _, err := v.node.Repair(ctx, v.wanted(a)); return err },
		} {
			if err := ended(t, call); !errors.Is(err, want) {
				t.Errorf("%s() with Netns at %s: error = %v, want %v", what, to, err, want)
			}
		}
		if _, err := b.nl.LinkByName("eth0"); err == nil {
			t.Fatalf("another pod got the link of %s", podA)
		}
	}
	lead(a.path())
	if _, err := v.node.AddPod(ctx, a.want); err != nil {
		t.Error(err)
	}
}

// A pod with several interfaces is reachable at each of its addresses, and replies leave by the interface with the
// address. The pod's own connections leave by the first.
func TestPodWithSeveralInterfaces(t *testing.T) {
	v := newVPC(t)
	v.setup()
	first, other := v.pod(podA, podA6), v.pod(podB, podB6)
	further := &pod{space: first.space, want: first.want}
	further.want.IfName = "net1"
	further.want.HostIfName = HostLinkName("storage", first.name, "net1")
	further.want.IPv4, further.want.IPv6 = netip.MustParseAddr(podC), netip.MustParseAddr("2001:db8::53")
	v.add(further)
	patience, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	v.ok(poll.Until(patience, func() error { // routes change once duplicate address detection has ended
		if text := first.run("ip -6 addr show tentative"); text != "" {
			return errors.New(text)
		}
		return nil
	}))
	for _, again := range []*pod{further, first} { // adding again changes nothing
		before := first.policy()
		v.add(again)
		if after := first.policy(); after != before {
			t.Errorf("second AddPod() of %s changed routes or rules from\n%s\nto\n%s", again.want.IfName, before, after)
		}
	}
	v.check(first)
	v.check(further)
	first.run("ip -6 rule del priority 2048")
	if err := v.node.CheckPod(ctx, further.want); err == nil || !strings.Contains(err.Error(), "rule for packets from "+further.want.IPv6.String()) {
		t.Errorf("CheckPod() without the rule of a further interface: error = %v", err)
	}
	v.add(further)

	for _, a := range []string{podA, podA6, podC, "2001:db8::53"} {
		server := first.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(a), 0).String())
		other.seenAs(server.String(), other.want.addrLike(a))
	}
	for _, b := range []string{podB, podB6} {
		server := other.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(b), 0).String())
		first.seenAs(server.String(), first.want.addrLike(b))
		from := further.want.addrLike(b)
		first.seenFrom(from, server.String(), from)
	}

	v.remove(further)
	v.check(first)
	server := first.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(podA), 0).String())
	other.seenAs(server.String(), podB)
	v.add(further) // the new link has another index
	v.check(further)
	server = first.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(podC), 0).String())
	other.seenAs(server.String(), podB)
}

// addrLike is the pod's address of the same family.
func (p Pod) addrLike(of string) string {
	if netip.MustParseAddr(of).Is4() {
		return p.IPv4.String()
	}
	return p.IPv6.String()
}

// A pod may have interfaces of other networks. Packets from the address of its first interface leave by that one even
// to these networks, and another interface may have the default route of a family.
func TestPodWithInterfacesOfOtherNetworks(t *testing.T) {
	v := newVPC(t)
	v.setup()
	first, other := v.pod(podA, podA6), v.pod(podB, podB6)
	near4, near6 := netip.MustParseAddr(podB).Prev(), netip.MustParseAddr(podB6).Prev()
	first.run("ip link add data type veth peer name peer")
	first.run("ip link set data up")
	first.run("ip link set peer up")
	first.run("ip addr add " + netip.PrefixFrom(near4, 24).String() + " dev data")
	first.run("ip addr add " + netip.PrefixFrom(near6, 64).String() + " dev data nodad")

	first.want.Several = true
	for range 2 { // the second time changes nothing
		v.add(first)
		v.check(first)
		for _, a := range []string{podA, podA6} {
			server := first.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(a), 0).String())
			other.seenAs(server.String(), other.want.addrLike(a))
		}
	}
	first.run("ip rule del priority 2048")
	if err := v.node.CheckPod(ctx, first.want); err == nil || !strings.Contains(err.Error(), "rule for packets from "+podA) {
		t.Errorf("CheckPod() without the rule: error = %v", err)
	}

	yields := v.pod(podC, "2001:db8::53")
	v.remove(yields)
	yields.want.Several, yields.want.Yield4 = true, true
	v.add(yields)
	v.check(yields)
	yields.run("ip link add data type veth peer name peer")
	yields.run("ip link set data up")
	yields.run("ip link set peer up")
	yields.run("ip route add default dev data") // no interface has it yet
	v.add(yields)
	if got := yields.run("ip route show default"); !strings.Contains(strings.Split(got, "\n")[0], "dev data") {
		t.Errorf("IPv4 default routes, want one by data first:\n%s", got)
	}
	if got := yields.run("ip -6 route show default"); !strings.Contains(got, "dev eth0") || strings.Contains(got, "metric 20") {
		t.Errorf("IPv6 default routes, want one by eth0 and none with metric 20:\n%s", got)
	}
	server := yields.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(podC), 0).String())
	other.seenAs(server.String(), podB)
}
