package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Other software on the node may route an address to a pod of its own: another pod network, which knows nothing of
// Berth's pods. Its routes may be in any table. Listing all tables takes long on a node with many routes, so they are
// listed once, and events keep the list up to date.

// ForeignRoute is a route of other software to one address, by a link and without a gateway: somebody behind that link
// has the address.
type ForeignRoute struct {
	Addr     netip.Addr
	Table    int
	Protocol int
	Index    int    // of the link
	Link     string // its name
	Alias    string // its alias
}

// String is such as "route to 10.0.0.7 by eni1a2b3c4d5e6 in table 254".
func (r ForeignRoute) String() string {
	return fmt.Sprintf("route to %s by %s in table %d", r.Addr, r.Link, r.Table)
}

// ForeignRoutes lists, by address, the routes of other software in any table to single addresses behind links of the node
// that are not pod links of Berth. It is cheap while Watch runs.
func (n *Node) ForeignRoutes(ctx context.Context) ([]ForeignRoute, error) {
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	found := n.foreign.list(time.Now())
	if found == nil {
		var err error
		if found, err = n.foreign.read(n.kernel); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	links, err := n.links()
	if err != nil {
		return nil, err
	}
	of := map[int]*netlink.LinkAttrs{}
	for _, l := range links {
		if !isPodLink(l) && l.Attrs().Group != rtnl.PortGroup {
			of[l.Attrs().Index] = l.Attrs()
		}
	}
	var list []ForeignRoute
	for key, protocol := range found {
		if l := of[key.link]; l != nil {
			list = append(list, ForeignRoute{key.addr, key.table, protocol, key.link, l.Name, l.Alias})
		}
	}
	slices.SortFunc(list, func(a, b ForeignRoute) int {
		if c := a.Addr.Compare(b.Addr); c != 0 {
			return c
		}
		return strings.Compare(a.String(), b.String())
	})
	return list, nil
}

// foreignKey identifies a route that ForeignRoutes may list.
type foreignKey struct {
	addr                  netip.Addr
	table, link, priority int
}

// foreignRoutes are the routes of other software to single addresses.
type foreignRoutes struct {
	mu     sync.Mutex    // guards the fields below; never held during I/O
	routes *foreignTable // nil unless watched
	at     time.Time     // of the last reading
	// watched means that events arrive, and complete that the routes were read since.
	watched, complete bool
	watches           int // how often watch was called
	// readings is the number of readings in progress, and late the changes since the first of them began, which
	// it may have missed.
	readings int
	late     []func(*foreignTable)
}

// foreignReread is how long events alone are trusted.
const foreignReread = 10 * time.Minute

// list returns the routes, or nil if they must be read.
func (f *foreignRoutes) list(now time.Time) map[foreignKey]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.watched || !f.complete || now.Sub(f.at) >= foreignReread {
		return nil
	}
	return f.routes.all()
}

// watch notes whether events arrive from now on. Events may have been missed before.
func (f *foreignRoutes) watch(watched bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watched, f.complete = watched, false
	f.watches++
	if !watched {
		f.routes = nil // nobody keeps them up to date
	}
}

// read reads the routes of all tables. It is never nil without an error.
func (f *foreignRoutes) read(k *kernel) (map[foreignKey]int, error) {
	f.mu.Lock()
	f.readings++
	watches := f.watches
	f.mu.Unlock()
	found, err := k.foreignRoutes()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readings--; err != nil {
		if f.readings == 0 {
			f.late = nil
		}
		return nil, err
	}
	for _, change := range f.late {
		change(found)
	}
	if f.readings == 0 {
		f.late = nil
	}
	if f.watched {
		f.routes, f.complete, f.at = found, f.watches == watches, time.Now()
	}
	return found.all(), nil
}

// change applies an event, and reports whether it made a difference.
func (f *foreignRoutes) change(do func(*foreignTable)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readings > 0 {
		f.late = append(f.late, do)
	}
	if f.routes == nil {
		return false
	}
	before := f.routes.size
	do(f.routes)
	return f.routes.size != before
}

// to returns a route to an address by another link than index; false: none is known.
func (f *foreignRoutes) to(addr netip.Addr, index int) (foreignKey, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.routes == nil {
		return foreignKey{}, false
	}
	for key := range f.routes.byAddr[addr] {
		if key.link != index {
			return key, true
		}
	}
	return foreignKey{}, false
}

