//go:build guest

package vlan

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
)

// soon bounds waits that are expected to time out.
const soon = 300 * time.Millisecond

// wants asserts the VLANs of a namespace.
func wants(t *testing.T, s *podif.Namespace, want map[string]int) {
	t.Helper()
	if got := vlans(t, s); !maps.Equal(got, want) {
		t.Errorf("VLANs of %s = %v, want %v", s.Path, got, want)
	}
}

// After it is associated again, a branch has another VLAN or trunk. Plug replaces the link, even after a crash at any
// failpoint.
func TestBranchAssociatedAgain(t *testing.T) {
	w := newWorld(t)
	other := net.HardwareAddr{0x0a, 0xff, 0xff, 0, 0, 2}
	wire(t, w.node, w.router, "ens7", other)
	all := slices.DeleteFunc(failpoint.Names(), func(n string) bool { return !strings.HasPrefix(n, "plug.vlan.") || strings.Contains(n, "handover") })
	for binding, points := range map[plug.Binding][]string{"": append(all, ""), plug.BindingTap: {"plug.vlan.made.after", ""}} {
		for _, point := range points {
			pod := plugtest.Space(t, "pod")
			want := wantOn(t, 7, plugtest.One, plugtest.PortA, pod)
			want.Binding = binding
			plugtest.Plugged(t, w.plugger(Options{}), want)
			old := want
			for says, change := range map[string]func(*plug.Want){
				"has VLAN 8 in the pod, not 7": func(n *plug.Want) { n.VLAN = 8 },
				"has the parent ens7 with MAC address 0a:ff:ff:00:00:02, not the one with 0a:ff:ff:00:00:01": func(n *plug.Want) { n.Trunk = other.String() },
			} {
				plugtest.Plugged(t, w.plugger(Options{}), old)
				want := old
				change(&want)
				if point != "" {
					plugtest.Dies(t, point, w.plugger(Options{}), want)
				}
				plugtest.Plugged(t, w.plugger(Options{}), want)
				if got := vlans(t, pod); len(got) != 1 {
					t.Errorf("after %q: VLANs of the pod = %v, want one", point, got)
				}
				plugtest.Differs(t, w.plugger(Options{}), old, says)
			}
			plugtest.Must(t, w.plugger(Options{}).Unplug(plugtest.Bounded(t), want.Ref))
			wants(t, pod, map[string]int{})
		}
	}
}

// Two branches swap their VLANs: the first Plug fails but releases its old VLAN, so the second one succeeds.
func TestSwappedVLANs(t *testing.T) {
	w := newWorld(t)
	p := w.plugger(Options{})
	a, b := plugtest.Space(t, "pod"), plugtest.Space(t, "pod")
	one, two := wantOn(t, 7, plugtest.One, plugtest.PortA, a), wantOn(t, 8, plugtest.Two, plugtest.PortB, b)
	plugtest.Plugged(t, p, one)
	plugtest.Plugged(t, p, two)
	one.VLAN, two.VLAN = 8, 7
	plugtest.Refused(t, p, one, plug.ErrNameTaken, "VLAN 8 of the trunk ens6 is eth0 in "+b.Path+", which belongs to port "+plugtest.PortB+" of "+plugtest.Two)
	plugtest.Plugged(t, p, two)
	plugtest.Plugged(t, p, one)
	wants(t, a, map[string]int{"eth0": 8})
	wants(t, b, map[string]int{"eth0": 7})
}

// If a VLAN is in use, the error names its owner if known.
func TestVLANInUse(t *testing.T) {
	for says, take := range map[string]func(w *world, by *podif.Namespace){
		"is ens6.7 in the node's own network namespace, which was not created by Berth": func(w *world, _ *podif.Namespace) { w.foreign(w.node, "ens6.7") },
		", which was not created by Berth":                                              func(w *world, by *podif.Namespace) { w.foreign(by, "net1") },
		", which is incomplete": func(w *world, by *podif.Namespace) {
			want := wantOn(w.t, 7, plugtest.Two, plugtest.PortB, by)
			plugtest.Dies(w.t, "plug.vlan.made.after", w.plugger(Options{}), want)
		},
	} {
		t.Run(says, func(t *testing.T) {
			w, pod, by := newWorld(t), plugtest.Space(t, "pod"), plugtest.Space(t, "other")
			take(w, by)
			before := vlans(t, by)
			want := wantOn(t, 7, plugtest.One, plugtest.PortA, pod)
			plugtest.Refused(t, w.plugger(Options{Wait: soon}), want, plug.ErrNameTaken, "VLAN 7 of the trunk ens6 ", says)
			plugtest.Must(t, w.plugger(Options{}).Unplug(plugtest.Bounded(t), want.Ref))
			wants(t, by, before)
			wants(t, pod, map[string]int{})
		})
	}
	w, pod, by := newWorld(t), plugtest.Space(t, "pod"), plugtest.Space(t, "other")
	plugtest.Plugged(t, w.plugger(Options{}), wantOn(t, 7, plugtest.Two, plugtest.PortB, by))
	plugtest.Refused(t, w.plugger(Options{Dir: t.TempDir(), Wait: soon}), wantOn(t, 7, plugtest.One, plugtest.PortA, pod), plug.ErrNameTaken, "in a network namespace outside")
}

