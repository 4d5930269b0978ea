package datapath

import (
	"net/netip"
	"strings"
	"testing"
)

func TestHostLinkName(t *testing.T) {
	seen := map[string]string{}
	for _, key := range [][3]string{
		{"net", "c1", "eth0"}, {"net", "c1", "eth1"}, {"net", "c2", "eth0"}, {"other", "c1", "eth0"},
		{"net", "c", "1eth0"}, {"netc", "1", "eth0"}, // the parts do not run into each other
	} {
		name := HostLinkName(key[0], key[1], key[2])
		if len(name) > 15 || !strings.HasPrefix(name, LinkPrefix) || !IsHostLinkName(name) {
			t.Errorf("HostLinkName%q = %q: not a link name of Berth's", key, name)
		}
		if name != HostLinkName(key[0], key[1], key[2]) {
			t.Errorf("HostLinkName%q changes", key)
		}
		if other, dup := seen[name]; dup {
			t.Errorf("HostLinkName%q is that of %s", key, other)
		}
		seen[name] = key[0] + key[1] + key[2]
	}
	for _, name := range []string{"", "bth", "eth0", "bth0", "bthabcdefghijk", "bthABCDEFGHIJKL", "bthabcdefghijk1", "bth-bcdefghijkl"} {
		if IsHostLinkName(name) {
			t.Errorf("IsHostLinkName(%q): want false", name)
		}
	}
}

func TestDerivedMACs(t *testing.T) {
	p := Pod{HostIfName: HostLinkName("net", "c1", "eth0"), IPv4: netip.MustParseAddr(podA)}.complete(1500)
	for side, mac := range map[string][]byte{"host": p.HostMAC, "pod": p.PodMAC} {
		if len(mac) != 6 || mac[0]&1 != 0 || mac[0]&2 == 0 {
			t.Errorf("%s MAC %x: want unicast and locally administered", side, mac)
		}
	}
	if p.HostMAC.String() == p.PodMAC.String() {
		t.Error("both ends have one MAC")
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
