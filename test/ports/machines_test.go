package ports

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestMachines has virtual machines in pods with NICs that are ports, by a tap device or by a bridge of their runtime,
// with each way to plug.
func TestMachines(t *testing.T) {
	harness.Rotate(t, 1, 3, 5, 6, 8)                                         // TestBeside has the others
	b := raise(t, lab.Options{DaemonArgs: []string{"--repair-interval=1h"}}) // what is mended is mended by events
	for _, p := range harness.Sample(t, 3, []testCase{
		{"Tap", func(b *bench) { b.machines("tap") }},
		{"Bridge", func(b *bench) { b.machines("bridge") }},
		{"ByALinuxBridge", (*bench).machinesByALinuxBridge},
		{"DeletedLink", func(b *bench) { b.deletedLink("tap") }},
		{"Spoofing", (*bench).spoofing},
		{"WithoutTun", (*bench).withoutTun},
		{"DaemonKilled", (*bench).daemonKilled},
	}) {
		t.Run(p.name, func(t *testing.T) { p.test(b.on(t)) })
	}
}

// machinesByALinuxBridge has nodes that plug as Neutron's hybrid plug does.
func (b *bench) machinesByALinuxBridge() {
	for _, n := range b.Nodes() {
		b.model.Neutron.AddHost(n.Name, neutronfake.Host{Agent: true, Hybrid: true})
		defer b.model.Neutron.AddHost(n.Name, neutronfake.Host{})
	}
	b.machines("tap")
	b.machines("bridge")
	for _, prefix := range harness.Sample(b.T, 2, []string{"tap", "qbr", "qvb", "qvo"}) {
		b.deletedLink(prefix)
	}
}

// machinesInAlcor has tap devices that lead to links of Alcor's agent. Bridges cannot.
func (b *bench) machinesInAlcor() {
	b.machines("tap")
	_, err := b.a.AddPod(harness.Deadline(b.T, harness.Patience), "bridged", pod("[{binding: bridge}]"))
	harness.Fails(b.T, err, 11, "bridged")
	b.empty()
}

// machine adds a pod with a virtual machine.
func (b *bench) machine(n *node.Node, name, nics string) *node.Pod {
	b.Helper()
	o := pod(nics)
	o.VM, o.Once = true, false
	return b.addPod(n, name, o)
}

// machines has a machine with two NICs talk to a pod on another node and to another machine.
func (b *bench) machines(binding string) {
	nics := fmt.Sprintf("[{binding: %[1]s}, {subnet: subnet-2, binding: %[1]s}]", binding)
	vm, other, far := b.machine(b.a, "vm", nics), b.machine(b.b, "vm-too", nics), b.add(b.b, "far", "")
	b.reaches(vm, far)
	b.reaches(far, vm)
	b.reaches(other, vm)
	// By their second NICs.
	second := netip.MustParseAddr(addresses(b.nic(other, "eth1")))
	harness.Eventually(b.T, time.Minute, fmt.Sprintf("%s reaches %s", vm.Name, second), func() error {
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		defer cancel()
		r, err := vm.Ask(ctx, "udp", second, "hello")
		if err == nil && r.You.String() != addresses(b.nic(vm, "eth1")) {
			err = fmt.Errorf("seen as %s", r.You)
		}
		return err
	})
	ctx := harness.Deadline(b.T, harness.Patience)
	harness.OK(b.T, b.a.CheckPod(ctx, "vm"))
	harness.OK(b.T, b.a.GC(ctx))
	harness.Settle(b.T, b.Lab)
	harness.Restart(b.T, b.a)
	harness.OK(b.T, b.a.CheckPod(ctx, "vm"))
	b.reaches(far, vm)
	harness.Settle(b.T, b.Lab)
	harness.Remove(b.T, b.a, "vm") // with the machine running
	harness.OK(b.T, b.a.DelAgain(ctx, vm))
	harness.RemoveAll(b.T, b.b)
	b.empty()
}

