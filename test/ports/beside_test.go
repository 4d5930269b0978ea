package ports

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/ns"
	_ "github.com/berthnet/berth/internal/node/daemon" // registers its failpoints
	_ "github.com/berthnet/berth/internal/node/daemon/egresspart"
	_ "github.com/berthnet/berth/internal/node/daemon/nicpart"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestBeside has pods whose first interface comes from ENIs or a pool, and further interfaces from ports of a VPC.
// berthd has the privileges that the chart grants.
func TestBeside(t *testing.T) {
	harness.Rotate(t, 0, 2, 4, 7, 9) // TestMachines has the others
	for _, mode := range harness.Sample(t, 3, []lab.Mode{lab.PoolMode, lab.NodeMode, lab.OperatorMode}) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			b := raiseIn(t, mode, lab.Options{VPCPorts: true})
			t.Run("AskingForNone", func(t *testing.T) { b.on(t).askingForNone() })
			t.Run("Packets", func(t *testing.T) { b.on(t).packetsBeside() })
			t.Run("Check", func(t *testing.T) { b.on(t).checkBeside() })
			t.Run("Refused", func(t *testing.T) { b.on(t).refusedBeside() })
			t.Run("Restart", func(t *testing.T) { b.on(t).restartBeside() })
			t.Run("Kills", func(t *testing.T) { b.on(t).killsBeside() })
			t.Run("WithoutOpenVSwitch", func(t *testing.T) { b.on(t).withoutOpenVSwitch() })
		})
	}
}

// two requests two NICs beside the first interface.
const two = "[{subnet: subnet-1}, {subnet: subnet-2}]"

// addIn adds a pod with NICs in the first VPC, at the first attempt.
func (b *bench) addIn(n *node.Node, name, nics string) *node.Pod {
	b.Helper()
	return b.addPod(n, name, vpcPod(b.VPCs[0].Name, nics))
}

// links are the interfaces of a pod but lo, by name, with their IPv4 addresses.
func (b *bench) links(p *node.Pod) map[string]netip.Addr {
	b.Helper()
	all := map[string]netip.Addr{}
	harness.OK(b.T, ns.Netlink(p.Netns(), func(h *netlink.Handle) error {
		list, err := h.LinkList()
		for _, l := range list {
			if l.Attrs().Flags&net.FlagLoopback != 0 {
				continue
			}
			addrs, err := h.AddrList(l, netlink.FAMILY_V4)
			if err != nil || len(addrs) != 1 {
				return fmt.Errorf("%s has %v: %w", l.Attrs().Name, addrs, err)
			}
			all[l.Attrs().Name], _ = netip.AddrFromSlice(addrs[0].IP.To4())
		}
		return err
	}))
	return all
}

// leavesBy is the interface by which a pod sends packets to an address, from a source or from any.
func (b *bench) leavesBy(p *node.Pod, to, from netip.Addr) (name string) {
	b.Helper()
	harness.OK(b.T, ns.Netlink(p.Netns(), func(h *netlink.Handle) error {
		o := &netlink.RouteGetOptions{}
		if from.IsValid() {
			o.SrcAddr = from.AsSlice()
		}
		routes, err := h.RouteGetWithOptions(to.AsSlice(), o)
		if err != nil {
			return fmt.Errorf("route to %s from %s: %w", to, from, err)
		}
		l, err := h.LinkByIndex(routes[0].LinkIndex)
		if err == nil {
			name = l.Attrs().Name
		}
		return err
	}))
	return name
}

// askingForNone adds pods that request no NIC: no port is created.
func (b *bench) askingForNone() {
	b.model.Neutron.HTTP.ResetCalls()
	near, far := harness.Add(b.T, b.a, "near"), harness.Add(b.T, b.b, "far")
	if got := slices.Sorted(maps.Keys(b.links(near))); !slices.Equal(got, []string{"eth0"}) {
		b.Errorf("a pod that asks for no NIC has %v", got)
	}
	b.reaches(near, far)
	harness.Settle(b.T, b.Lab)
	harness.Remove(b.T, b.a, "near")
	harness.Remove(b.T, b.b, "far")
	if n := b.model.Neutron.HTTP.Count("POST", "/v2.0/ports"); n != 0 {
		b.Errorf("%d calls made ports", n)
	}
	b.empty()
}

