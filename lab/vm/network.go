package vm

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/network/forward"
)

// The guest's link to the host: a network that QEMU plays in user space, which makes
// connections of the guest's to HostAddr its own to 127.0.0.1 (qemu(1), -netdev user).
// QEMU is in a network namespace of its own with nothing but lo, where the ports of
// Reach are listened at and passed on. So nothing else of the host's, and no other
// network, can be reached from the guest.
var (
	// HostAddr is where the guest reaches the host's ports.
	HostAddr = netip.MustParseAddr("198.19.255.2")
	// GuestAddr is the guest's on that link, which it knows as host0.
	GuestAddr = netip.MustParseAddr("198.19.255.15")

	guestPrefix = netip.PrefixFrom(GuestAddr, 24)
	loopback    = netip.AddrFrom4([4]byte{127, 0, 0, 1})
)

// network reports whether the machine has that link.
func (m Machine) network() bool { return len(m.Reach)+len(m.Offer) > 0 }

func (m Machine) networkArguments() []string {
	var user strings.Builder
	fmt.Fprintf(&user, "user,id=host0,ipv6=off,net=%s,host=%s", guestPrefix.Masked(), HostAddr)
	for port := range m.Offer {
		fmt.Fprintf(&user, ",hostfwd=tcp:%s:%d-%s:%d", loopback, port, GuestAddr, port)
	}
	return []string{"-netdev", user.String(), "-device", "virtio-net-pci,netdev=host0,romfile="}
}

// ways are what connections between the host and the guest go by.
type ways struct {
	carried []*forward.Forward
	netns   *os.File // QEMU's
}

// enterNetwork moves the calling, locked thread to a new network namespace, from and to which the ways lead until they
// are closed.
func (m Machine) enterNetwork() (_ *ways, err error) {
	w, offered := &ways{}, map[uint16]net.Listener{}
	defer func() {
		if err == nil {
			return
		}
		w.close()
		for _, l := range offered {
			_ = l.Close()
		}
	}()
	for port, at := range m.Offer { // before the thread leaves the host's namespace
		l, err := net.Listen("tcp", at.String())
		if err != nil {
			return nil, fmt.Errorf("listen for port %d of the guest: %w", port, err)
		}
		offered[port] = l
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("make a network namespace for the way to the host (this takes root): %w", err)
	}
	if w.netns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return nil, err
	}
	for port, l := range offered {
		w.carried = append(w.carried, forward.Start(l, func(ctx context.Context) (net.Conn, error) {
			return ns.Dial(ctx, fmt.Sprintf("/proc/self/fd/%d", w.netns.Fd()), "tcp", netip.AddrPortFrom(loopback, port), netip.Addr{})
		}))
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return nil, fmt.Errorf("set up lo for the way to the host: %w", err)
	}
	for _, to := range m.Reach {
		l, err := net.Listen("tcp", netip.AddrPortFrom(loopback, to.Port()).String())
		if err != nil {
			return nil, fmt.Errorf("listen for the way to %s: %w", to, err)
		}
		w.carried = append(w.carried, forward.Start(l, func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", to.String())
		}))
	}
	return w, nil
}

func (w *ways) close() {
	for _, f := range w.carried {
		_ = f.Close() // of the listener
	}
	if w.netns != nil {
		_ = w.netns.Close()
	}
}
