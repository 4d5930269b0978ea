package datapath

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	nlattr "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Changes by other software that concern Berth. The removal of a pod's route concerns it only if the Node has the pod
// as live and did not remove the route itself.

// attributes returns the attributes of a NETLINK_ROUTE message, or nil if it is malformed.
func attributes(data []byte, header int) map[uint16][]byte {
	if len(data) < header {
		return nil
	}
	list, err := nl.ParseRouteAttr(data[header:])
	if err != nil {
		return nil
	}
	attrs := map[uint16][]byte{}
	for _, a := range list {
		attrs[a.Attr.Type] = a.Value
	}
	return attrs
}

// routeOf is the route in a message.
type routeOf struct {
	protocol, kind int
	table, oif     int
	priority       int
	gateway        bool
	dst            netip.Prefix // zero: a default route
}

func (r routeOf) String() string {
	switch {
	case !r.dst.IsValid():
		return "default"
	case r.dst.IsSingleIP():
		return r.dst.Addr().String()
	}
	return r.dst.String()
}

func readRoute(data []byte) (r routeOf, ok bool) {
	attrs := attributes(data, unix.SizeofRtMsg)
	if attrs == nil {
		return r, false
	}
	header := nl.DeserializeRtMsg(data)
	r = routeOf{protocol: int(header.Protocol), kind: int(header.Type), table: int(header.Table)}
	if v := attrs[unix.RTA_TABLE]; v != nil {
		r.table = int(binary.NativeEndian.Uint32(v))
	}
	if v := attrs[unix.RTA_OIF]; v != nil {
		r.oif = int(binary.NativeEndian.Uint32(v))
	}
	if v := attrs[unix.RTA_PRIORITY]; v != nil {
		r.priority = int(binary.NativeEndian.Uint32(v))
	}
	r.gateway = attrs[unix.RTA_GATEWAY] != nil || attrs[unix.RTA_VIA] != nil
	if addr, ok := netip.AddrFromSlice(attrs[unix.RTA_DST]); ok {
		r.dst = netip.PrefixFrom(addr, int(header.Dst_len))
	}
	return r, true
}

// lostRoute describes the removal of a route that Berth needs.
func (w *watcher) lostRoute(data []byte) (e Event) {
	r, ok := readRoute(data)
	if !ok || r.protocol != Protocol {
		return e
	}
	if w.node.blocks.has(r.dst) && (r.table != PodTable || r.kind == unix.RTN_UNREACHABLE) {
		return Event{What: fmt.Sprintf("the route of block %s in table %d was removed", r.dst, r.table)}
	}
	if r.table == PodTable {
		if name, isLive := w.node.podLinks.liveName(r.oif); isLive {
			e.What = fmt.Sprintf("the route to %s by %s was removed", r, name)
		}
		return e
	}
	what := fmt.Sprintf("route %s of table %d was removed", r, r.table)
	if link, known := w.links[r.oif]; known && r.table >= StrictTable && r.table <= lastTable {
		return Event{Kind: PortStateLost, Link: link.name, What: what}
	}
	if w.isUplinkTable(r.table) {
		e.What = what
	}
	return e
}

// overruled describes a route of other software that replaces one of Berth's, or a new default route of a routed
// node.
func (w *watcher) overruled(data []byte) (e Event) {
	if len(data) < unix.SizeofRtMsg {
		return e
	}
	if h := nl.DeserializeRtMsg(data); h.Protocol == Protocol || h.Table == unix.RT_TABLE_MAIN && h.Dst_len != 0 {
		return e // a routing daemon may add many of these
	}
	r, ok := readRoute(data)
	if !ok {
		return e
	}
	switch {
	case r.table == PodTable && r.dst.IsValid():
		if name, to, is := w.node.podLinks.leadsTo(r.dst.Addr()); is && r.dst.IsSingleIP() && to.index != r.oif {
			e.What = fmt.Sprintf("another route to %s, of %s, is in table %d", r, name, r.table)
		}
	case w.isUplinkTable(r.table):
		e.What = fmt.Sprintf("another route %s is in table %d", r, r.table)
	case r.table >= StrictTable && r.table <= lastTable:
		e = Event{Kind: PortStateLost, What: fmt.Sprintf("another route %s is in table %d", r, r.table)}
	case r.table == unix.RT_TABLE_MAIN && !r.dst.IsValid() && w.isRouted():
		e.What = "the main table has another default route"
	}
	return e
}