// foreign creates a VLAN without Berth's group and alias.
func (w *world) foreign(in *podif.Namespace, name string) {
	w.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.Namespace = name, plugtest.Link(w.t, w.node, "ens6").Attrs().Index, netlink.NsFd(in.NS)
	plugtest.Must(w.t, w.node.NL.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}))
}

// The kernel removes the links of a deleted namespace asynchronously. Plug of the VLAN's next port waits for that.
func TestVLANOfDeletedNamespace(t *testing.T) {
	w, next := newWorld(t), plugtest.Space(t, "pod")
	for n := range 5 {
		name := fmt.Sprintf("btplug-%d-goes-%d", os.Getpid(), n)
		plugtest.Must(t, ns.Create(name))
		pod, err := podif.Open(ns.Path(name))
		plugtest.Must(t, err)
		plugtest.Plugged(t, w.plugger(Options{}), wantOn(t, 7, plugtest.One, plugtest.PortA, pod))
		pod.Close()
		plugtest.Must(t, errors.Join(unix.Unmount(ns.Path(name), unix.MNT_DETACH), os.Remove(ns.Path(name))))
		want := wantOn(t, 7, plugtest.Two, plugtest.PortB, next)
		plugtest.Plugged(t, w.plugger(Options{}), want)
		plugtest.Must(t, w.plugger(Options{}).Unplug(plugtest.Bounded(t), want.Ref))
	}
}

// Plug removes a link of the same port in another namespace.
func TestLinkInAnotherNamespaceIsRemoved(t *testing.T) {
	w, was, is := newWorld(t), plugtest.Space(t, "pod"), plugtest.Space(t, "pod")
	plugtest.Plugged(t, w.plugger(Options{}), wantOn(t, 7, plugtest.One, plugtest.PortA, was))
	plugtest.Plugged(t, w.plugger(Options{}), wantOn(t, 7, plugtest.One, plugtest.PortA, is))
	wants(t, was, map[string]int{})
	wants(t, is, map[string]int{"eth0": 7})
}

