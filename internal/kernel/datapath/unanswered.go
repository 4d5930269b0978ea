package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// connection is an entry of connection tracking.
type connection struct {
	from, to netip.Addr // to: after DNAT of a Service's address
	as       netip.Addr // source at the destination
	answered bool
}

// forgetUnanswered deletes the connection tracking entries of pods' connections that are neither answered nor
// translated, although new connections would be translated. A connection is translated at its first packet or never: a
// program that keeps sending from the same port, as with UDP, would keep the entry alive and never get an answer.
// Answered connections work without translation and stay.
func (k *kernel) forgetUnanswered(translated func(from, to netip.Addr) bool) (did []string, err error) {
	pods := map[netip.Addr]bool{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, table := range []int{PodTable, StandardTable} {
			routes, err := k.routing.list(family, table)
			if err != nil {
				return nil, err
			}
			for _, r := range routes {
				pods[rtnl.RouteDst(r).Addr()] = true
			}
		}
	}
	if len(pods) == 0 {
		return nil, nil
	}
	forgotten := 0
	err = rtnl.InNetns(k.ns, func() error {
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			stale, err := rtnl.Whole(func() (stale [][]byte, err error) {
				err = ctRequest(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, family, nil, func(m []byte) bool {
					if c := parseConnection(m); !c.answered && c.as == c.from && pods[c.from] && translated(c.from, c.to) {
						stale = append(stale, m[nl.SizeofNfgenmsg:])
					}
					return true
				})
				return stale, err
			})
			if errors.Is(err, unix.EINVAL) { // the kernel cannot list connections; programs must use another port
				return nil
			}
			if err != nil {
				return err
			}
			for _, m := range stale {
				err := ctRequest(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, family, m, func([]byte) bool { return true })
				if err != nil && !errors.Is(err, unix.ENOENT) {
					return err
				}
				forgotten++
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("forget unanswered connections: %w", err)
	}
	if forgotten > 0 {
		did = append(did, fmt.Sprintf("forgot %d unanswered connections that were not translated", forgotten))
	}
	return did, nil
}

// ctRequest sends a request to ctnetlink in the thread's namespace.
func ctRequest(kind, flags int, family byte, about []byte, each func([]byte) bool) error {
	req := nl.NewNetlinkRequest(int(unix.NFNL_SUBSYS_CTNETLINK)<<8|kind, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	req.AddRawData(about)
	return req.ExecuteIter(unix.NETLINK_NETFILTER, 0, each)
}

// parseConnection reads a message of ctnetlink.
func parseConnection(m []byte) (c connection) {
	if len(m) < nl.SizeofNfgenmsg {
		return c
	}
	ad, err := netlink.NewAttributeDecoder(m[nl.SizeofNfgenmsg:])
	if err != nil {
		return c
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		switch ad.Type() {
		case nl.CTA_TUPLE_ORIG:
			c.from, _ = parseTuple(ad)
		case nl.CTA_TUPLE_REPLY:
			c.to, c.as = parseTuple(ad)
		case nl.CTA_STATUS:
			c.answered = ad.Uint32()&nft.CtSeenReply != 0
		}
	}
	return c
}

func parseTuple(of *netlink.AttributeDecoder) (src, dst netip.Addr) {
	of.Nested(func(tuple *netlink.AttributeDecoder) error {
		for tuple.Next() {
			if tuple.Type() != nl.CTA_TUPLE_IP {
				continue
			}
			tuple.Nested(func(ip *netlink.AttributeDecoder) error {
				for ip.Next() {
					a, _ := netip.AddrFromSlice(ip.Bytes())
					switch ip.Type() {
					case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
						src = a
					case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
						dst = a
					}
				}
				return nil
			})
		}
		return nil
	})
	return src, dst
}