// foreignRoutes lists the routes of other software to single addresses, with their protocols.
func (k *kernel) foreignRoutes() (*foreignTable, error) {
	for range 10 {
		found, err := k.dumpForeignRoutes()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return found, err
		}
	}
	return k.dumpForeignRoutes()
}

func (k *kernel) dumpForeignRoutes() (*foreignTable, error) {
	found := newForeignTable()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		err := k.slow.RouteListFilteredIter(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Type: unix.RTN_UNICAST}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE,
			func(r netlink.Route) bool {
				if key, ok := k.foreignKey(r); ok {
					found.set(key, int(r.Protocol))
				}
				return true
			})
		if err != nil && !isNoFamily(err) {
			return nil, fmt.Errorf("list %s routes of all tables: %w", familyName(family), err)
		}
	}
	return found, nil
}

// foreignKey identifies a route. ok is false if it is Berth's, or leads to no single address behind a link.
func (k *kernel) foreignKey(r netlink.Route) (key foreignKey, ok bool) {
	dst := rtnl.RouteDst(r)
	if int(r.Protocol) == Protocol || r.Type != unix.RTN_UNICAST || !dst.IsSingleIP() || r.Gw != nil || r.Via != nil ||
		r.LinkIndex == 0 || r.LinkIndex == k.lo || !mayBePods(dst.Addr()) {
		return key, false
	}
	return foreignKey{dst.Addr(), r.Table, r.LinkIndex, r.Priority}, true
}

// foreignRoute applies an event about a route to the list, and describes the change. Most events are about Berth's own
// routes and those of routing daemons, which have a wider destination or a gateway.
func (w *watcher) foreignRoute(m message) (e Event) {
	if len(m.data) < unix.SizeofRtMsg {
		return e
	}
	h := nl.DeserializeRtMsg(m.data)
	bits := uint8(32)
	if h.Family == unix.AF_INET6 {
		bits = 128
	}
	if h.Protocol == Protocol || h.Type != unix.RTN_UNICAST || h.Dst_len != bits || h.Flags&unix.RTM_F_CLONED != 0 {
		return e
	}
	r, ok := readRoute(m.data)
	key := foreignKey{r.dst.Addr(), r.table, r.oif, r.priority}
	if !ok || r.gateway || r.oif == 0 || r.oif == w.node.lo || !mayBePods(key.addr) {
		return e
	}
	changed := w.node.foreign.change(func(routes *foreignTable) {
		switch {
		case m.kind == unix.RTM_DELROUTE:
			routes.remove(key)
		case m.flags&unix.NLM_F_REPLACE != 0:
			routes.replace(key, r.protocol)
		default:
			routes.set(key, r.protocol)
		}
	})
	if link, known := w.links[key.link]; changed && !(known && IsHostLinkName(link.name)) {
		e = Event{Kind: AddressChanged, What: "route of other software added or removed: " + key.addr.String()}
	}
	return e
}

// linkLost drops the routes by a link that went down or vanished, as the kernel does without an event.
func (w *watcher) linkLost(index int, name string) (e Event) {
	if w.node.foreign.change(func(routes *foreignTable) { routes.removeLink(index) }) {
		e = Event{Kind: AddressChanged, What: "routes of other software by " + name + " are gone"}
	}
	return e
}

// held returns ErrAddressInUse if the node delivers packets for an address to itself, or by another link than that of the
// pod, which was just made.
func (f *foreignRoutes) held(k *kernel, addr netip.Addr, index int) error {
	if key, ok := f.to(addr, index); ok {
		return fmt.Errorf("%w: %s leads to link %d by table %d", ErrAddressInUse, addr, key.link, key.table)
	}
	routes, err := k.main.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return nil // no route, or one that refuses: nobody has it
	case err != nil:
		return fmt.Errorf("look up the route to %s: %w", addr, err)
	}
	for _, r := range routes {
		key, ok := k.foreignKey(r)
		switch {
		case r.Type == unix.RTN_LOCAL:
			return fmt.Errorf("%w: a link of the node has %s", ErrAddressInUse, addr)
		case ok && key.link != index:
			return fmt.Errorf("%w: %s leads to link %d by table %d", ErrAddressInUse, addr, key.link, key.table)
		}
	}
	return nil
}
