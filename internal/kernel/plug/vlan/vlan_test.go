package vlan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Tests that need a kernel with VLANs are in the files with the build tag guest.

// trunkMAC is the MAC address of the trunk.
var trunkMAC = net.HardwareAddr{0x0a, 0xff, 0xff, 0, 0, 1}

// wire adds a veth with one end in another namespace, in place of an ENI's link.
func wire(t testing.TB, node, elsewhere *podif.Namespace, name string, mac net.HardwareAddr) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = name, mac
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerNamespace = name, netlink.NsFd(elsewhere.NS)
	plugtest.Must(t, node.NL.LinkAdd(v))
	peer := plugtest.Link(t, elsewhere, name)
	plugtest.Must(t, elsewhere.NL.LinkSetUp(peer))
	return plugtest.Link(t, node, name)
}

// newPlugger opens a Plugger of a node.
func newPlugger(t testing.TB, node *podif.Namespace, o Options) *Plugger {
	t.Helper()
	o.Netns = node.Path
	p, err := New(o)
	plugtest.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

// wantOn is a port of a VLAN on the trunk.
func wantOn(t testing.TB, vlan int, attachment, portID string, pod *podif.Namespace) plug.Want {
	w := plugtest.Want(plug.VLAN, attachment, portID, pod, t)
	w.Bridge, w.Trunk, w.VLAN = "", trunkMAC.String(), vlan
	return w
}

// A link that has the trunk's MAC address but cannot be a trunk is rejected with the field's name
// and stays unchanged.
func TestLinksThatAreNoTrunk(t *testing.T) {
	bridge := func(node *podif.Namespace, name string, mac net.HardwareAddr) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = name, mac
		return node.NL.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}
	for says, lay := range map[string]func(node, elsewhere *podif.Namespace) error{
		"br0, which is of kind bridge": func(node, _ *podif.Namespace) error { return bridge(node, "br0", trunkMAC) },
		"one link of the node, not of ens6 and ens7": func(node, elsewhere *podif.Namespace) error {
			wire(t, node, elsewhere, "ens6", trunkMAC)
			wire(t, node, elsewhere, "ens7", trunkMAC)
			return nil
		},
		"bthaaaaaaaaaaaa, which Berth created for a pod": func(node, pod *podif.Namespace) error {
			return node.NL.LinkSetGroup(wire(t, node, pod, "bthaaaaaaaaaaaa", trunkMAC), rtnl.Protocol<<16)
		},
		"tap3f2a9c10-76, which Berth created for a pod": func(node, pod *podif.Namespace) error {
			return node.NL.LinkSetGroup(wire(t, node, pod, "tap3f2a9c10-76", trunkMAC), plug.LinkGroup)
		},
		"ens6, a port of a bridge or bond": func(node, elsewhere *podif.Namespace) error {
			l := wire(t, node, elsewhere, "ens6", trunkMAC)
			if err := bridge(node, "br0", net.HardwareAddr{2, 0, 0, 0, 0, 1}); err != nil {
				return err
			}
			return node.NL.LinkSetMaster(l, plugtest.Link(t, node, "br0"))
		},
		"x0, a veth with both ends on the node": func(node, _ *podif.Namespace) error {
			if err := plugtest.Veth(node, "x0", "x1"); err != nil {
				return err
			}
			return node.NL.LinkSetHardwareAddr(plugtest.Link(t, node, "x0"), trunkMAC)
		},
	} {
		t.Run(says, func(t *testing.T) {
			node, elsewhere, pod := plugtest.Space(t, "node"), plugtest.Space(t, "elsewhere"), plugtest.Space(t, "pod")
			plugtest.Must(t, lay(node, elsewhere))
			w, p := wantOn(t, 7, plugtest.One, plugtest.PortA, pod), newPlugger(t, node, Options{Wait: MaxWait})
			before := described(t, node)
			for name, call := range plugtest.Waits {
				err := call(plugtest.Bounded(t), p, w)
				if !errors.Is(err, plug.ErrInvalid) || !strings.Contains(err.Error(), `Trunk: "0a:ff:ff:00:00:01": want the MAC address of `) || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: %v", name, err)
				}
			}
			plugtest.Differs(t, p, w, says)
			if after := described(t, node); after != before {
				t.Errorf("the node has\n%s\nhad\n%s", after, before)
			}
		})
	}
}

// described is plugtest.Describe with the MTU and state of each link.
func described(t testing.TB, s *podif.Namespace) string {
	t.Helper()
	list, err := rtnl.Whole(s.NL.LinkList)
	plugtest.Must(t, err)
	text := plugtest.Describe(t, s)
	for _, l := range list {
		text += fmt.Sprintf("\n%s mtu %d up %t", l.Attrs().Name, l.Attrs().MTU, l.Attrs().Flags&net.FlagUp != 0)
	}
	return text
}

