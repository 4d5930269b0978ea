package plug

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Limits for values from other systems.
const (
	PrefixLen = 11 // characters of a port ID in link names, as in Neutron's agents

	maxID        = 64   // a UUID has 36
	maxAddresses = 16   // for each port
	maxRoutes    = 128  // for each port; a Neutron subnet may have 30
	minMTU       = 68   // RFC 791: every link supports it
	minMTU6      = 1280 // RFC 8200, section 5: the kernel refuses IPv6 below
	maxMTU       = 65535

	// IEEE 802.1Q, 9.6: 0 means no VLAN, and 4095 is reserved.
	minVLAN = 1
	maxVLAN = 4094
)

// Validate rejects invalid ports. Each error is an ErrInvalid and names the field and what is
// expected.
func (w Want) Validate() error {
	if err := w.Ref.Validate(); err != nil {
		return err
	}
	if w.Pod.Netns == "" || !strings.HasPrefix(w.Pod.Netns, "/") {
		return invalid("Pod.Netns", w.Pod.Netns, "an absolute path")
	}
	if w.VMUUID != "" && !validID(w.VMUUID) {
		return invalid("VMUUID", w.VMUUID, "up to %d letters, digits and dashes", maxID)
	}
	switch w.Binding {
	case "", BindingTap:
	case BindingBridge:
		if w.Kind == Netns {
			return invalid("Binding", string(w.Binding), "%s, or none, for kind Netns, whose link must go back to the VPC's namespace unchanged", BindingTap)
		}
	default:
		return invalid("Binding", string(w.Binding), "%s, %s or none", BindingBridge, BindingTap)
	}
	if w.Kind == RoutedVLAN {
		if err := w.validRouted(); err != nil {
			return err
		}
	}
	return w.Interface.Validate()
}

// validRouted validates what is specific to RoutedVLAN.
func (w Want) validRouted() error {
	switch {
	case w.Binding != "":
		return invalid("Binding", string(w.Binding), "none for a RoutedVLAN")
	case w.Enforcing != Strict && w.Enforcing != Standard:
		return invalid("Enforcing", string(w.Enforcing), "%s or %s", Strict, Standard)
	}
	// validRoutes ensures that there is at most one gateway for each family, and only for families
	// with an address.
	switch a := w.Interface.Addresses; {
	case len(a) < 1 || len(a) > 2 || len(a) == 2 && a[0].Addr().Is4() == a[1].Addr().Is4():
		return invalid("Interface.Addresses", fmt.Sprint(a), "one address, or one of each IP family, for a RoutedVLAN")
	case len(w.Interface.Gateways) != len(a):
		return invalid("Interface.Gateways", fmt.Sprint(w.Interface.Gateways), "the router of the subnet of each address")
	}
	return nil
}

// ValidateFor validates a port for a Plugger of one kind.
func (w Want) ValidateFor(kind Kind) error {
	if err := w.Validate(); err != nil {
		return err
	}
	if w.Kind != kind {
		return fmt.Errorf("Kind: %q: want %s here: %w", w.Kind, kind, ErrInvalid)
	}
	return nil
}

// ValidateName validates the identity of a port, which is enough for Unplug. Each error is an
// ErrInvalid.
func (r Ref) ValidateName() error {
	switch {
	case !validMark(r.Attachment):
		return invalid("Attachment", r.Attachment, "1 to 32 lower-case letters and digits")
	case !validID(r.PortID) || len(r.PortID) < PrefixLen:
		return invalid("PortID", r.PortID, "%d to %d letters, digits and dashes", PrefixLen, maxID)
	}
	return nil
}

// Validate validates the identity and the place of a port. Each error is an ErrInvalid.
func (r Ref) Validate() error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	if !rtnl.ValidName(r.Pod.IfName) || r.Pod.IfName == "lo" {
		return invalid("Pod.IfName", r.Pod.IfName, "a link name of up to 15 characters, not lo")
	}
	switch r.Kind {
	case OVS, OVSHybrid:
		if !rtnl.ValidName(r.Bridge) {
			return invalid("Bridge", r.Bridge, "the name of a bridge of Open vSwitch")
		}
	case Netns:
		if !validNetnsName(r.VPCNetns) {
			return invalid("VPCNetns", r.VPCNetns, "the name of a network namespace, of up to 100 letters, digits, dashes, dots and underscores")
		}
	case VLAN, RoutedVLAN:
		if mac, err := net.ParseMAC(r.Trunk); err != nil || !unicast(mac) {
			return invalid("Trunk", r.Trunk, "the MAC address of a link of the node, a unicast address of six bytes")
		}
		if r.VLAN < minVLAN || r.VLAN > maxVLAN {
			return invalid("VLAN", fmt.Sprint(r.VLAN), "%d to %d", minVLAN, maxVLAN)
		}
	default:
		return invalid("Kind", string(r.Kind), "%s, %s, %s, %s or %s", OVS, OVSHybrid, Netns, VLAN, RoutedVLAN)
	}
	return nil
}

