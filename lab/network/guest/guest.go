// Package guest imitates the NICs of a virtual machine in a pod. A runtime in the
// pod takes each of them as KubeVirt's does: a tap device is opened as it is (its
// domainAttachmentType tap), any other interface is taken to a bridge with a tap device of the
// runtime's own (its bridge binding). The machine itself is a network namespace: what it sends
// and receives goes through the file of the tap device, frame by frame, as by QEMU's.
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

// NIC is one that a machine has, as its runtime learns it from the pod's network.
type NIC struct {
	Name     string // of the pod's interface, and in the machine
	MAC      net.HardwareAddr
	Addrs    []netip.Prefix
	Gateways []netip.Addr // of default routes by it
	Queues   int          // with which a tap device is opened; 0: without IFF_MULTI_QUEUE
}

// Guest is a machine that runs.
type Guest struct {
	name  string // of its namespace
	files []*os.File
	pumps sync.WaitGroup
}

// Start starts a machine whose runtime is in the namespace at sandbox. name is that of the
// machine's own namespace, which is made.
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
			return nil, fmt.Errorf("NIC %s of a machine: %w", nic.Name, err)
		}
	}
	return g, nil
}

// Netns is the file of the namespace that is the machine.
func (g *Guest) Netns() string { return ns.Path(g.name) }

// Close stops the machine. What its runtime created in the pod is removed with the pod.
func (g *Guest) Close() error {
	for _, f := range g.files {
		_ = f.Close()
	}
	g.pumps.Wait()
	return ns.Remove(g.name)
}

// add gives the machine a NIC.
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
		return fmt.Errorf("make it: %w", err)
	}
	g.files = append(g.files, inside...)
	for _, q := range queues {
		g.pumps.Go(func() { pump(q, inside[0]) })
	}
	g.pumps.Go(func() { pump(inside[0], queues[0]) })
	return nil
}

// configure applies what a runtime's DHCP server answers.
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

// longest is that of a frame that is passed on, in bytes.
const longest = 1 << 16

// pump passes frames on until one of the files is closed, or its device is gone.
func pump(from, to *os.File) {
	frame := make([]byte, longest)
	for {
		n, err := from.Read(frame)
		if err != nil {
			return
		}
		_, _ = to.Write(frame[:n]) // a device that is down takes none: the frame is lost, as on a wire
	}
}