// Invalid VLANs and ports of another kind are rejected before the node is inspected.
func TestInvalid(t *testing.T) {
	node, pod := plugtest.Space(t, "node"), plugtest.Space(t, "pod")
	p := newPlugger(t, node, Options{Wait: MaxWait})
	for field, spoil := range map[string]func(*plug.Want){
		"VLAN: \"0\"":    func(w *plug.Want) { w.VLAN = 0 },
		"VLAN: \"4095\"": func(w *plug.Want) { w.VLAN = 4095 },
		"Trunk":          func(w *plug.Want) { w.Trunk = "ens6" },
		"Kind":           func(w *plug.Want) { w.Kind, w.Bridge = plug.OVS, "br-int" },
	} {
		w := wantOn(t, 7, plugtest.One, plugtest.PortA, pod)
		spoil(&w)
		for name, call := range plugtest.Waits {
			if err := call(plugtest.Bounded(t), p, w); !errors.Is(err, plug.ErrInvalid) || !strings.Contains(err.Error(), field) {
				t.Errorf("%s with another %s: %v", name, field, err)
			}
		}
		if err := p.Check(plugtest.Bounded(t), w); !errors.Is(err, plug.ErrInvalid) {
			t.Errorf("Check with another %s: %v", field, err)
		}
	}
	w := wantOn(t, 7, plugtest.One, "short", pod)
	if err := p.Unplug(plugtest.Bounded(t), w.Ref); !errors.Is(err, plug.ErrInvalid) {
		t.Errorf("Unplug of a port without a name: %v", err)
	}
}

// The link of an ENI appears after EC2's reply. Expect returns as soon as the link exists, and
// ignores other links.
func TestWaitsForTheTrunk(t *testing.T) {
	node, elsewhere, pod := plugtest.Space(t, "node"), plugtest.Space(t, "elsewhere"), plugtest.Space(t, "pod")
	w, p := wantOn(t, 7, plugtest.One, plugtest.PortA, pod), newPlugger(t, node, Options{Wait: MaxWait})
	there := make(chan error, 1)
	go func() { there <- p.Expect(plugtest.Bounded(t), w) }()
	still := func() {
		t.Helper()
		select {
		case err := <-there:
			t.Fatalf("Expect did not wait: %v", err)
		case <-time.After(2 * pollInterval): // so that Expect is waiting; a shorter time only weakens the test
		}
	}
	still()
	l := wire(t, node, elsewhere, "ens6", net.HardwareAddr{0x0a, 0xff, 0xff, 0, 0, 2})
	still()
	plugtest.Must(t, node.NL.LinkSetHardwareAddr(l, trunkMAC))
	plugtest.Must(t, <-there)
	plugtest.Must(t, p.Expect(plugtest.Bounded(t), w))
}

