package guest

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// prepare returns the tap device in the pod that connects a machine to an interface, and its MTU.
func prepare(sandbox string, index int, nic NIC) (device string, mtu int, err error) {
	err = ns.Netlink(sandbox, func(h *netlink.Handle) error {
		l, err := h.LinkByName(nic.Name)
		if err != nil {
			return fmt.Errorf("pod interface: %w", err)
		}
		mtu = l.Attrs().MTU
		if l.Type() == "tuntap" {
			device = nic.Name
			return nil
		}
		device = fmt.Sprintf("tap%d", index)
		return bind(h, l, device)
	})
	return device, mtu, err
}

// bind implements KubeVirt's bridge binding (bridgeBindingSpec of its pkg/network/setup/netpod): it removes the addresses
// of the pod's interface, renames it, gives it the MAC address of a new bridge and adds it to the bridge, together with
// a tap device. A link with the interface's name, MAC address and addresses replaces it, from which the runtime reads
// them: KubeVirt uses a dummy, bind a bridge without ports, because not every kernel has dummies. The machine answers
// ARP for the addresses, the pod does not.
func bind(h *netlink.Handle, l netlink.Link, device string) error {
	name, mac, mtu := l.Attrs().Name, l.Attrs().HardwareAddr, l.Attrs().MTU
	addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "k6t-" + name
	if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("create the runtime's bridge: %w", err)
	}
	bridge, err := h.LinkByName(attrs.Name)
	if err != nil {
		return err
	}
	tap := netlink.NewLinkAttrs()
	tap.Name, tap.MTU = device, mtu
	memory := netlink.NewLinkAttrs()
	memory.Name, memory.MTU, memory.HardwareAddr = name, mtu, mac
	for _, step := range []func() error{
		func() error { return ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/conf/all/arp_ignore", Value: "1"}) },
		func() error { return h.LinkSetDown(l) },
		func() error { return h.LinkSetName(l, name+"-nic") },
		func() error { return h.LinkSetHardwareAddr(l, bridge.Attrs().HardwareAddr) },
		func() error { return h.LinkSetMaster(l, bridge) },
		func() error {
			for _, a := range addrs {
				if err := h.AddrDel(l, &netlink.Addr{IPNet: a.IPNet}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) { // setting the link down removes IPv6 addresses
					return err
				}
			}
			return nil
		},
		func() error { return h.LinkSetLearning(l, false) },
		func() error {
			return h.LinkAdd(&netlink.Tuntap{LinkAttrs: tap, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR})
		},
		func() error { return join(h, device, bridge) },
		func() error { return remember(h, &netlink.Bridge{LinkAttrs: memory}, addrs) },
		func() error { return h.LinkSetUp(l) },
		func() error { return h.LinkSetUp(bridge) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("bind %s with a bridge: %w", name, err)
		}
	}
	return nil
}

func remember(h *netlink.Handle, l netlink.Link, addrs []netlink.Addr) error {
	if err := h.LinkAdd(l); err != nil {
		return err
	}
	for _, a := range addrs {
		if a.IP.IsLinkLocalUnicast() {
			continue
		}
		if err := h.AddrAdd(l, &netlink.Addr{IPNet: a.IPNet}); err != nil {
			return err
		}
	}
	return nil
}

func join(h *netlink.Handle, name string, bridge netlink.Link) error {
	l, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	if err := h.LinkSetMaster(l, bridge); err != nil {
		return err
	}
	return h.LinkSetUp(l)
}

// open opens a tap device of a namespace like a runtime of virtual machines, once or with several queues, and creates it if
// missing. It calls ready while the device is open.
func open(path, name string, queues int, ready func(*netlink.Handle) error) (files []*os.File, err error) {
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if queues > 0 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	err = ns.Netlink(path, func(h *netlink.Handle) error {
		for range max(1, queues) {
			f, err := openQueue(name, flags)
			if err != nil {
				return err
			}
			files = append(files, f)
		}
		if ready != nil {
			return ready(h)
		}
		return nil
	})
	if err != nil {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, err
	}
	return files, nil
}

// openQueue opens a device in the calling thread's namespace (the kernel's Documentation/networking/tuntap.rst).
func openQueue(name string, flags uint16) (*os.File, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	req.SetUint16(flags)
	const device = "/dev/net/tun"
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", device, err)
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("TUNSETIFF: %w", err)
	}
	return os.NewFile(uintptr(fd), device), nil
}