func (w *watcher) isRouted() bool {
	s, err := w.node.established()
	if err != nil {
		return false
	}
	_, is := s.config.Uplinks.(Routed)
	return is
}

// isUplinkTable reports whether a table belongs to a secondary ENI that is set up.
func (w *watcher) isUplinkTable(table int) bool {
	return slices.ContainsFunc(w.node.uplinks.list(), func(e Uplink) bool { return !e.Primary && e.table() == table })
}

// lostRule describes a removed rule of Berth's.
func lostRule(data []byte) (e Event) {
	attrs := attributes(data, unix.SizeofRtMsg)
	priority := 0
	if v := attrs[nl.FRA_PRIORITY]; v != nil {
		priority = int(binary.NativeEndian.Uint32(v))
	}
	if priority != RuleLocal && !bytes.Equal(attrs[nl.FRA_PROTOCOL], []byte{Protocol}) {
		return e
	}
	e.What = "a policy rule was removed"
	if isBranchRule(netlink.Rule{Priority: priority}) {
		e.Kind = PortStateLost
	}
	return e
}

// rulesBeforeBranches describes a new rule with priority 0, which the kernel would apply before those of strict
// branches.
func rulesBeforeBranches(data []byte) Event {
	if attrs := attributes(data, unix.SizeofRtMsg); attrs == nil || attrs[nl.FRA_PRIORITY] != nil {
		return Event{}
	}
	return Event{Kind: PortStateLost, What: "a policy rule with priority 0 was added"}
}

// lostNeighbour describes a pod whose permanent neighbour entry on the node was removed or changed. It ignores
// link-local and multicast addresses, for which the kernel and not Berth adds entries.
func (w *watcher) lostNeighbour(m message) (e Event) {
	if len(m.data) < unix.SizeofNdMsg {
		return e
	}
	index := int(int32(binary.NativeEndian.Uint32(m.data[4:])))
	state := binary.NativeEndian.Uint16(m.data[8:])
	link := w.links[index].name
	if !strings.HasPrefix(link, LinkPrefix) {
		return e // before parsing the rest: the node may have many neighbours
	}
	attrs := attributes(m.data, unix.SizeofNdMsg)
	addr, ok := netip.AddrFromSlice(attrs[unix.NDA_DST])
	if !ok || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
		return e
	}
	to, isLive := w.node.podLinks.wiringAt(index)
	right := m.kind == unix.RTM_NEWNEIGH && state&unix.NUD_PERMANENT != 0
	what := fmt.Sprintf("the node's permanent neighbour %s by %s was removed or changed", addr, link)
	switch {
	case isLive:
		if slices.Contains(to.addrs, addr) && (!right || to.mac != "" && to.mac != string(attrs[unix.NDA_LLADDR])) {
			e.What = what
		}
	case !right && !IsHostLinkName(link):
		return Event{Kind: PortStateLost, Link: link, What: what}
	}
	return e
}