// Validate validates what the pod sees. Each error is an ErrInvalid.
func (i Interface) Validate() error {
	if !unicast(i.MAC) {
		return invalid("Interface.MAC", i.MAC.String(), "a unicast address of six bytes")
	}
	v6, err := i.validAddresses()
	if err != nil {
		return err
	}
	least := minMTU
	if v6 {
		least = minMTU6
	}
	if i.MTU != 0 && (i.MTU < least || i.MTU > maxMTU) {
		return invalid("Interface.MTU", fmt.Sprint(i.MTU), "0 or %d to %d", least, maxMTU)
	}
	return i.validRoutes()
}

func (i Interface) validAddresses() (v6 bool, err error) {
	if len(i.Addresses) > maxAddresses {
		return false, invalid("Interface.Addresses", fmt.Sprint(len(i.Addresses), " addresses"), "at most %d", maxAddresses)
	}
	seen := map[netip.Addr]bool{}
	for n, p := range i.Addresses {
		field, a := fmt.Sprintf("Interface.Addresses[%d]", n), p.Addr()
		switch {
		case !p.IsValid() || a.Is4In6() || a.Zone() != "" || !usable(a):
			return false, invalid(field, p.String(), "a unicast address with the prefix length of its subnet")
		case p.Bits() == 0:
			return false, invalid(field, p.String(), "a prefix length above 0")
		case seen[a]:
			return false, invalid(field, p.String(), "each address once")
		}
		seen[a], v6 = true, v6 || a.Is6()
	}
	return v6, nil
}

func (i Interface) validRoutes() error {
	families := map[bool]bool{}
	for n, g := range i.Gateways {
		field := fmt.Sprintf("Interface.Gateways[%d]", n)
		switch {
		case !g.IsValid() || g.Is4In6() || g.Zone() != "" || !(usable(g) || g.IsLinkLocalUnicast()):
			return invalid(field, g.String(), "a unicast address")
		case families[g.Is4()]:
			return invalid(field, g.String(), "one gateway for each IP family")
		case i.own(g):
			return invalid(field, g.String(), "another address than the port's own")
		case !i.has(g.Is4()):
			return invalid(field, g.String(), "a gateway of an IP family in which the port has an address")
		}
		families[g.Is4()] = true
	}
	if len(i.Routes) > maxRoutes {
		return invalid("Interface.Routes", fmt.Sprint(len(i.Routes), " routes"), "at most %d", maxRoutes)
	}
	for n, r := range i.Routes {
		if err := i.validRoute(fmt.Sprintf("Interface.Routes[%d]", n), r); err != nil {
			return err
		}
	}
	return nil
}

func (i Interface) validRoute(field string, r Route) error {
	dst := r.Dst
	switch {
	case !dst.IsValid() || dst.Masked() != dst || dst.Addr().Is4In6() || dst.Addr().Zone() != "":
		return invalid(field+".Dst", dst.String(), "a prefix without host bits")
	case dst.Bits() == 0:
		return invalid(field+".Dst", dst.String(), "the default route as a gateway")
	case dst.Addr().IsLoopback() || dst.Addr().IsMulticast():
		return invalid(field+".Dst", dst.String(), "a unicast prefix")
	case !i.has(dst.Addr().Is4()):
		return invalid(field+".Dst", dst.String(), "a prefix of an IP family in which the port has an address")
	case r.Via.IsValid() && (r.Via.Is4() != dst.Addr().Is4() || r.Via.Zone() != "" || !(usable(r.Via) || r.Via.IsLinkLocalUnicast()) || i.own(r.Via)):
		return invalid(field+".Via", r.Via.String(), "a unicast address of the family of %s, not the port's own", dst)
	}
	return nil
}

// own reports whether an address is the port's own.
func (i Interface) own(a netip.Addr) bool {
	return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
}

// has reports whether the port has an address of a family.
func (i Interface) has(v4 bool) bool {
	return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() == v4 })
}

// usable reports whether a host in a VPC may have an address. 169.254.0.0/16 is an ordinary prefix
// there.
func usable(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255}) &&
		!(a.Is6() && a.IsLinkLocalUnicast())
}

func unicast(mac net.HardwareAddr) bool {
	return len(mac) == 6 && mac[0]&1 == 0 && mac.String() != "00:00:00:00:00:00"
}

func validMark(s string) bool {
	return s != "" && len(s) <= 32 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

func validID(s string) bool {
	return s != "" && len(s) <= maxID && strings.Trim(s, alphanumeric+"-") == ""
}

// validNetnsName accepts file names only, so that the path stays in its folder.
func validNetnsName(s string) bool {
	return s != "" && len(s) <= 100 && s[0] != '.' && strings.Trim(s, alphanumeric+"-._") == ""
}

func invalid(field, value, want string, args ...any) error {
	if len(value) > 80 {
		value = value[:80] + "…"
	}
	return fmt.Errorf("%s: %q: want %s: %w", field, value, fmt.Sprintf(want, args...), ErrInvalid)
}