// List finds all of Berth's links in every namespace and nothing else, and Remove removes them.
func TestList(t *testing.T) {
	w := newWorld(t)
	p := w.plugger(Options{})
	one, two, half, strangers := plugtest.Space(t, "pod"), plugtest.Space(t, "pod"), plugtest.Space(t, "pod"), plugtest.Space(t, "other")
	plugtest.Plugged(t, p, wantOn(t, 9, plugtest.One, plugtest.PortB, one))
	plugtest.Plugged(t, p, wantOn(t, 8, plugtest.Two, plugtest.PortA, two))
	plugtest.Dies(t, "plug.vlan.made.after", p, wantOn(t, 6, plugtest.One, plugtest.PortA2, half))
	w.foreign(strangers, "net1")
	moved := plugtest.Link(t, two, "eth0")
	plugtest.Must(t, errors.Join(two.NL.LinkSetDown(moved), two.NL.LinkSetName(moved, "eth7"), two.NL.LinkSetNsFd(moved, int(w.node.NS)))) // only root of both namespaces can do this
	list, err := p.List(plugtest.Bounded(t))
	plugtest.Must(t, err)
	var got []string
	for _, f := range list {
		got = append(got, fmt.Sprintf("%s %s %s %d %s %s %t", f.Kind, f.Attachment, f.PortID, f.VLAN, f.Link, filepath.Base(f.Pod.Netns), f.HalfMade))
	}
	want := []string{
		"VLAN   6 " + temporaryName(plug.Ref{Kind: plug.VLAN, PortID: plugtest.PortA2}) + " " + filepath.Base(half.Path) + " true",
		"VLAN " + plugtest.Two + " " + plugtest.PortA + " 8 eth7 . false",
		"VLAN " + plugtest.One + " " + plugtest.PortB + " 9 eth0 " + filepath.Base(one.Path) + " false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("List():\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for range 2 {
		for _, f := range list {
			plugtest.Must(t, p.Remove(plugtest.Bounded(t), f))
		}
	}
	for _, s := range []*podif.Namespace{one, two, half, w.node} {
		wants(t, s, map[string]int{})
	}
	wants(t, strangers, map[string]int{"net1": 7})
	gone := list[0]
	gone.Pod.Netns += "-gone"
	plugtest.Must(t, p.Remove(plugtest.Bounded(t), gone))
}

// List skips the links of another node whose pods have namespaces in the same folder.
func TestListOfTwoNodes(t *testing.T) {
	one, two := newWorld(t), newWorld(t)
	p, other := one.plugger(Options{}), two.plugger(Options{})
	mine, theirs := plugtest.Space(t, "pod"), plugtest.Space(t, "pod")
	plugtest.Plugged(t, p, wantOn(t, 7, plugtest.One, plugtest.PortA, mine))
	plugtest.Plugged(t, other, wantOn(t, 7, plugtest.Two, plugtest.PortB, theirs))
	for _, tc := range []struct {
		p    plug.Plugger
		port string
	}{{p, plugtest.PortA}, {other, plugtest.PortB}} {
		list, err := tc.p.List(plugtest.Bounded(t))
		plugtest.Must(t, err)
		if len(list) != 1 || list[0].PortID != tc.port {
			t.Errorf("List() = %+v, want only port %s", list, tc.port)
		}
	}
}

// The VLANs disappear with the trunk, and Plug creates them again once it is back. While the trunk
// is down, the VLANs are down and lack the state that the kernel flushes.
func TestTrunkRemovedAndRestored(t *testing.T) {
	w, pod := newWorld(t), plugtest.Space(t, "pod")
	p, want := w.plugger(Options{Wait: soon}), wantOn(t, 7, plugtest.One, plugtest.PortA, pod)
	plugtest.Plugged(t, p, want)
	plugtest.Must(t, w.node.NL.LinkSetDown(plugtest.Link(t, w.node, "ens6")))
	plugtest.Differs(t, p, want, "the trunk ens6 is down", "eth0 is down in the pod", "lacks the route")
	plugtest.Plugged(t, p, want)

	plugtest.Must(t, w.node.NL.LinkDel(plugtest.Link(t, w.node, "ens6")))
	plugtest.Differs(t, p, want, "no link of the node has the trunk's MAC address", "the pod lacks the port's link")
	plugtest.Refused(t, p, want, plug.ErrNotReady)
	wire(t, w.node, w.router, "ens6", trunkMAC)
	plugtest.Must(t, p.Expect(plugtest.Bounded(t), want))
	plugtest.Plugged(t, p, want)
	plugtest.Must(t, pod.NL.LinkSetDown(plugtest.Link(t, pod, "eth0")))
	plugtest.Must(t, pod.NL.LinkSetName(plugtest.Link(t, pod, "eth0"), "eth9"))
	plugtest.Differs(t, p, want, "the port's link has the name eth9 in the pod, not eth0")
	plugtest.Refused(t, p, want, plug.ErrInterfaceExists, "as eth9")
	plugtest.Must(t, p.Unplug(plugtest.Bounded(t), want.Ref))
	wants(t, pod, map[string]int{})
}

// Concurrent calls about several ports of each pod result in the state of the last call for each port.
func TestConcurrentCalls(t *testing.T) {
	w := newWorld(t)
	p, ctx, before := w.plugger(Options{}), plugtest.Bounded(t), plugtest.Describe(t, w.node)
	var all []plug.Want
	for n := range 9 {
		pod := plugtest.Space(t, "pod")
		for k := range 2 {
			want := wantOn(t, 10+2*n+k, fmt.Sprintf("bth%012d", n), fmt.Sprintf("eni-0a1b2c3d4e5f%05d", 2*n+k), pod)
			want.Pod.IfName, want.Interface.Default = fmt.Sprintf("eth%d", k), k == 0
			if k == 1 {
				want.Binding = plug.BindingTap
			}
			all = append(all, want)
		}
	}
	each := func(call func(plug.Want) error) {
		t.Helper()
		var group errgroup.Group
		for _, want := range all {
			for range 2 {
				group.Go(func() error { return call(want) })
			}
		}
		plugtest.Must(t, group.Wait())
	}
	each(func(want plug.Want) error { _, err := p.Plug(ctx, want); return err })
	each(func(want plug.Want) error { return p.Check(ctx, want) })
	list, err := p.List(ctx)
	plugtest.Must(t, err)
	if len(list) != len(all) {
		t.Errorf("List() = %d ports, want %d", len(list), len(all))
	}
	each(func(want plug.Want) error { return p.Unplug(ctx, want.Ref) })
	if list, err = p.List(ctx); err != nil || len(list) > 0 || plugtest.Describe(t, w.node) != before {
		t.Errorf("state after all ports were unplugged: List() = %+v, %v; node:\n%s", list, err, plugtest.Describe(t, w.node))
	}
}
