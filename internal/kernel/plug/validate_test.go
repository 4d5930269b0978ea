package plug

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func whole() Want {
	return Want{
		Ref: Ref{
			Attachment: "bthaaaaaaaaaaaa", PortID: "3f2a9c10-76f7-46d4-9d11-057063db1a14", Kind: OVS, Bridge: "br-int",
			Pod: Pod{Netns: "/run/netns/x", IfName: "eth0"},
		},
		Interface: Interface{
			MAC: net.HardwareAddr{0xfa, 0x16, 0x3e, 1, 2, 3}, MTU: 1442,
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.0.12/24"), netip.MustParsePrefix("2001:db8::12/64")},
			Gateways:  []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fe80::1")},
			Routes:    []Route{{Dst: netip.MustParsePrefix("10.0.0.0/8"), Via: netip.MustParseAddr("192.168.0.254")}, {Dst: netip.MustParsePrefix("2001:db8:9::/48")}},
		},
	}
}

// branch is a VLAN on a trunk.
func branch() Want {
	w := whole()
	w.Kind, w.Bridge, w.Trunk, w.VLAN, w.PortID = VLAN, "", "0a:ff:ff:00:00:01", 1, "eni-0a1b2c3d4e5f67890"
	return w
}

func TestValidate(t *testing.T) {
	for _, w := range []Want{whole(), func() Want {
		w := whole()
		w.Kind, w.Bridge, w.VPCNetns = Netns, "", "vpc-ns3dda2801-d675-4688-a63f-dcda8d327f50"
		return w
	}(), branch(), func() Want {
		w := branch()
		w.Trunk, w.VLAN, w.PortID, w.Binding = "0A:FF:FF:00:00:01", 4094, "eni-0a1b2c3d", BindingBridge
		return w
	}(), func() Want {
		w := whole()
		w.Interface = Interface{MAC: w.Interface.MAC}
		return w
	}()} {
		if err := w.Validate(); err != nil {
			t.Errorf("Validate() of %+v: %v", w, err)
		}
	}
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	for _, tc := range []struct {
		field string
		spoil func(*Want)
	}{
		{"Attachment", func(w *Want) { w.Attachment = "" }},
		{"Attachment", func(w *Want) { w.Attachment = "a b" }},
		{"PortID", func(w *Want) { w.PortID = "3f2a9c10-7" }},
		{"PortID", func(w *Want) { w.PortID = "../../../../etc/passwd" }},
		{"PortID", func(w *Want) { w.PortID = strings.Repeat("a", 65) }},
		{"PortID", func(w *Want) { w.PortID = "3f2a9c10-76f7\n" }},
		{"Pod.IfName", func(w *Want) { w.Pod.IfName = "lo" }},
		{"Pod.IfName", func(w *Want) { w.Pod.IfName = "a/b" }},
		{"Pod.Netns", func(w *Want) { w.Pod.Netns = "" }},
		{"Pod.Netns", func(w *Want) { w.Pod.Netns = "netns/x" }},
		{"Kind", func(w *Want) { w.Kind = "vhostuser" }},
		{"Bridge", func(w *Want) { w.Bridge = "" }},
		{"Bridge", func(w *Want) { w.Bridge = "a-name-that-is-too-long" }},
		{"VPCNetns", func(w *Want) { w.Kind = Netns }},
		{"VPCNetns", func(w *Want) { w.Kind, w.VPCNetns = Netns, "../x" }},
		{"VPCNetns", func(w *Want) { w.Kind, w.VPCNetns = Netns, ".." }},
		{"Interface.MAC", func(w *Want) { w.Interface.MAC = nil }},
		{"Interface.MAC", func(w *Want) { w.Interface.MAC = make(net.HardwareAddr, 6) }},
		{"Interface.MAC", func(w *Want) { w.Interface.MAC = net.HardwareAddr{1, 0, 0, 0, 0, 1} }},
		{"Interface.MAC", func(w *Want) { w.Interface.MAC = make(net.HardwareAddr, 20) }},
		{"Interface.MTU", func(w *Want) { w.Interface.MTU = 1279 }}, // with an IPv6 address
		{"Interface.MTU", func(w *Want) { w.Interface.MTU = 65536 }},
		{"Interface.MTU", func(w *Want) { w.Interface.MTU = -1 }},
		{"Interface.Addresses", func(w *Want) { w.Interface.Addresses = make([]netip.Prefix, 17) }},
		{"Interface.Addresses[0]", func(w *Want) { w.Interface.Addresses[0] = netip.Prefix{} }},
		{"Interface.Addresses[0]", func(w *Want) { w.Interface.Addresses[0] = prefix("127.0.0.1/8") }},
		{"Interface.Addresses[0]", func(w *Want) { w.Interface.Addresses[0] = prefix("224.0.0.1/24") }},
		{"Interface.Addresses[0]", func(w *Want) { w.Interface.Addresses[0] = prefix("192.168.0.12/0") }},
		{"Interface.Addresses[1]", func(w *Want) { w.Interface.Addresses[1] = prefix("::ffff:192.168.0.12/120") }},
		{"Interface.Addresses[1]", func(w *Want) { w.Interface.Addresses[1] = prefix("fe80::12/64") }},
		{"Interface.Addresses[1]", func(w *Want) { w.Interface.Addresses[1] = w.Interface.Addresses[0] }},
		{"Interface.Gateways[0]", func(w *Want) { w.Interface.Gateways[0] = netip.Addr{} }},
		{"Interface.Gateways[0]", func(w *Want) { w.Interface.Gateways[0] = addr("192.168.0.12") }},
		{"Interface.Gateways[0]", func(w *Want) { w.Interface.Gateways[0] = addr("0.0.0.0") }},
		{"Interface.Gateways[1]", func(w *Want) { w.Interface.Gateways[1] = addr("192.168.0.2") }},
		{"Interface.Gateways[1]", func(w *Want) { w.Interface.Addresses = w.Interface.Addresses[:1] }},
		{"Interface.Routes", func(w *Want) { w.Interface.Routes = make([]Route, 129) }},
		{"Interface.Routes[0].Dst", func(w *Want) { w.Interface.Routes[0].Dst = prefix("10.1.0.0/8") }},
		{"Interface.Routes[0].Dst", func(w *Want) { w.Interface.Routes[0].Dst = prefix("0.0.0.0/0") }},
		{"Interface.Routes[0].Dst", func(w *Want) { w.Interface.Routes[0].Dst = prefix("127.0.0.0/8") }},
		{"Interface.Routes[0].Via", func(w *Want) { w.Interface.Routes[0].Via = addr("fe80::1") }},
		{"Interface.Routes[0].Via", func(w *Want) { w.Interface.Routes[0].Via = addr("192.168.0.12") }},
	} {
		w := whole()
		tc.spoil(&w)
		if err := w.Validate(); !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), tc.field+":") {
			t.Errorf("Validate() with invalid %s: error = %v, want ErrInvalid for the field", tc.field, err)
		}
	}
}

