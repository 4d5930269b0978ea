package tap

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// ensureTap creates the tap device, or returns the existing one, and configures it. It sets the alias before the final
// name, so that a device with the name but without the alias is never Berth's.
func ensureTap(pod *podif.Namespace, w plug.Want) (netlink.Link, error) {
	l, err := pod.Link(w.Pod.IfName)
	if err != nil {
		return nil, err
	}
	if l != nil && !sameKind(l, w.Tap) {
		// A device's owner and queue mode are fixed at its creation.
		if err := pod.NL.LinkDel(l); err != nil && !rtnl.IsNoLink(err) {
			return nil, fmt.Errorf("remove %s in %s to create it again: %w", w.Pod.IfName, pod.Path, err)
		}
		l = nil
	}
	if l == nil {
		if err := makeTap(pod, w); err != nil {
			return nil, err
		}
		if l, err = pod.NL.LinkByName(w.Pod.IfName); err != nil {
			return nil, fmt.Errorf("look up %s in %s: %w", w.Pod.IfName, pod.Path, err)
		}
	}
	if l.Attrs().HardwareAddr.String() != w.Interface.MAC.String() {
		if err := pod.NL.LinkSetHardwareAddr(l, w.Interface.MAC); err != nil {
			return nil, fmt.Errorf("set the MAC address of %s in %s to %s: %w", w.Pod.IfName, pod.Path, w.Interface.MAC, err)
		}
	}
	if mtu := w.Interface.MTU; mtu != 0 && l.Attrs().MTU != mtu {
		if err := pod.NL.LinkSetMTU(l, mtu); err != nil {
			return nil, fmt.Errorf("set the MTU of %s in %s to %d: %w", w.Pod.IfName, pod.Path, mtu, err)
		}
	}
	return l, nil
}

// makeTap creates the tap device under a temporary name, sets its alias, and renames it.
func makeTap(pod *podif.Namespace, w plug.Want) error {
	name := temporaryName(w.Ref)
	l, err := pod.Link(name)
	if err != nil {
		return err
	}
	if l == nil {
		// A tap device belongs to the namespace in which /dev/net/tun was opened (tun_chr_open).
		err := rtnl.InNetns(pod.NS, func() error { return netlink.LinkAdd(deviceOf(name, w.Tap)) })
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			return fmt.Errorf("%w: open /dev/net/tun: %w; load the kernel module tun and let berthd open the device", plug.ErrNoTun, err)
		}
		if err != nil {
			return fmt.Errorf("create tap device %s in %s: %w", name, pod.Path, err)
		}
		if err := failpoint.Hit("plug.tap.made.after"); err != nil {
			return err
		}
		if l, err = pod.NL.LinkByName(name); err != nil {
			return fmt.Errorf("look up %s in %s: %w", name, pod.Path, err)
		}
	}
	if !isTap(l) {
		return fmt.Errorf("%s in %s: %w", name, pod.Path, plug.ErrInterfaceExists)
	}
	if err := pod.NL.LinkSetAlias(l, w.Mark()); err != nil {
		return fmt.Errorf("set the alias of %s in %s: %w", name, pod.Path, err)
	}
	if err := pod.NL.LinkSetName(l, w.Pod.IfName); err != nil {
		return fmt.Errorf("rename %s to %s in %s: %w", name, w.Pod.IfName, pod.Path, err)
	}
	return failpoint.Hit("plug.tap.named.after")
}

// deviceOf describes a persistent tap device. Frames have the virtio header, which all VM runtimes
// read. The runtime may change that when it opens the device.
func deviceOf(name string, t plug.TapDevice) *netlink.Tuntap {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	d := &netlink.Tuntap{
		LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Owner: t.Owner, Group: t.Group,
		Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
	}
	if t.MultiQueue {
		d.Flags |= netlink.TUNTAP_MULTI_QUEUE
	}
	return d
}

// sameKind reports whether a tap device has the desired owner, group and queue mode.
func sameKind(l netlink.Link, t plug.TapDevice) bool {
	d, ok := l.(*netlink.Tuntap)
	return ok && d.Owner == t.Owner && d.Group == t.Group && d.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 == t.MultiQueue
}

// checkTap adds differences of the tap device.
func checkTap(device netlink.Link, w plug.Want, found *plug.Differences) {
	a := device.Attrs()
	if a.Flags&net.FlagUp == 0 {
		found.Add("%s is down in the pod", a.Name)
	}
	if a.HardwareAddr.String() != w.Interface.MAC.String() {
		found.Add("%s has MAC address %s in the pod, not %s", a.Name, a.HardwareAddr, w.Interface.MAC)
	}
	if w.Interface.MTU != 0 && a.MTU != w.Interface.MTU {
		found.Add("%s has MTU %d in the pod, not %d", a.Name, a.MTU, w.Interface.MTU)
	}
	if !sameKind(device, w.Tap) {
		found.Add("%s does not have the owner %d, the group %d and MultiQueue %t", a.Name, w.Tap.Owner, w.Tap.Group, w.Tap.MultiQueue)
	}
}
