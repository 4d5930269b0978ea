package tap_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/ovs"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/plug/tap"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// open returns a node with an OVSDB server, whose ports have a binding.
func open(binding plug.Binding) func(t *testing.T) plugtest.Fixture {
	return func(t *testing.T) plugtest.Fixture { return on(t, plugtest.Space(t, "node"), binding) }
}

func on(t *testing.T, node *podif.Namespace, binding plug.Binding) plugtest.Fixture {
	server := plugtest.NewServer(t)
	return plugtest.Fixture{
		Plugger: func() plug.Plugger {
			inner, err := ovs.New(ovs.Options{Netns: node.Path, OVSDB: server.Client()})
			plugtest.Must(t, err)
			t.Cleanup(inner.Close)
			p, err := tap.New(inner, "")
			plugtest.Must(t, err)
			return p
		},
		Want: func(attachment, portID string, pod *podif.Namespace) plug.Want {
			w := plugtest.Want(plug.OVS, attachment, portID, pod, t)
			w.Binding, w.Tap = binding, plug.TapDevice{Owner: 107, Group: 107}
			return w
		},
		State: func() string { return plugtest.Describe(t, node) + "\n" + fmt.Sprint(server.Interfaces()) },
	}
}

func TestContract(t *testing.T) {
	t.Run("tap", func(t *testing.T) { plugtest.Run(t, open(plug.BindingTap), "plug.tap.") })
	t.Run("container", func(t *testing.T) { plugtest.Run(t, open("")) })
}

// Frames that a machine sends to the tap device leave the port's link unchanged. Frames for the
// machine's MAC address and broadcasts reach the machine. Plugging again, as a restarted daemon
// does, interrupts neither.
func TestFramesOfAMachine(t *testing.T) {
	for _, multiQueue := range []bool{false, true} {
		t.Run(fmt.Sprintf("MultiQueue=%t", multiQueue), func(t *testing.T) {
			node, pod := plugtest.Space(t, "node"), plugtest.Space(t, "pod")
			f := on(t, node, plug.BindingTap)
			w, ctx := f.Want(plugtest.One, plugtest.PortA, pod), plugtest.Bounded(t)
			w.Tap.MultiQueue = multiQueue
			done, err := f.Plugger().Plug(ctx, w)
			plugtest.Must(t, err)
			queues := []int{openTap(t, pod, "eth0", multiQueue)}
			if multiQueue {
				queues = append(queues, openTap(t, pod, "eth0", multiQueue))
			}
			switchPort := openLink(t, node, done.HostIfName)
			router := []byte{0xfa, 0x16, 0x3e, 9, 9, 9}
			for range 2 {
				for _, queue := range queues {
					out := frame(router, w.Interface.MAC, "from the machine")
					meet(t, "at the switch", switchPort, out, func() { _, err := unix.Write(queue, out); plugtest.Must(t, err) })
				}
				for _, to := range [][]byte{w.Interface.MAC, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
					in := frame(to, router, "to the machine")
					meet(t, "at the machine", queues[0], in, func() { _, err := unix.Write(switchPort, in); plugtest.Must(t, err) }, queues[1:]...)
				}
				plugtest.Must(t, f.Plugger().Check(ctx, w)) // while the machine is running
				plugtest.Plugged(t, f.Plugger(), w)
			}
			plugtest.Must(t, f.Plugger().Unplug(ctx, w.Ref)) // while the machine is running
			if got := plugtest.Links(t, pod); len(got) > 0 {
				t.Errorf("left in the pod: %v", got)
			}
		})
	}
}

// The pod's namespace sends no packets by the links of a machine. The VPC would drop them, or
// attribute them to the machine.
func TestNothingButTheMachineSends(t *testing.T) {
	pod := plugtest.Space(t, "pod")
	f := open(plug.BindingTap)(t)
	plugtest.Plugged(t, f.Plugger(), f.Want(plugtest.One, plugtest.PortA, pod))
	for _, name := range []string{"eth0", "nic3f2a9c10-76"} {
		addrs, err := pod.NL.AddrList(plugtest.Link(t, pod, name), netlink.FAMILY_ALL)
		if plugtest.Must(t, err); len(addrs) > 0 {
			t.Errorf("%s has %v", name, addrs)
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := pod.NL.RouteList(nil, family)
		if plugtest.Must(t, err); len(routes) > 0 {
			t.Errorf("the pod has routes: %v", routes)
		}
	}
}

// frame has an experimental EtherType (IEEE 802, 0x88b5) that no kernel answers.
func frame(to, from []byte, text string) []byte {
	return append(append(append(bytes.Clone(to), from...), 0x88, 0xb5), fmt.Sprintf("%-60s", text)...)
}

// meet repeats send until the frame arrives, because links need a moment to carry frames.
func meet(t *testing.T, where string, fd int, want []byte, send func(), or ...int) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	buf := make([]byte, 2048)
	for time.Now().Before(end) {
		send()
		for _, fd := range append([]int{fd}, or...) {
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
	}
	t.Fatalf("%s: the frame %q did not arrive within a minute", where, want)
}

// openTap opens a tap device as a VM runtime does.
func openTap(t *testing.T, pod *podif.Namespace, name string, multiQueue bool) int {
	t.Helper()
	req, err := unix.NewIfreq(name)
	plugtest.Must(t, err)
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if multiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	req.SetUint16(flags)
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

// The device has the desired owner. Plug replaces it when the owner of the port's device changes.
func TestOwnerOfTheDevice(t *testing.T) {
	pod := plugtest.Space(t, "pod")
	f := open(plug.BindingTap)(t)
	w := f.Want(plugtest.One, plugtest.PortA, pod)
	for _, want := range []plug.TapDevice{{Owner: 107, Group: 107}, {Owner: 0, Group: 64055, MultiQueue: true}} {
		w.Tap = want
		plugtest.Plugged(t, f.Plugger(), w)
		l, ok := plugtest.Link(t, pod, "eth0").(*netlink.Tuntap)
		if !ok || l.Owner != want.Owner || l.Group != want.Group || l.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 != want.MultiQueue {
			t.Errorf("the device: %+v, want a tap device like %+v", l, want)
		}
	}
}

func TestCheckOfAMachinesLinks(t *testing.T) {
	for says, spoil := range map[string]func(t *testing.T, pod *podif.Namespace) error{
		"does not redirect frames": func(t *testing.T, pod *podif.Namespace) error {
			q, err := pod.NL.QdiscList(plugtest.Link(t, pod, "nic3f2a9c10-76"))
			plugtest.Must(t, err)
			return pod.NL.QdiscDel(q[len(q)-1])
		},
		"lacks the port's tap device": func(t *testing.T, pod *podif.Namespace) error { return pod.NL.LinkDel(plugtest.Link(t, pod, "eth0")) },
		"is missing on the node": func(t *testing.T, pod *podif.Namespace) error {
			return pod.NL.LinkDel(plugtest.Link(t, pod, "nic3f2a9c10-76"))
		},
	} {
		t.Run(says, func(t *testing.T) {
			f, pod := open(plug.BindingTap)(t), plugtest.Space(t, "pod")
			w, p := f.Want(plugtest.One, plugtest.PortA, pod), f.Plugger()
			plugtest.Plugged(t, p, w)
			plugtest.Must(t, spoil(t, pod))
			plugtest.Differs(t, p, w, says)
			plugtest.Plugged(t, p, w)
		})
	}
}