func TestTrunkThatDoesNotCome(t *testing.T) {
	node, pod := plugtest.Space(t, "node"), plugtest.Space(t, "pod")
	w := wantOn(t, 7, plugtest.One, plugtest.PortA, pod)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for name, call := range plugtest.Waits {
		for _, err := range []error{
			call(plugtest.Bounded(t), newPlugger(t, node, Options{Wait: 50 * time.Millisecond}), w),
			call(ctx, newPlugger(t, node, Options{Wait: MaxWait}), w),
		} {
			if !errors.Is(err, plug.ErrNotReady) || !strings.Contains(err.Error(), `Trunk: "0a:ff:ff:00:00:01": no link of the node has this MAC address`) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	p := newPlugger(t, node, Options{})
	plugtest.Differs(t, p, w, "no link of the node has the trunk's MAC address", "lacks the port's link")
	plugtest.Must(t, p.Unplug(plugtest.Bounded(t), w.Ref))
	plugtest.Must(t, ns.Remove(filepath.Base(pod.Path)))
	plugtest.Must(t, p.Unplug(plugtest.Bounded(t), w.Ref))
	plugtest.Refused(t, p, w, rtnl.ErrNoNetns)
}

// Plug waits for the trunk before it takes the turn on the node, so that it does not delay other
// ports.
func TestWaitsBeforeItsTurn(t *testing.T) {
	node, pod := plugtest.Space(t, "node"), plugtest.Space(t, "pod")
	w, p := wantOn(t, 7, plugtest.One, plugtest.PortA, pod), newPlugger(t, node, Options{Wait: 50 * time.Millisecond})
	done, err := p.spaces.turn(plugtest.Bounded(t), p.spaces.home())
	plugtest.Must(t, err)
	defer done()
	ctx, cancel := context.WithTimeout(plugtest.Bounded(t), 10*time.Second)
	defer cancel()
	if _, err := p.MakeOnNode(ctx, w); !errors.Is(err, plug.ErrNotReady) {
		t.Errorf("without the trunk, during another's turn: %v", err)
	}
}

// raise sets up the trunk for its VLANs, without changes that affect other users.
func TestTrunkIsRaised(t *testing.T) {
	node, elsewhere := plugtest.Space(t, "node"), plugtest.Space(t, "elsewhere")
	l := wire(t, node, elsewhere, "ens6", trunkMAC)
	dir, read := plugtest.Settings(t, "ens6")
	p, ctx := newPlugger(t, node, Options{Sysctls: dir}), plugtest.Bounded(t)
	raise := func(mtu int) error {
		t.Helper()
		trunk, err := p.trunks.find(plug.Ref{Trunk: trunkMAC.String()})
		plugtest.Must(t, err)
		return p.trunks.raise(ctx, trunk, mtu)
	}
	for _, tc := range []struct{ mtu, want int }{{0, 1500}, {1400, 1500}, {9001, 9001}, {1500, 9001}} {
		plugtest.Must(t, raise(tc.mtu))
		if a := plugtest.Link(t, node, "ens6").Attrs(); a.MTU != tc.want || a.Flags&net.FlagUp == 0 {
			t.Errorf("for a port with MTU %d the trunk has %d, %s; want %d, up", tc.mtu, a.MTU, a.Flags, tc.want)
		}
	}
	if err := raise(9002); !errors.Is(err, plug.ErrInvalid) || !strings.Contains(err.Error(), "Interface.MTU: 9002: want at most 9001 on the trunk ens6") {
		t.Errorf("an MTU that no trunk has: %v", err)
	}
	if got := read("ens6", "disable_ipv6"); got != "1" {
		t.Errorf("disable_ipv6 of a trunk that nobody had set up is %q, want 1", got)
	}
	plugtest.Must(t, os.WriteFile(filepath.Join(dir, "net/ipv6/conf/ens6/disable_ipv6"), []byte("0"), 0o600))
	plugtest.Must(t, raise(0))
	if got := read("ens6", "disable_ipv6"); got != "0" {
		t.Errorf("disable_ipv6 of one that somebody had set up is %q, want 0", got)
	}
	plugtest.Must(t, node.NL.LinkSetDown(l))
	trunk, err := p.trunks.find(plug.Ref{Trunk: "0A:FF:FF:00:00:01"}) // in the notation of other programs
	plugtest.Must(t, err)
	plugtest.Must(t, p.trunks.raise(ctx, trunk, 0))
	if a := plugtest.Link(t, node, "ens6").Attrs(); a.Flags&net.FlagUp == 0 {
		t.Error("the trunk stays down")
	}
}

// The error of a kernel without VLANs says what to do.
func TestKernelWithoutVLANs(t *testing.T) {
	w, trunk := plug.Want{Ref: plug.Ref{VLAN: 7}}, &netlink.LinkAttrs{Name: "ens6"}
	if err := explain(unix.EOPNOTSUPP, w, trunk); !errors.Is(err, plug.ErrNoVLAN) || !strings.Contains(err.Error(), "VLAN 7 of the trunk ens6") || !strings.Contains(err.Error(), "8021q") {
		t.Error(err)
	}
	if err := explain(unix.ENOBUFS, w, trunk); errors.Is(err, plug.ErrNoVLAN) || !errors.Is(err, unix.ENOBUFS) {
		t.Error(err)
	}
}

// List finds nothing if the folder of namespaces is missing, ignores other files in it, and stops
// when its context ends.
func TestFolderOfNamespaces(t *testing.T) {
	node, ctx := plugtest.Space(t, "node"), plugtest.Bounded(t)
	dir := t.TempDir()
	plugtest.Must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	plugtest.Must(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	plugtest.Must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	plugtest.Must(t, os.Symlink("/proc/self/ns/mnt", filepath.Join(dir, "other")))
	plugtest.Must(t, os.Symlink(node.Path, filepath.Join(dir, "node")))
	for _, d := range []string{dir, filepath.Join(dir, "none")} {
		if list, err := newPlugger(t, node, Options{Dir: d}).List(ctx); err != nil || len(list) > 0 {
			t.Errorf("List in %s: %+v, %v", d, list, err)
		}
	}
	seen := 0
	p := newPlugger(t, node, Options{Dir: dir})
	plugtest.Must(t, p.spaces.each(ctx, func(*podif.Namespace) (bool, error) { seen++; return true, nil }))
	if seen != 1 {
		t.Errorf("looked into %d namespaces, want the node's alone", seen)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := p.List(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("List with a context that ended: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Wait: -1}, {Wait: MaxWait + 1}, {Netns: "/nowhere"}} {
		if _, err := New(o); err == nil {
			t.Errorf("New(%+v): no error", o)
		}
	}
}
