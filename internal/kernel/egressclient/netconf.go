package egressclient

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// looseFilter is rp_filter 2 (ip-sysctl): a packet's source must be reachable, by whichever link. The
// larger of a link's and that of "all" holds.
const looseFilter = 2

// Attributes of IPv4 settings of a link (linux/ip.h, linux/netconf.h): they are those of
// /proc/sys/net/ipv4/conf, which a container that is not privileged can only read.
const (
	devconfRPFilter  = 8 // IPV4_DEVCONF_RP_FILTER
	inetConf         = 1 // IFLA_INET_CONF
	netconfIndex     = 1 // NETCONFA_IFINDEX
	netconfRPFilter  = 3 // NETCONFA_RP_FILTER
	netconfIndexAll  = -1
	sizeofNetconfmsg = 4 // struct netconfmsg: the family, padded
)

// request sends a message of NETLINK_ROUTE in the pod's namespace.
func (k *kernel) request(kind, flags int, parts ...nl.NetlinkRequestData) ([][]byte, error) {
	if k.raw == nil {
		socket, err := nl.GetNetlinkSocketAt(k.ns, netns.None(), unix.NETLINK_ROUTE)
		if err != nil {
			return nil, fmt.Errorf("open netlink: %w", err)
		}
		k.raw = &nl.SocketHandle{Socket: socket}
	}
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.raw}
	for _, p := range parts {
		req.AddData(p)
	}
	return req.Execute(unix.NETLINK_ROUTE, 0)
}

// setPathFilter sets rp_filter of a link.
func (k *kernel) setPathFilter(index int, value uint32) error {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil).AddRtAttr(devconfRPFilter, nl.Uint32Attr(value))
	_, err := k.request(unix.RTM_SETLINK, unix.NLM_F_ACK, msg, spec)
	return err
}

type netconfmsg struct{}

func (netconfmsg) Len() int          { return sizeofNetconfmsg }
func (netconfmsg) Serialize() []byte { return []byte{unix.AF_INET, 0, 0, 0} }

// pathFilter reads rp_filter of a link, or of "all".
func (k *kernel) pathFilter(index int) (uint32, error) {
	replies, err := k.request(unix.RTM_GETNETCONF, 0, netconfmsg{}, nl.NewRtAttr(netconfIndex, nl.Uint32Attr(uint32(index))))
	if err != nil {
		return 0, fmt.Errorf("read reverse path filtering: %w", err)
	}
	for _, m := range replies {
		attrs, err := nl.ParseRouteAttr(m[sizeofNetconfmsg:])
		if err != nil {
			return 0, fmt.Errorf("read reverse path filtering: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == netconfRPFilter && len(a.Value) == 4 {
				return nl.NativeEndian().Uint32(a.Value), nil
			}
		}
	}
	return 0, fmt.Errorf("read reverse path filtering: the kernel does not tell")
}