// packetsBeside sends packets by every interface, and checks the routes that separate them.
func (b *bench) packetsBeside() {
	near, far := b.addIn(b.a, "near", two), b.addIn(b.b, "far", two)
	here, there := b.links(near), b.links(far)
	for _, name := range []string{"eth0", "eth1", "eth2"} {
		if !here[name].IsValid() || !there[name].IsValid() {
			b.Fatalf("the pods have %v and %v", here, there)
		}
	}
	if near.Addr().Is4() && near.Addr() != here["eth0"] {
		b.Errorf("the pod's first address is %s, eth0 has %v", near.Addr(), here["eth0"])
	}
	for _, i := range []string{"eth1", "eth2"} {
		if got := addresses(b.nic(near, i)); got != here[i].String() {
			b.Errorf("%s has %s, its PodNIC %s", i, here[i], got)
		}
	}
	outside := netip.MustParseAddr("192.0.2.1")
	for _, tc := range []struct {
		to, from netip.Addr
		by       string
	}{
		{to: outside, by: "eth0"},
		{to: outside, from: here["eth1"], by: "eth1"},
		{to: outside, from: here["eth2"], by: "eth2"},
		{to: there["eth1"], by: "eth1"},
		{to: there["eth2"], by: "eth2"},
	} {
		if got := b.leavesBy(near, tc.to, tc.from); got != tc.by {
			b.Errorf("packets from %v to %s leave by %s, want %s", tc.from, tc.to, got, tc.by)
		}
	}
	for _, i := range []string{"eth0", "eth1", "eth2"} {
		harness.Eventually(b.T, harness.Patience, "answers by "+i, func() error {
			r, err := near.Ask(soon(b.T), "tcp", there[i], "hello")
			if err == nil && r.You != here[i] {
				err = fmt.Errorf("the other saw %s, want %s", r.You, here[i])
			}
			return err
		})
	}
	harness.Settle(b.T, b.Lab)
	harness.Remove(b.T, b.a, "near")
	harness.OK(b.T, b.a.DelAgain(harness.Deadline(b.T, harness.Patience), near))
	harness.Remove(b.T, b.b, "far")
	b.empty()
}

// checkBeside checks that CHECK notices a change of a port's interface.
func (b *bench) checkBeside() {
	b.checkNotices(b.addIn(b.a, "checked", two), "eth2")
	b.clear()
}

// refusedBeside requests NICs that cannot exist beside an interface that is no port.
func (b *bench) refusedBeside() {
	ctx := harness.Deadline(b.T, harness.Patience)
	_, err := b.a.AddPod(ctx, "twice", vpcPod(b.VPCs[0].Name, "[{name: eth0}]"))
	if b.Mode == lab.OperatorMode { // where eth0 may be a branch interface: the operator knows the VPC's provider, and refuses
		harness.Fails(b.T, err, 11, "eth0", "Events")
	} else {
		harness.Fails(b.T, err, 7, "berth.dev/nics", "eth0")
	}
	_, err = b.a.AddPod(ctx, "nowhere", pod("[{}]")) // at admission: its namespace has no VPC
	if err == nil || !harness.Says(err.Error(), "berth.dev/nics", "berth.dev/vpc") {
		b.Errorf("a pod that names no VPC: %v", err)
	}
	b.empty()
}

