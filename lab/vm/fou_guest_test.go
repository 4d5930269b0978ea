//go:build guest

package vm

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// TestFooOverUDP is what the machine is for: its kernel has Foo-over-UDP with all that egress
// builds on it, of both families.
func TestFooOverUDP(t *testing.T) {
	const name = "vm-fou"
	if err := ns.Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(name); err != nil {
			t.Error(err)
		}
	})
	err := ns.Do(ns.Path(name), func() error {
		for family, protocol := range map[int]int{unix.AF_INET: unix.IPPROTO_IPIP, unix.AF_INET6: unix.IPPROTO_IPV6} {
			fou := netlink.Fou{Family: family, Port: 5555, Protocol: protocol, EncapType: netlink.FOU_ENCAP_DIRECT}
			if err := netlink.FouAdd(fou); err != nil {
				t.Errorf("add a FoU port of family %d: %v", family, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ipip := &netlink.Iptun{
		LinkAttrs: netlink.LinkAttrs{Name: "fou4"}, Local: net.IPv4(127, 0, 0, 1), EncapType: uint16(netlink.FOU_ENCAP_DIRECT), EncapDport: 5555,
	}
	ip6ip6 := &netlink.Ip6tnl{
		LinkAttrs: netlink.LinkAttrs{Name: "fou6"}, Local: net.IPv6loopback, Remote: net.IPv6unspecified, Proto: unix.IPPROTO_IPV6,
		EncapType: uint16(netlink.FOU_ENCAP_DIRECT), EncapDport: 5555,
	}
	err = ns.Netlink(ns.Path(name), func(h *netlink.Handle) error {
		for _, l := range []netlink.Link{ipip, ip6ip6} {
			if err := h.LinkAdd(l); err != nil {
				t.Errorf("add the device %s: %v", l.Attrs().Name, err)
				continue
			}
			if err := ns.LinkUp(h, l.Attrs().Name); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
