package datapath

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Which changes by others concern Berth. A removal of a route that this Node made
// itself is told by what the Node still has as live.

// attributes are those of a route message behind its header; nil if it cannot be read.
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

// lostRoute describes a removed route that should be there, else "".
func (w *watcher) lostRoute(data []byte) string {
	attrs := attributes(data, unix.SizeofRtMsg)
	if attrs == nil {
		return ""
	}
	header := nl.DeserializeRtMsg(data)
	if header.Protocol != Protocol {
		return ""
	}
	table, oif, dst := uint32(header.Table), uint32(0), "default"
	if v := attrs[unix.RTA_TABLE]; v != nil {
		table = binary.NativeEndian.Uint32(v)
	}
	if v := attrs[unix.RTA_OIF]; v != nil {
		oif = binary.NativeEndian.Uint32(v)
	}
	addr, ok := netip.AddrFromSlice(attrs[unix.RTA_DST])
	if ok {
		dst = addr.String()
	}
	if blocks := w.node.exported.Load(); blocks != nil && addr.IsValid() {
		if p := netip.PrefixFrom(addr, int(header.Dst_len)); (*blocks)[p] && (table != PodTable || header.Type == unix.RTN_UNREACHABLE) {
			return fmt.Sprintf("the route of block %s in table %d was removed", p, table)
		}
	}
	if table == PodTable {
		if name, isLive := w.node.podLinks.liveName(int(oif)); isLive {
			return fmt.Sprintf("the route to %s by %s was removed", dst, name)
		}
		return ""
	}
	for _, e := range w.node.knownUplinks() {
		if !e.Primary && e.table() == int(table) {
			return fmt.Sprintf("route %s of table %d was removed", dst, table)
		}
	}
	return ""
}

func lostRule(data []byte) bool {
	return bytes.Equal(attributes(data, unix.SizeofRtMsg)[nl.FRA_PROTOCOL], []byte{Protocol})
}

// strayAddress describes a change of a secondary ENI's address that Berth did
// not ask for: the link lost its own, or was given one that pods may have.
func (w *watcher) strayAddress(m message) string {
	attrs := attributes(m.data, unix.SizeofIfAddrmsg)
	addr, ok := netip.AddrFromSlice(attrs[unix.IFA_LOCAL])
	if !ok { // as of IPv6
		addr, ok = netip.AddrFromSlice(attrs[unix.IFA_ADDRESS])
	}
	if !ok {
		return ""
	}
	mac := w.links[int(nl.DeserializeIfAddrmsg(m.data).Index)].mac
	for _, e := range w.node.knownUplinks() {
		switch {
		case e.Primary || string(e.MAC) != mac:
		case m.kind == unix.RTM_DELADDR && (addr == e.linkAddress() || addr == e.linkAddress6()):
			return fmt.Sprintf("address %s of ENI %s was removed", addr, e.ID)
		case m.kind == unix.RTM_NEWADDR && addr == e.PrimaryIPv4 && e.ownForPods():
			return fmt.Sprintf("address %s of ENI %s was given to its link, and is for pods", addr, e.ID)
		}
	}
	return ""
}

// nftMessage looks for removals in Berth's tables. In all of these messages
// the table's name is attribute 1.
func (w *watcher) nftMessage(ctx context.Context, m message) {
	if m.kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.data) < 4 {
		return
	}
	what := map[uint16]string{
		unix.NFT_MSG_DELTABLE:   "an nftables table was removed",
		unix.NFT_MSG_DELCHAIN:   "an nftables chain was removed",
		unix.NFT_MSG_DELRULE:    "an nftables rule was removed",
		unix.NFT_MSG_DELSET:     "an nftables set was removed",
		unix.NFT_MSG_DELSETELEM: "nftables set elements were removed",
	}[m.kind&0xff]
	attrs, err := netlink.UnmarshalAttributes(m.data[4:])
	if what == "" || err != nil || m.data[0] != unix.NFPROTO_INET && m.data[0] != unix.NFPROTO_ARP {
		return
	}
	for _, a := range attrs {
		if name := strings.TrimRight(string(a.Data), "\x00"); a.Type == unix.NFTA_TABLE_NAME && (name == NftTable || name == BranchNftTable) {
			w.emit(ctx, Event{Kind: StateLost, What: what})
			return
		}
	}
}
