package datapath

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Node is the data path of the network namespace that it was opened in. All methods are safe for concurrent use.
// Calls about one pod are serialized.
type Node struct {
	*kernel

	set atomic.Pointer[established] // outcome of Setup; nil before

	// setupMu serializes Setup, SetUplink, RemoveUplink, SetBlocks, WithdrawBlocks and Repair: each reads from the
	// kernel what the others write. ADD and DEL do not take it.
	setupMu sync.Mutex

	podLinks *podLinks
	reaper   *reaper
	uplinks  *uplinkSet
	sysctls  *sysctls
	blocks   *blockRoutes
	arp      arpTable
	foreign  foreignRoutes
}

// established is the outcome of Setup that later calls need.
type established struct {
	config Config
	mtu    int    // MTU of pod links and secondary ENIs
	tag    string // of the ruleset
}

// Open binds to the network namespace at a path, such as /run/netns/NAME, or to the
// calling thread's if that is empty, and changes nothing in it. It needs
// CAP_NET_ADMIN there and CAP_SYS_ADMIN to enter pods. Close releases it.
func Open(path string) (*Node, error) {
	ns, err := rtnl.OpenNodeNetns(path)
	if err != nil {
		return nil, err
	}
	k, err := openKernel(ns)
	if err != nil {
		return nil, fmt.Errorf("open netlink in the node's network namespace: %w", err)
	}
	links := newPodLinks()
	r, err := newReaper(ns, links)
	if err != nil {
		_ = k.close()
		return nil, fmt.Errorf("open netlink in the node's network namespace: %w", err)
	}
	return &Node{
		kernel: k, podLinks: links, reaper: r, uplinks: &uplinkSet{byID: map[string]Uplink{}}, sysctls: newSysctls(ns),
		blocks: &blockRoutes{routing: k.routing, lo: k.lo},
	}, nil
}

// Close releases sockets and the namespace handle; kernel state stays. Further
// calls fail with ErrClosed.
func (n *Node) Close() error {
	if n.closed.Swap(true) {
		return nil
	}
	n.reaper.close()
	return n.kernel.close()
}

func (n *Node) established() (*established, error) {
	if s := n.set.Load(); s != nil {
		return s, nil
	}
	return nil, ErrNotSetUp
}

// NetnsID distinguishes network namespaces that exist at the same time.
type NetnsID = rtnl.NetnsID

// InspectNetns identifies the network namespace at a path. Errors: ErrNoNetns,
// ErrNotNetns.
func InspectNetns(path string) (NetnsID, error) { return rtnl.InspectNetns(path) }

// Errors that callers distinguish with errors.Is.
var (
	// ErrNoNetns: the pod's network namespace does not exist, or no longer exists.
	ErrNoNetns = rtnl.ErrNoNetns
	// ErrNotNetns: something else is at the path of a network namespace.
	ErrNotNetns = rtnl.ErrNotNetns
	// ErrInterfaceExists: the pod's namespace has an interface with the name that Berth did not make for this
	// attachment.
	ErrInterfaceExists = errors.New("interface exists already and is not Berth's")
	// ErrAddressInUse: the node has the address itself, or routes it to another link than the pod's.
	ErrAddressInUse = errors.New("address is in use on the node")
	// ErrNoLink: no link has the ENI's MAC address (yet).
	ErrNoLink = errors.New("no link with this MAC address")
	// ErrNotSetUp: Setup has not succeeded on this Node.
	ErrNotSetUp = errors.New("node data path is not set up")
	// ErrClosed: the Node was closed.
	ErrClosed = errors.New("data path is closed")
)

// kernel is a network namespace and the sockets to it. It caches nothing.
type kernel struct {
	ns   netns.NsHandle
	nsID NetnsID
	lo   int             // index of the loopback link
	main *netlink.Handle // for ADD, DEL and other short calls
	slow *netlink.Handle // for listings and setup, so that an ADD never queues behind them

	routing routing

	closed atomic.Bool // by Node.Close
}

// openKernel opens the sockets. ns is closed with them, also on failure.
func openKernel(ns netns.NsHandle) (k *kernel, err error) {
	k = &kernel{ns: ns}
	if k.nsID, err = rtnl.Identify(ns); err == nil {
		k.main, err = rtnl.Handle(ns)
	}
	if err == nil {
		k.slow, err = rtnl.Handle(ns)
	}
	var lo netlink.Link
	if err == nil {
		lo, err = k.slow.LinkByName("lo")
	}
	if err != nil {
		_ = k.close()
		return nil, err
	}
	k.lo, k.routing = lo.Attrs().Index, routing{k.slow}
	return k, nil
}

func (k *kernel) close() error {
	for _, h := range []*netlink.Handle{k.main, k.slow} {
		if h != nil {
			h.Close()
		}
	}
	return k.ns.Close()
}

// begin returns an error if the Node is closed or ctx has ended. Every exported method of Node calls it first.
func (k *kernel) begin(ctx context.Context) error {
	if k.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

func (k *kernel) nft() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithNetNSFd(int(k.ns)))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// links lists the node's links.
func (k *kernel) links() ([]netlink.Link, error) {
	links, err := rtnl.Whole(k.slow.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

// addresses lists the addresses of a link.
func (k *kernel) addresses(link netlink.Link, family int) ([]netlink.Addr, error) {
	list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return k.slow.AddrList(link, family) })
	if err != nil {
		return nil, fmt.Errorf("list %s addresses of %s: %w", familyName(family), link.Attrs().Name, err)
	}
	return list, nil
}

// isNoFamily reports whether an error means that the kernel lacks an address family, as with the boot parameter
// ipv6.disable=1.
func isNoFamily(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

func familyName(family int) string {
	if family == unix.AF_INET {
		return "IPv4"
	}
	return "IPv6"
}
