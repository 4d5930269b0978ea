package datapath

import (
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

// lostRoute describes a removed route that should be there, else "".
func (w *watcher) lostRoute(data []byte) string {
	if len(data) < unix.SizeofRtMsg {
		return ""
	}
	header := nl.DeserializeRtMsg(data)
	attrs, err := nl.ParseRouteAttr(data[header.Len():])
	if err != nil || header.Protocol != Protocol {
		return ""
	}
	table, oif, dst, addr := uint32(header.Table), uint32(0), "default", netip.Addr{}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_TABLE:
			table = binary.NativeEndian.Uint32(a.Value)
		case unix.RTA_OIF:
			oif = binary.NativeEndian.Uint32(a.Value)
		case unix.RTA_DST:
			if to, ok := netip.AddrFromSlice(a.Value); ok {
				dst, addr = to.String(), to
			}
		}
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
	if len(data) < unix.SizeofRtMsg {
		return false
	}
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofRtMsg:])
	if err != nil {
		return false
	}
	for _, a := range attrs {
		if a.Attr.Type == nl.FRA_PROTOCOL && len(a.Value) == 1 {
			return a.Value[0] == Protocol
		}
	}
	return false
}

// strayAddress describes a change of a secondary ENI's address that Berth did
// not ask for: the link lost its own, or was given one that pods may have.
func (w *watcher) strayAddress(m message) string {
	if len(m.data) < unix.SizeofIfAddrmsg {
		return ""
	}
	attrs, err := nl.ParseRouteAttr(m.data[unix.SizeofIfAddrmsg:])
	if err != nil {
		return ""
	}
	mac := w.links[int(nl.DeserializeIfAddrmsg(m.data).Index)].mac
	for _, a := range attrs {
		addr, ok := netip.AddrFromSlice(a.Value)
		if a.Attr.Type != unix.IFA_LOCAL || !ok {
			continue
		}
		for _, e := range w.node.knownUplinks() {
			switch {
			case e.Primary || string(e.MAC) != mac:
			case m.kind == unix.RTM_DELADDR && addr == e.linkAddress():
				return fmt.Sprintf("address %s of ENI %s was removed", addr, e.ID)
			case m.kind == unix.RTM_NEWADDR && addr == e.PrimaryIPv4 && e.ownForPods():
				return fmt.Sprintf("address %s of ENI %s was given to its link, and is for pods", addr, e.ID)
			}
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
	var what string
	switch m.kind & 0xff {
	case unix.NFT_MSG_DELTABLE:
		what = "an nftables table was removed"
	case unix.NFT_MSG_DELCHAIN:
		what = "an nftables chain was removed"
	case unix.NFT_MSG_DELRULE:
		what = "an nftables rule was removed"
	case unix.NFT_MSG_DELSET:
		what = "an nftables set was removed"
	case unix.NFT_MSG_DELSETELEM:
		what = "nftables set elements were removed"
	default:
		return
	}
	attrs, err := netlink.UnmarshalAttributes(m.data[4:])
	if err != nil || m.data[0] != unix.NFPROTO_INET && m.data[0] != unix.NFPROTO_ARP {
		return
	}
	for _, a := range attrs {
		if a.Type == unix.NFTA_TABLE_NAME && strings.TrimRight(string(a.Data), "\x00") == NftTable {
			w.emit(ctx, Event{Kind: StateLost, What: what})
			return
		}
	}
}
