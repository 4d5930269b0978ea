package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Node is the data path of the network namespace that it was opened in. All
// methods are safe for concurrent use; calls about one pod take turns.
type Node struct {
	ns   netns.NsHandle
	nsID NetnsID
	lo   int                      // index of the loopback link
	main *netlink.Handle          // ADD, DEL and everything short
	slow *netlink.Handle          // listings and set-up, so that an ADD never queues behind them
	raw  map[int]*nl.SocketHandle // removals of links, which wait for the kernel

	set atomic.Pointer[settled] // what Setup established; nil before

	// setupMu makes Setup, SetUplink, RemoveUplink, SetBlocks, WithdrawBlocks and Repair take turns: each reads
	// what the others write in the kernel. No ADD or DEL waits for it.
	setupMu sync.Mutex

	podLinks *podLinks

	mu      sync.Mutex
	uplinks map[string]Uplink // guarded by mu: by ID, those that SetUplink established

	exported atomic.Pointer[map[netip.Prefix]bool] // what SetBlocks announced

	reaps  atomic.Uint32 // batches of ReapLinks, gives each a link group
	closed atomic.Bool

	withoutARP atomic.Bool // the kernel has no nftables family arp
}

// settled is the outcome of Setup that later calls need.
type settled struct {
	config Config
	mtu    int    // of pod links and secondary ENIs
	tag    string // of the ruleset
}

// Open binds to the network namespace at a path, such as /run/netns/NAME, or to the
// calling thread's if that is empty, and changes nothing in it. It needs
// CAP_NET_ADMIN there and CAP_SYS_ADMIN to enter pods. Close releases it.
func Open(path string) (*Node, error) {
	var ns netns.NsHandle
	var err error
	if path == "" {
		ns, err = netns.Get()
	} else {
		ns, err = openNetns(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	n := &Node{ns: ns, podLinks: newPodLinks(), uplinks: map[string]Uplink{}}
	if n.nsID, err = identify(ns); err == nil {
		n.main, err = routeHandle(ns)
	}
	if err == nil {
		n.slow, err = routeHandle(ns)
	}
	if err == nil {
		n.raw, err = rawSockets(ns)
	}
	if err == nil {
		n.lo, err = n.loopback()
	}
	if err != nil {
		_ = n.Close()
		return nil, fmt.Errorf("open netlink in the node's network namespace: %w", err)
	}
	return n, nil
}

func (n *Node) loopback() (int, error) {
	lo, err := n.slow.LinkByName("lo")
	if err != nil {
		return 0, fmt.Errorf("look up lo: %w", err)
	}
	return lo.Attrs().Index, nil
}

// Close releases sockets and the namespace handle; kernel state stays. Further
// calls fail with ErrClosed.
func (n *Node) Close() error {
	if n.closed.Swap(true) {
		return nil
	}
	for _, h := range []*netlink.Handle{n.main, n.slow} {
		if h != nil {
			h.Close()
		}
	}
	for _, s := range n.raw {
		s.Close()
	}
	return n.ns.Close()
}

// begin is what every method starts with.
func (n *Node) begin(ctx context.Context) error {
	if n.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

func (n *Node) settled() (*settled, error) {
	if s := n.set.Load(); s != nil {
		return s, nil
	}
	return nil, ErrNotSetUp
}

// routeHandle opens a NETLINK_ROUTE socket in a namespace.
func routeHandle(ns netns.NsHandle) (*netlink.Handle, error) {
	return netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
}

// inNetns runs f on a thread of its own inside a namespace. Sysctls and
// sockets belong to the namespace of the thread that opens them.
func inNetns(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = home.Close() }()
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		err = f()
		if back := netns.Set(home); back == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
		done <- err
	}()
	return <-done
}

// rawSockets opens a NETLINK_ROUTE socket for requests that the netlink
// library has no call for.
func rawSockets(ns netns.NsHandle) (map[int]*nl.SocketHandle, error) {
	s, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}, nil
}

// whole repeats a dump that the kernel reported as interrupted by a change
// (NLM_F_DUMP_INTR) a few times, since half a list would look like loss.
func whole[T any](dump func() ([]T, error)) ([]T, error) {
	for range 10 {
		list, err := dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return dump()
}