// An invalid trunk or VLAN ID is rejected with its field, and the error for Kind lists all kinds.
func TestValidateVLAN(t *testing.T) {
	for _, trunk := range []string{"", "ens6", "0a:ff:ff:00:00", "0a:ff:ff:00:00:01:02:03", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01"} {
		w := branch()
		w.Trunk = trunk
		if err := w.Validate(); !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), "Trunk:") {
			t.Errorf("Validate() with trunk %q: error = %v, want ErrInvalid for Trunk", trunk, err)
		}
	}
	for _, vlan := range []int{-1, 0, 4095, 1 << 16} {
		w := branch()
		w.VLAN = vlan
		if err := w.Validate(); !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), "VLAN:") || !strings.Contains(err.Error(), "want 1 to 4094") {
			t.Errorf("Validate() with VLAN %d: error = %v, want ErrInvalid for VLAN", vlan, err)
		}
	}
	w := whole()
	w.Kind = "vhostuser"
	for _, kind := range []Kind{OVS, OVSHybrid, Netns, VLAN} {
		if err := w.Validate(); err == nil || !strings.Contains(err.Error(), string(kind)) {
			t.Errorf("Validate() of an unknown kind: error does not list kind %s: %v", kind, err)
		}
	}
}

// Link names match the agents' expectations. Names of VLANs differ for IDs with the same prefix.
func TestShort(t *testing.T) {
	w := whole()
	if got := w.Short(); got != "3f2a9c10-76" || !IsLinkOf("tap"+got, w.PortID) {
		t.Errorf("Short() of an OVS port = %q, want the first 11 characters of its ID", got)
	}
	one, other := branch(), branch()
	other.PortID = "eni-0a1b2c3d4e5f67891"
	if a, b := one.Short(), other.Short(); len(a) != PrefixLen || len(b) != PrefixLen || a == b || a != one.Short() {
		t.Errorf("Short() of two branches = %q and %q, want two different names", a, b)
	}
}