// restartBeside kills and restarts berthd under pods with and without NICs.
func (b *bench) restartBeside() {
	plain, several := harness.Add(b.T, b.a, "plain"), b.addIn(b.a, "several", two)
	far := b.addIn(b.b, "far", two)
	before := b.links(several)
	harness.OK(b.T, b.a.Kill())
	for _, i := range []string{"eth0", "eth1", "eth2"} { // nobody needs berthd for packets
		if _, err := several.Ask(harness.Deadline(b.T, harness.Patience), "tcp", b.links(far)[i], "hello"); err != nil {
			b.Errorf("without berthd, by %s: %v", i, err)
		}
	}
	harness.Restart(b.T, b.a)
	harness.Settle(b.T, b.Lab)
	if after := b.links(several); !maps.Equal(before, after) {
		b.Errorf("the pod had %v, has %v after berthd's start", before, after)
	}
	ctx := harness.Deadline(b.T, harness.Patience)
	harness.OK(b.T, b.a.CheckPod(ctx, "several"))
	harness.OK(b.T, b.a.CheckPod(ctx, "plain"))
	b.reaches(plain, far)
	b.clear()
}

// killsBeside kills berthd between the mode's interface and the ports, and between the ports, at ADD and at DEL.
func (b *bench) killsBeside() {
	points := []string{"daemon.add.leased"}
	if b.Mode != lab.OperatorMode { // whose source is that of node mode
		points = append(points, "daemon.nics.plugged", "daemon.nics.unplugged")
	}
	if b.Mode == lab.PoolMode { // the others are the same for the daemon
		points = append(points, "daemon.nics.acquired", "daemon.add.wired", "daemon.nics.active", "daemon.del.detached")
	}
	for _, point := range harness.Sample(b.T, 2, points) {
		b.Run(point, func(t *testing.T) {
			b := b.on(t)
			if !slices.Contains(failpoint.Names(), point) {
				t.Fatalf("there is no failpoint %s", point)
			}
			harness.OK(t, b.a.Stop(harness.Patience))
			armed := maps.Clone(b.a.Env)
			unarmed := b.a.Env
			armed[failpoint.EnvVar] = point + "=kill"
			b.a.Env = armed
			harness.OK(t, b.a.Start())
			died, started := b.a.Exited(), make(chan error, 1)
			ctx := harness.Deadline(t, harness.Patience)
			go func() {
				select {
				case <-died:
					b.a.Env = unarmed
					started <- b.a.Start()
				case <-ctx.Done():
					started <- fmt.Errorf("berthd did not come to %s", point)
				}
			}()
			harness.OK(t, b.a.WaitReady(ctx))
			p, err := b.a.AddPod(ctx, "victim", vpcPod(b.VPCs[0].Name, two))
			harness.OK(t, err)
			if got := slices.Sorted(maps.Keys(b.links(p))); !slices.Equal(got, []string{"eth0", "eth1", "eth2"}) {
				t.Errorf("the pod has %v", got)
			}
			harness.OK(t, b.a.DelPod(ctx, "victim"))
			harness.OK(t, <-started)
			harness.OK(t, b.a.WaitReady(ctx))
			b.empty()
		})
	}
}

// withoutOpenVSwitch runs berthd without Open vSwitch: only pods that request NICs fail.
func (b *bench) withoutOpenVSwitch() {
	harness.OK(b.T, b.a.Stop(harness.Patience))
	harness.OK(b.T, b.a.Start("--ovsdb="))
	ctx := harness.Deadline(b.T, harness.Patience)
	harness.OK(b.T, b.a.WaitReady(ctx))
	far := harness.Add(b.T, b.b, "far")
	b.reaches(harness.Add(b.T, b.a, "plain"), far)
	_, err := b.a.AddPod(ctx, "several", vpcPod(b.VPCs[0].Name, two))
	harness.Fails(b.T, err, 7, `Kind: "OVS"`, "--ovsdb")
	b.clear()
	harness.OK(b.T, b.a.Stop(harness.Patience))
	harness.OK(b.T, b.a.Start())
	harness.OK(b.T, b.a.WaitReady(ctx))
	b.addIn(b.a, "several", two)
	b.clear()
}
