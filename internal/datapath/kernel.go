package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
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
	if k.nsID, err = identify(ns); err == nil {
		k.main, err = routeHandle(ns)
	}
	if err == nil {
		k.slow, err = routeHandle(ns)
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

// The small words in which the rest speaks to the netlink library.

// linkRef names a link by index without a look-up.
func linkRef(index int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// isNoLink tells that a link does not exist.
func isNoLink(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}

// isGone tells that a route, rule or address to be removed was not there.
func isGone(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) ||
		errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EADDRNOTAVAIL)
}

// isNoFamily tells that the kernel runs without an address family, as with the
// boot parameter ipv6.disable=1. It has no state of that family then.
func isNoFamily(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func familyName(family int) string {
	if family == unix.AF_INET {
		return "IPv4"
	}
	return "IPv6"
}

// scopeFor: IPv6 routes have no scope.
func scopeFor(a netip.Addr, scope netlink.Scope) netlink.Scope {
	if a.Is4() {
		return scope
	}
	return netlink.SCOPE_UNIVERSE
}

// routeDst is a route's destination; the default route is 0.0.0.0/0 or ::/0.
func routeDst(r netlink.Route) netip.Prefix {
	if r.Dst == nil {
		if r.Family == unix.AF_INET6 {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	if !ok {
		return netip.Prefix{}
	}
	if r.Family != unix.AF_INET6 {
		addr = addr.Unmap()
	}
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(addr, bits)
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
	routes, err := whole(func() ([]netlink.Route, error) {
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
