package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Ensure makes device and port match t, and returns the device's index. It changes only differences, and does not
// interrupt a correct tunnel. Errors: ErrNoFoU; unix.EADDRINUSE, if another socket has the port.
func Ensure(h *netlink.Handle, t Tunnel) (index int, err error) {
	if err := ensurePort(h, t); err != nil {
		return 0, err
	}
	link, err := ensureDevice(h, t)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

// Make is like Ensure, for a namespace that has nothing of t yet. It adds without a look-up, which saves a third of
// the messages, and falls back to Ensure if something exists.
func Make(h *netlink.Handle, t Tunnel) (index int, err error) {
	if err := h.FouAdd(t.receiver()); err != nil {
		if err := ensurePort(h, t); err != nil { // which returns the cause
			return 0, err
		}
	}
	link, err := add(h, t)
	if errors.Is(err, unix.EEXIST) {
		link, err = ensureDevice(h, t)
	} else if err == nil {
		err = setUp(h, t, link)
	}
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

func ensurePort(h *netlink.Handle, t Tunnel) error {
	want := t.receiver()
	got, err := ports(h, want.Family)
	if err != nil {
		return err
	}
	for _, f := range got {
		if f.Port != want.Port {
			continue
		}
		if samePort(f, want) {
			return nil
		}
		if err := h.FouDel(f); err != nil {
			return fmt.Errorf("remove the FoU port %d, which is for another protocol: %w", want.Port, err)
		}
	}
	if err := h.FouAdd(want); err != nil {
		return fmt.Errorf("receive FoU at UDP port %d: %w", want.Port, noFoU(err, "fou"))
	}
	return nil
}

// ports lists the FoU ports of a family.
func ports(h *netlink.Handle, family int) ([]netlink.Fou, error) {
	all, err := rtnl.Whole(func() ([]netlink.Fou, error) { return h.FouList(family) })
	if err != nil {
		return nil, fmt.Errorf("list FoU ports: %w", noFoU(err, "fou"))
	}
	var list []netlink.Fou
	for _, f := range all {
		if f.Family == family {
			list = append(list, f)
		}
	}
	return list, nil
}

func samePort(a, b netlink.Fou) bool {
	return a.Family == b.Family && a.Port == b.Port && a.Protocol == b.Protocol && a.EncapType == b.EncapType
}

func ensureDevice(h *netlink.Handle, t Tunnel) (netlink.Link, error) {
	found, err := h.LinkByName(t.Link())
	if err != nil && !rtnl.IsNoLink(err) {
		return nil, fmt.Errorf("look for %s: %w", t.Link(), err)
	}
	if err == nil && len(differ(found, t)) != 0 {
		if found, err = change(h, found, t); err != nil {
			return nil, err
		}
	}
	if found == nil || rtnl.IsNoLink(err) {
		if found, err = add(h, t); err != nil {
			return nil, err
		}
	}
	if found.Attrs().Flags&net.FlagUp == 0 {
		if err := setUp(h, t, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func setUp(h *netlink.Handle, t Tunnel, link netlink.Link) error {
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", t.Link(), err)
	}
	return nil
}

// change changes a device in place if the kernel can do that. Otherwise it removes the device and returns nil.
func change(h *netlink.Handle, found netlink.Link, t Tunnel) (netlink.Link, error) {
	// The link is identified by name only: with an index too, the kernel would rename it, which fails for a link that
	// is up (Linux 6.1).
	if found.Type() == t.device().Type() && h.LinkModify(t.device()) == nil {
		if again, err := h.LinkByName(t.Link()); err == nil && len(differ(again, t)) == 0 {
			return again, nil
		}
	}
	if err := h.LinkDel(found); err != nil && !rtnl.IsNoLink(err) {
		return nil, fmt.Errorf("remove %s, which has the wrong settings: %w", t.Link(), err)
	}
	return nil, nil //nolint:nilnil // there is none any more
}

func add(h *netlink.Handle, t Tunnel) (netlink.Link, error) {
	want := t.device()
	if err := h.LinkAdd(want); err != nil {
		return nil, fmt.Errorf("add %s: %w", t.Link(), noDevice(err, want))
	}
	made, err := h.LinkByName(t.Link())
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", t.Link(), err)
	}
	if made.Attrs().MTU != t.MTU {
		if err := h.LinkSetMTU(made, t.MTU); err != nil {
			return nil, fmt.Errorf("set the MTU of %s to %d: %w", t.Link(), t.MTU, err)
		}
	}
	// Without a link-local address the kernel sends no packets of its own into the tunnel.
	if err := h.LinkSetIP6AddrGenMode(made, addrGenNone); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, fmt.Errorf("keep %s without a link-local address: %w", t.Link(), err)
	}
	return made, nil
}

// addrGenNone is IN6_ADDR_GEN_MODE_NONE (linux/if_link.h).
const addrGenNone = 1

// Check describes the differences of device and port from t. Errors: ErrNoFoU.
func Check(h *netlink.Handle, t Tunnel) ([]string, error) {
	var list []string
	want := t.receiver()
	got, err := ports(h, want.Family)
	if err != nil {
		return nil, err
	}
	received := false
	for _, f := range got {
		received = received || samePort(f, want)
	}
	if !received {
		list = append(list, fmt.Sprintf("no FoU of protocol %d is received at UDP port %d", want.Protocol, want.Port))
	}
	link, err := h.LinkByName(t.Link())
	switch {
	case rtnl.IsNoLink(err):
		return append(list, "there is no link "+t.Link()), nil
	case err != nil:
		return nil, fmt.Errorf("look for %s: %w", t.Link(), err)
	}
	list = append(list, differ(link, t)...)
	if link.Attrs().Flags&net.FlagUp == 0 {
		list = append(list, t.Link()+" is down")
	}
	return list, nil
}

// differ describes the differences of a device from t, except whether it is up.
func differ(link netlink.Link, t Tunnel) (list []string) {
	have, want := settings(link), settings(t.device())
	if len(have) != len(want) {
		return []string{t.Link() + " is a link of type " + link.Type()}
	}
	for i, w := range want {
		if have[i] != w {
			list = append(list, fmt.Sprintf("%s has %s %v, not %v", t.Link(), w.what, have[i].is, w.is))
		}
	}
	return list
}

// setting is a setting of a device.
type setting struct {
	what string
	is   any
}

// settings returns the settings of a tunnel device, depending on its type; none for other links.
func settings(link netlink.Link) []setting {
	common := func(local, remote net.IP, kind, flags, from, to uint16, hops, protocol uint8) []setting {
		return []setting{
			{"MTU", link.Attrs().MTU}, {"local address", addr(local)}, {"remote address", addr(remote)},
			{"encapsulation", kind}, {"encapsulation flags", flags}, {"source port", from}, {"destination port", to},
			{"hop limit", hops}, {"protocol", protocol},
		}
	}
	switch l := link.(type) {
	case *netlink.Iptun:
		return common(l.Local, l.Remote, l.EncapType, l.EncapFlags, l.EncapSport, l.EncapDport, l.Ttl, l.Proto)
	case *netlink.Ip6tnl:
		return append(common(l.Local, l.Remote, l.EncapType, l.EncapFlags, l.EncapSport, l.EncapDport, l.Ttl, l.Proto), setting{"flags", l.Flags &^ stateFlags})
	}
	return nil
}

// addr formats an address of the netlink library; "any" if it is not set.
func addr(ip net.IP) string {
	if len(ip) == 0 || ip.IsUnspecified() {
		return "any"
	}
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap().String()
}

// RemovePort removes the FoU port of a family. It succeeds if the port does not exist, or if the kernel lacks FoU.
func RemovePort(h *netlink.Handle, family int, port uint16) error {
	err := h.FouDel(netlink.Fou{Family: family, Port: int(port)})
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(noFoU(err, "fou"), ErrNoFoU) { // EINVAL: there is no such port
		return nil
	}
	return fmt.Errorf("remove the FoU port %d: %w", port, err)
}
