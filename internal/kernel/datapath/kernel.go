package datapath

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// kernel is a network namespace and the sockets to it. It keeps nothing in memory
// of what it sets.
type kernel struct {
	ns   netns.NsHandle
	nsID NetnsID
	lo   int             // index of the loopback link
	main *netlink.Handle // ADD, DEL and everything short
	slow *netlink.Handle // listings and set-up, so that an ADD never queues behind them

	routing routing
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

// addresses lists those of a link.
func (k *kernel) addresses(link netlink.Link, family int) ([]netlink.Addr, error) {
	list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return k.slow.AddrList(link, family) })
	if err != nil {
		return nil, fmt.Errorf("list %s addresses of %s: %w", familyName(family), link.Attrs().Name, err)
	}
	return list, nil
}

// isNoFamily tells that the kernel runs without an address family, as with the
// boot parameter ipv6.disable=1. It has no state of that family then.
func isNoFamily(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

func familyName(family int) string {
	if family == unix.AF_INET {
		return "IPv4"
	}
	return "IPv6"
}
