package datapath

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netns"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Node is the data path of the network namespace that it was opened in. All
// methods are safe for concurrent use; calls about one pod take turns.
type Node struct {
	*kernel

	set atomic.Pointer[established] // what Setup established; nil before

	// setupMu makes Setup, SetUplink, RemoveUplink, SetBlocks, WithdrawBlocks and Repair take turns: each reads
	// what the others write in the kernel. No ADD or DEL waits for it.
	setupMu sync.Mutex

	podLinks *podLinks

	mu      sync.Mutex
	uplinks map[string]Uplink        // guarded by mu: by ID, those that SetUplink established
	sysctls map[string][]rtnl.Sysctl // guarded by mu: what setSysctls set last, by owner

	exported atomic.Pointer[map[netip.Prefix]bool] // what SetBlocks announced

	reaps  atomic.Uint32 // batches of ReapLinks, gives each a link group
	closed atomic.Bool

	withoutARP atomic.Bool // the kernel has no nftables family arp
}

// established is the outcome of Setup that later calls need.
type established struct {
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
		ns, err = rtnl.OpenNetns(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	k, err := openKernel(ns)
	if err != nil {
		return nil, fmt.Errorf("open netlink in the node's network namespace: %w", err)
	}
	return &Node{kernel: k, podLinks: newPodLinks(), uplinks: map[string]Uplink{}, sysctls: map[string][]rtnl.Sysctl{}}, nil
}

// Close releases sockets and the namespace handle; kernel state stays. Further
// calls fail with ErrClosed.
func (n *Node) Close() error {
	if n.closed.Swap(true) {
		return nil
	}
	return n.kernel.close()
}

// begin is what every method starts with.
func (n *Node) begin(ctx context.Context) error {
	if n.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

func (n *Node) established() (*established, error) {
	if s := n.set.Load(); s != nil {
		return s, nil
	}
	return nil, ErrNotSetUp
}
