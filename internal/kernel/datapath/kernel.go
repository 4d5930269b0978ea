package datapath

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// kernel is a network namespace and the sockets to it. It keeps nothing in memory
// of what it sets.
type kernel struct {
	ns   netns.NsHandle
	nsID NetnsID
	lo   int                      // index of the loopback link
	main *netlink.Handle          // ADD, DEL and everything short
	slow *netlink.Handle          // listings and set-up, so that an ADD never queues behind them
	raw  map[int]*nl.SocketHandle // removals of links, which wait for the kernel
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
	if err == nil {
		k.raw, err = rawSockets(ns)
	}
	var lo netlink.Link
	if err == nil {
		lo, err = k.slow.LinkByName("lo")
	}
	if err != nil {
		_ = k.close()
		return nil, err
	}
	k.lo = lo.Attrs().Index
	return k, nil
}

func (k *kernel) close() error {
	for _, h := range []*netlink.Handle{k.main, k.slow} {
		if h != nil {
			h.Close()
		}
	}
	for _, s := range k.raw {
		s.Close()
	}
	return k.ns.Close()
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

// The small words in which the rest speaks to the netlink library.

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

// diff lists what is wanted and not there, each once, and what is there and not wanted.
func diff[T any, K comparable](want, have []T, key func(T) K) (missing, extra []T) {
	wanted, there := map[K]bool{}, map[K]bool{}
	for _, w := range want {
		wanted[key(w)] = true
	}
	for _, h := range have {
		there[key(h)] = true
		if !wanted[key(h)] {
			extra = append(extra, h)
		}
	}
	for _, w := range want {
		if !there[key(w)] {
			there[key(w)] = true
			missing = append(missing, w)
		}
	}
	return missing, extra
}

// listRoutes lists Berth's routes of one table, or of all (RT_TABLE_UNSPEC).
func (k *kernel) listRoutes(h *netlink.Handle, family, table int) ([]netlink.Route, error) {
	routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, &netlink.Route{Table: table, Protocol: Protocol},
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if isNoFamily(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s routes of table %d: %w", familyName(family), table, err)
	}
	return routes, nil
}
