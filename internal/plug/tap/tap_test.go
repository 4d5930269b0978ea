package tap_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/ovs"
	"github.com/berthnet/berth/internal/plug/plugtest"
	"github.com/berthnet/berth/internal/plug/podif"
	"github.com/berthnet/berth/internal/plug/tap"
)

// open makes a node with an OVSDB server, whose ports are for machines.
func open(mode plug.GuestMode) func(t *testing.T) plugtest.Fixture {
	return func(t *testing.T) plugtest.Fixture {
		node, server := plugtest.Space(t, "node"), plugtest.NewServer(t)
		return plugtest.Fixture{
			Node: node,
			Plugger: func() plug.Plugger {
				inner, err := ovs.New(ovs.Options{Netns: node.Path, OVSDB: server.Client()})
				plugtest.Must(t, err)
				t.Cleanup(inner.Close)
				p, err := tap.New(inner)
				plugtest.Must(t, err)
				return p
			},
			Want: func(attachment, portID string, pod *podif.Namespace) plug.Want {
				w := plugtest.Want(plug.OVS, attachment, portID, pod, t)
				if mode != "" {
					w.Guest = &plug.Guest{Mode: mode, UID: 107, GID: 107}
				}
				return w
			},
			State: func() string { return plugtest.Describe(t, node) + "\n" + fmt.Sprint(server.Interfaces()) },
		}
	}
}

func TestContract(t *testing.T) {
	for _, mode := range []plug.GuestMode{plug.GuestTap, plug.GuestBridge} {
		t.Run(string(mode), func(t *testing.T) { plugtest.Run(t, open(mode), "plug.tap.") })
	}
	t.Run("pod", func(t *testing.T) { plugtest.Run(t, open("")) })
}

// What a machine sends by the tap device leaves the node by the port's link as it is, and
// what comes there for the machine's MAC address, or for all, comes to the machine.
func TestFramesOfAMachine(t *testing.T) {
	for _, mode := range []plug.GuestMode{plug.GuestTap, plug.GuestBridge} {
		t.Run(string(mode), func(t *testing.T) {
			f, pod := open(mode)(t), plugtest.Space(t, "pod")
			w, p, ctx := f.Want(plugtest.One, plugtest.PortA, pod), f.Plugger(), plugtest.Bounded(t)
			done, err := p.Plug(ctx, w)
			plugtest.Must(t, err)
			if done.TapIfName != "eth0" || done.PodMAC.String() != w.Interface.MAC.String() {
				t.Errorf("Plug: %+v", done)
			}
			device, switchPort := openTap(t, pod, "eth0"), openLink(t, f.Node, done.HostIfName)
			plugtest.Must(t, p.Check(ctx, w)) // with the machine running
			router := []byte{0xfa, 0x16, 0x3e, 9, 9, 9}
			out := frame(router, w.Interface.MAC, "from the machine")
			meet(t, "at the switch", switchPort, out, func() { _, err := unix.Write(device, out); plugtest.Must(t, err) })
			for _, to := range [][]byte{w.Interface.MAC, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
				in := frame(to, router, "to the machine")
				meet(t, "at the machine", device, in, func() { _, err := unix.Write(switchPort, in); plugtest.Must(t, err) })
			}
			plugtest.Must(t, p.Unplug(ctx, w.Ref))
		})
	}
}

// frame is of an experimental type (IEEE 802, 0x88b5), which no kernel answers.
func frame(to, from []byte, text string) []byte {
	return append(append(append(bytes.Clone(to), from...), 0x88, 0xb5), fmt.Sprintf("%-60s", text)...)
}

// meet sends again and again, since links take a moment to carry, until the frame arrives.
func meet(t *testing.T, where string, fd int, want []byte, send func()) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	buf := make([]byte, 2048)
	for time.Now().Before(end) {
		send()
		for {
			if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20); n < 1 {
				break
			}
			n, err := unix.Read(fd, buf)
			plugtest.Must(t, err)
			if bytes.Equal(buf[:n], want) {
				return
			}
		}
	}
	t.Fatalf("%s: the frame %q did not arrive within a minute", where, want)
}

// openTap opens a tap device as the runtime of a machine does.
func openTap(t *testing.T, pod *podif.Namespace, name string) int {
	t.Helper()
	req, err := unix.NewIfreq(name)
	plugtest.Must(t, err)
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	var fd int
	plugtest.Must(t, rtnl.InNetns(pod.NS, func() (err error) { // which the file belongs to from its opening on
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}))
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// openLink opens a packet socket on a link.
func openLink(t *testing.T, node *podif.Namespace, name string) int {
	t.Helper()
	const all = 0x0300 // ETH_P_ALL in network byte order
	var fd int
	plugtest.Must(t, rtnl.InNetns(node.NS, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		if err != nil {
			return err
		}
		l, err := node.NL.LinkByName(name)
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index})
	}))
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// Who is to may open the device.
func TestOwnerOfTheDevice(t *testing.T) {
	f, pod := open(plug.GuestTap)(t), plugtest.Space(t, "pod")
	w := f.Want(plugtest.One, plugtest.PortA, pod)
	_, err := f.Plugger().Plug(plugtest.Bounded(t), w)
	plugtest.Must(t, err)
	if l, ok := plugtest.Link(t, pod, "eth0").(*netlink.Tuntap); !ok || l.Owner != 107 || l.Group != 107 {
		t.Errorf("the device: %+v, want a tap device of user and group 107", l)
	}
}

func TestCheckOfAMachinesLinks(t *testing.T) {
	for _, tc := range []struct {
		mode  plug.GuestMode
		says  string
		spoil func(*podif.Namespace) error
	}{
		{plug.GuestTap, "does not hand frames", func(pod *podif.Namespace) error {
			l, err := pod.NL.LinkByName("nic3f2a9c10-76")
			if err != nil {
				return err
			}
			q, err := pod.NL.QdiscList(l)
			if err != nil {
				return err
			}
			return pod.NL.QdiscDel(q[len(q)-1])
		}},
		{plug.GuestBridge, "is not joined", func(pod *podif.Namespace) error {
			l, err := pod.NL.LinkByName("eth0")
			if err != nil {
				return err
			}
			return pod.NL.LinkSetNoMaster(l)
		}},
		{plug.GuestBridge, "lacks bridge", func(pod *podif.Namespace) error {
			l, err := pod.NL.LinkByName("br3f2a9c10-76")
			if err != nil {
				return err
			}
			return pod.NL.LinkDel(l)
		}},
		{plug.GuestTap, "lacks the port's tap device", func(pod *podif.Namespace) error {
			l, err := pod.NL.LinkByName("eth0")
			if err != nil {
				return err
			}
			return pod.NL.LinkDel(l)
		}},
	} {
		t.Run(tc.says, func(t *testing.T) {
			f, pod := open(tc.mode)(t), plugtest.Space(t, "pod")
			w, p, ctx := f.Want(plugtest.One, plugtest.PortA, pod), f.Plugger(), plugtest.Bounded(t)
			_, err := p.Plug(ctx, w)
			plugtest.Must(t, err)
			plugtest.Must(t, tc.spoil(pod))
			var m *plug.Mismatch
			if err := p.Check(ctx, w); !errors.As(err, &m) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Check: %v, want %q", err, tc.says)
			}
			_, err = p.Plug(ctx, w)
			plugtest.Must(t, err)
			plugtest.Must(t, p.Check(ctx, w))
		})
	}
}
