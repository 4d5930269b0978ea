package tap

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/podif"
)

// ensureTap makes the tap device, or finds the one that is there. It has its mark before it
// has its name, so that one without is never taken for the pod's own.
func ensureTap(pod *podif.Namespace, w plug.Want) (netlink.Link, error) {
	l, err := pod.Link(w.Pod.IfName)
	if err != nil {
		return nil, err
	}
	if l == nil {
		if err := makeTap(pod, w); err != nil {
			return nil, err
		}
		if l, err = pod.NL.LinkByName(w.Pod.IfName); err != nil {
			return nil, fmt.Errorf("look up %s in %s: %w", w.Pod.IfName, pod.Path, err)
		}
	}
	if mac := tapMAC(w); l.Attrs().HardwareAddr.String() != mac.String() {
		if err := pod.NL.LinkSetHardwareAddr(l, mac); err != nil {
			return nil, fmt.Errorf("give %s in %s the MAC address %s: %w", w.Pod.IfName, pod.Path, mac, err)
		}
	}
	if mtu := w.Interface.MTU; mtu != 0 && l.Attrs().MTU != mtu {
		if err := pod.NL.LinkSetMTU(l, mtu); err != nil {
			return nil, fmt.Errorf("give %s in %s the MTU %d: %w", w.Pod.IfName, pod.Path, mtu, err)
		}
	}
	return l, nil
}

func makeTap(pod *podif.Namespace, w plug.Want) error {
	name := unfinished(w.Ref)
	l, err := pod.Link(name)
	if err != nil {
		return err
	}
	if l == nil {
		// A tap device belongs to the namespace of the thread that makes it (/dev/net/tun).
		err := rtnl.InNetns(pod.NS, func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			return netlink.LinkAdd(&netlink.Tuntap{
				LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Owner: w.Guest.UID, Group: w.Guest.GID,
				Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR, Queues: 0,
			})
		})
		if err != nil {
			return fmt.Errorf("make tap device %s in %s: %w", name, pod.Path, err)
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
		return fmt.Errorf("mark %s in %s: %w", name, pod.Path, err)
	}
	if err := pod.NL.LinkSetName(l, w.Pod.IfName); err != nil {
		return fmt.Errorf("call %s %s in %s: %w", name, w.Pod.IfName, pod.Path, err)
	}
	return failpoint.Hit("plug.tap.named.after")
}

// silence keeps the pod's namespace itself from sending by links that are a machine's: the
// VPC drops what comes from their addresses.
func silence(pod *podif.Namespace, links ...string) error {
	return rtnl.InNetns(pod.NS, func() error {
		for _, l := range links {
			err := os.WriteFile("/proc/sys/net/ipv6/conf/"+l+"/disable_ipv6", []byte("1"), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
				return fmt.Errorf("switch IPv6 off on %s in %s: %w", l, pod.Path, err)
			}
		}
		return nil
	})
}