func TestMark(t *testing.T) {
	r := whole().Ref
	got, ok := ParseMark(r.Mark())
	if want := (Ref{Kind: OVS, Attachment: r.Attachment, PortID: r.PortID, Pod: Pod{IfName: "eth0"}}); !ok || got != want {
		t.Errorf("ParseMark(%q) = %+v, %v, want the original Ref", r.Mark(), got, ok)
	}
	for _, alias := range []string{"", "berth", "x OVS a 3f2a9c10-76f7 eth0", "berth OVS A! 3f2a9c10-76f7 eth0", "berth OVS a short eth0", "berth OVS a 3f2a9c10-76f7 a/b", "berth OVS a 3f2a9c10-76f7"} {
		if r, ok := ParseMark(alias); ok {
			t.Errorf("ParseMark(%q) = %+v, want no Ref", alias, r)
		}
	}
}

// Ports that the node cannot route to, or not in their mode, are rejected with the name of the field.
func TestValidateRoutedVLAN(t *testing.T) {
	routed := func() Want {
		w := branch()
		w.Kind, w.Enforcing = RoutedVLAN, Standard
		w.Interface.Addresses, w.Interface.Gateways, w.Interface.Routes = w.Interface.Addresses[:1], w.Interface.Gateways[:1], nil
		return w
	}
	four, six, six2 := netip.MustParsePrefix("192.168.0.12/24"), netip.MustParsePrefix("2001:db8::12/64"), netip.MustParsePrefix("2001:db8::13/64")
	gateway4, gateway6 := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fe80:ec2::1")
	with := func(w Want, addrs []netip.Prefix, gateways ...netip.Addr) Want {
		w.Interface.Addresses, w.Interface.Gateways = addrs, gateways
		return w
	}
	for _, w := range []Want{
		routed(), with(routed(), []netip.Prefix{six}, gateway6), with(routed(), []netip.Prefix{four, six}, gateway4, gateway6),
		with(routed(), []netip.Prefix{six, four}, gateway4, gateway6),
	} {
		if err := w.Validate(); err != nil {
			t.Error(err)
		}
	}
	for _, tc := range []struct {
		field string
		spoil func(*Want)
	}{
		{"Interface.Addresses", func(w *Want) { *w = with(*w, nil, gateway4) }},
		{"Interface.Addresses", func(w *Want) { *w = with(*w, []netip.Prefix{six, six2}, gateway6) }},
		{"Interface.Addresses", func(w *Want) { *w = with(*w, []netip.Prefix{four, six, six2}, gateway4, gateway6) }},
		{"Interface.Gateways", func(w *Want) { *w = with(*w, []netip.Prefix{four, six}, gateway4) }},
		{"Interface.Gateways[1]", func(w *Want) { *w = with(*w, []netip.Prefix{four, six}, gateway4, netip.MustParseAddr("192.168.0.2")) }},
		{"Interface.Gateways[0]", func(w *Want) { *w = with(*w, []netip.Prefix{four}, gateway6) }},
		{"Enforcing", func(w *Want) { w.Enforcing = "" }},
		{"Enforcing", func(w *Want) { w.Enforcing = "Strict" }},
		{"Binding", func(w *Want) { w.Binding = BindingTap }},
		{"Binding", func(w *Want) { w.Binding = BindingBridge }},
		{"Interface.Gateways", func(w *Want) { w.Interface.Gateways = nil }},
		{"VLAN", func(w *Want) { w.VLAN = 4095 }},
		{"Trunk", func(w *Want) { w.Trunk = "" }},
	} {
		w := routed()
		tc.spoil(&w)
		if err := w.Validate(); !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), tc.field+":") {
			t.Errorf("Validate() with invalid %s: error = %v, want ErrInvalid for the field", tc.field, err)
		}
	}
	w := routed()
	w.Kind = VLAN
	if err := w.ValidateFor(RoutedVLAN); !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), "Kind:") {
		t.Errorf("ValidateFor() of another kind: error = %v, want ErrInvalid for Kind", err)
	}
}