// strayAddress describes a change of the node's addresses. If the link of a secondary ENI lost its own address or got
// one that is for pods, it reports that instead.
func (w *watcher) strayAddress(m message) (e Event) {
	attrs := attributes(m.data, unix.SizeofIfAddrmsg)
	addr, ok := netip.AddrFromSlice(attrs[unix.IFA_LOCAL])
	if !ok { // IPv6 addresses have no IFA_LOCAL
		addr, ok = netip.AddrFromSlice(attrs[unix.IFA_ADDRESS])
	}
	if !ok {
		return e
	}
	if mayBePods(addr) {
		e = Event{Kind: AddressChanged, What: "node address added or removed: " + addr.String()}
	}
	mac := w.links[int(nl.DeserializeIfAddrmsg(m.data).Index)].mac
	for _, u := range w.node.uplinks.list() {
		switch {
		case u.Primary || string(u.MAC) != mac:
		case m.kind == unix.RTM_DELADDR && (addr == u.linkAddress() || addr == u.linkAddress6() || addr.IsLinkLocalUnicast() && addr.Is6() && u.hasIPv6()):
			return Event{What: fmt.Sprintf("address %s of ENI %s was removed", addr, u.ID)}
		case m.kind == unix.RTM_NEWADDR && addr == u.PrimaryIPv4 && u.ownForPods():
			return Event{What: fmt.Sprintf("address %s of ENI %s, which is for pods, was added to its link", addr, u.ID)}
		}
	}
	return e
}

// processName is the name by which the kernel reports transactions of this process, or "".
func processName() string {
	name, _ := os.ReadFile("/proc/self/comm")
	return strings.TrimSpace(string(name))
}

// nftMessage reports removals from Berth's tables, and additions by other software to the table of the data path,
// which Repair removes. In all of these messages attribute 1 is the table's name. The kernel names the process only at
// the end of a transaction, so events are held until then, and dropped if the process is this one.
func (w *watcher) nftMessage(ctx context.Context, m message) {
	if m.kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.data) < 4 {
		return
	}
	added := map[uint16]string{
		unix.NFT_MSG_NEWTABLE:   "an nftables table was changed",
		unix.NFT_MSG_NEWRULE:    "an nftables rule was added",
		unix.NFT_MSG_NEWSETELEM: "nftables set elements were added",
	}[m.kind&0xff]
	what := map[uint16]string{
		unix.NFT_MSG_DELTABLE:   "an nftables table was removed",
		unix.NFT_MSG_DELCHAIN:   "an nftables chain was removed",
		unix.NFT_MSG_DELRULE:    "an nftables rule was removed",
		unix.NFT_MSG_DELSET:     "an nftables set was removed",
		unix.NFT_MSG_DELSETELEM: "nftables set elements were removed",
	}[m.kind&0xff]
	attrs, err := nlattr.UnmarshalAttributes(m.data[4:])
	if m.kind&0xff == unix.NFT_MSG_NEWGEN {
		w.endTransaction(ctx, attrs)
		return
	}
	if what+added == "" || err != nil || m.data[0] != unix.NFPROTO_INET && m.data[0] != unix.NFPROTO_ARP {
		return
	}
	for _, a := range attrs {
		if a.Type != unix.NFTA_TABLE_NAME {
			continue
		}
		switch strings.TrimRight(string(a.Data), "\x00") {
		case NftTable:
			w.hold(Event{What: cmp.Or(what, added)})
		case BranchNftTable, PortNftTable:
			w.hold(Event{Kind: PortStateLost, What: what})
		}
		return
	}
}

// hold keeps an event, without duplicates, until its transaction ends.
func (w *watcher) hold(e Event) {
	if !slices.ContainsFunc(w.pending, func(p Event) bool { return p.Kind == e.Kind && p.What == e.What }) {
		w.pending = append(w.pending, e)
	}
}

// endTransaction reports the changes of a transaction by another process.
func (w *watcher) endTransaction(ctx context.Context, attrs []nlattr.Attribute) {
	changes := w.pending
	w.pending = nil
	own := slices.ContainsFunc(attrs, func(a nlattr.Attribute) bool {
		return a.Type == unix.NFTA_GEN_PROC_NAME && w.process != "" && strings.TrimRight(string(a.Data), "\x00") == w.process
	})
	if own {
		return
	}
	for _, e := range changes {
		w.tell(ctx, e)
	}
}
