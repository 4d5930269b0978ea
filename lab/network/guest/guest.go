// Package guest simulates the NICs of a virtual machine in a pod. A runtime in the pod attaches each of them like
// KubeVirt: it opens a tap device directly (domainAttachmentType tap), and connects any other interface to a bridge with
// a tap device of its own (bridge binding). The machine is a network namespace whose frames pass through the file of the
// tap device, as with QEMU.
package guest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// NIC is one NIC of a machine, as described to its runtime by the pod's network.
type NIC struct {
	Name     string // name of the interface in the pod and in the machine
	MAC      net.HardwareAddr
	Addrs    []netip.Prefix
	Gateways []netip.Addr // gateways of its default routes
	Queues   int          // number of queues for opening a tap device; 0: without IFF_MULTI_QUEUE
}

// Guest is a running machine.
type Guest struct {
	name  string // name of its namespace
	files []*os.File
	pumps sync.WaitGroup
}

// Start starts a machine whose runtime is in the namespace at sandbox. name is the name of the machine's namespace, which
// Start creates.
func Start(sandbox, name string, nics []NIC) (_ *Guest, err error) {
	if err := ns.Create(name); err != nil {
		return nil, err
	}
	g := &Guest{name: name}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	err = ns.Do(g.Netns(), func() error { return ns.SetSysctls(ns.Sysctl{Name: "net/ipv6/conf/default/accept_dad", Value: "0"}) })
	if err != nil {
		return nil, err
	}
	if err := ns.Netlink(g.Netns(), func(h *netlink.Handle) error { return ns.LinkUp(h, "lo") }); err != nil {
		return nil, err
	}
	for i, nic := range nics {
		if err := g.add(sandbox, i, nic); err != nil {
			return nil, fmt.Errorf("add NIC %s to the machine: %w", nic.Name, err)
		}
	}
	return g, nil
}

// Netns returns the path of the machine's namespace.
func (g *Guest) Netns() string { return ns.Path(g.name) }

// Close stops the machine. Everything that its runtime created in the pod is removed with the pod.
func (g *Guest) Close() error {
	for _, f := range g.files {
		_ = f.Close()
	}
	g.pumps.Wait()
	return ns.Remove(g.name)
}

// add adds a NIC to the machine.
func (g *Guest) add(sandbox string, index int, nic NIC) error {
	device, mtu, err := prepare(sandbox, index, nic)
	if err != nil {
		return err
	}
	queues, err := open(sandbox, device, nic.Queues, nil)
	if err != nil {
		return fmt.Errorf("open tap device %s of the pod: %w", device, err)
	}
	g.files = append(g.files, queues...)
	inside, err := open(g.Netns(), nic.Name, 0, func(h *netlink.Handle) error { return nic.configure(h, mtu) })
	if err != nil {
		return fmt.Errorf("create the NIC: %w", err)
	}
	g.files = append(g.files, inside...)
	for _, q := range queues {
		g.pumps.Go(func() { pump(q, inside[0]) })
	}
	g.pumps.Go(func() { pump(inside[0], queues[0]) })
	return nil
}

// configure applies the answers of a runtime's DHCP server.
func (n NIC) configure(h *netlink.Handle, mtu int) error {
	l, err := h.LinkByName(n.Name)
	if err != nil {
		return err
	}
	if err := errors.Join(h.LinkSetHardwareAddr(l, n.MAC), h.LinkSetMTU(l, mtu)); err != nil {
		return err
	}
	return ns.Configure(h, n.Name, n.Addrs, n.Gateways)
}

// longest is the maximum length of a frame in bytes.
const longest = 1 << 16

// pump forwards frames until one of the files is closed, or its device is gone.
func pump(from, to *os.File) {
	frame := make([]byte, longest)
	for {
		n, err := from.Read(frame)
		if err != nil {
			return
		}
		_, _ = to.Write(frame[:n]) // a device that is down rejects the frame, which is lost as on a wire
	}
}