// deletedLink deletes the node's link of a machine's port, and of a pod's port. Both are repaired at once.
func (b *bench) deletedLink(prefix string) {
	vm, plain, far := b.machine(b.a, "vm", "[{binding: tap}]"), b.add(b.a, "plain", ""), b.add(b.b, "far", "")
	harness.Settle(b.T, b.Lab)
	for _, p := range []*node.Pod{vm, plain} {
		b.reaches(p, far)
		link := prefix + b.nic(p, "eth0").Status.PortID[:11]
		harness.OK(b.T, ns.Netlink(b.a.Netns, func(h *netlink.Handle) error {
			l, err := h.LinkByName(link)
			if err != nil {
				return err
			}
			return h.LinkDel(l)
		}))
		b.reaches(p, far)
		b.reaches(far, p)
	}
	b.clear()
}

// spoofing gives a machine another MAC address than its port has: the VPC drops its packets.
func (b *bench) spoofing() {
	vm, far := b.machine(b.a, "vm", "[{binding: tap}]"), b.add(b.b, "far", "")
	b.reaches(vm, far)
	own, err := net.ParseMAC(b.nic(vm, "eth0").Status.MAC)
	harness.OK(b.T, err)
	call := func(mac net.HardwareAddr) {
		b.Helper()
		harness.OK(b.T, ns.Netlink(vm.Inside(), func(h *netlink.Handle) error {
			l, err := h.LinkByName("eth0")
			if err != nil {
				return err
			}
			return h.LinkSetHardwareAddr(l, mac)
		}))
	}
	call(net.HardwareAddr{0x02, 0, 0, 0, 0, 0x66})
	if r, err := vm.Ask(soon(b.T), "tcp", far.Addr(), "hello"); err == nil {
		b.Errorf("what came from another MAC address was answered: %+v", r)
	}
	call(own)
	b.reaches(vm, far)
	b.clear()
}

// withoutTun has a node without the kernel module tun.
func (b *bench) withoutTun() {
	restore := b.container.Without(b.T, "/dev/net")
	harness.Restart(b.T, b.a)
	ctx := harness.Deadline(b.T, harness.Patience)
	o := pod("[{binding: tap}]")
	o.VM = true
	_, err := b.a.AddPod(ctx, "no-tun", o)
	harness.Fails(b.T, err, 11, "/dev/net/tun", "cannot create a tap device")
	_, err = b.a.AddPod(ctx, "bridged", pod("[{binding: bridge}]")) // which needs none
	harness.OK(b.T, err)
	restore()
	harness.Restart(b.T, b.a)
	b.machine(b.a, "no-tun", "[{binding: tap}]")
	b.clear()
}

// daemonKilled kills berthd while machines talk: no packet is lost.
func (b *bench) daemonKilled() {
	tap, bridged, far := b.machine(b.a, "tap", "[{binding: tap}]"), b.machine(b.a, "bridged", "[{binding: bridge}]"), b.add(b.b, "far", "")
	b.reaches(tap, far)
	b.reaches(bridged, far)
	harness.Settle(b.T, b.Lab)
	ask := func(when string) {
		b.Helper()
		for _, p := range []*node.Pod{tap, bridged} {
			ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
			_, err := p.Ask(ctx, "tcp", far.Addr(), when)
			cancel()
			if err != nil {
				b.Errorf("%s: pod %s: %v", when, p.Name, err)
			}
		}
	}
	harness.OK(b.T, b.a.Kill())
	ask("berthd does not run")
	harness.OK(b.T, b.a.Start())
	ask("berthd starts")
	harness.OK(b.T, b.WaitReady(harness.Deadline(b.T, harness.Patience)))
	ask("berthd runs again")
	harness.Settle(b.T, b.Lab)
	harness.OK(b.T, b.a.CheckPod(harness.Deadline(b.T, harness.Patience), "tap"))
	b.clear()
}
