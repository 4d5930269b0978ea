package rtnl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// RemoveLinks removes links through a NETLINK_ROUTE socket, and returns the names of those that existed. The kernel waits for
// RCU, about 20 ms (measured), in each removal, and only once for all links of a group that is removed. So the links are
// first moved to a group that no other link may have. After an error some links may be left.
func RemoveLinks(s *nl.SocketHandle, group uint32, names []string) (removed []string, err error) {
	request := func(kind int, attributes ...*nl.RtAttr) error {
		req := nl.NewNetlinkRequest(kind, unix.NLM_F_ACK)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s}
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		for _, a := range attributes {
			req.AddData(a)
		}
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	}
	inGroup := nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group))
	var errs []error
	for _, name := range names {
		switch err := request(unix.RTM_SETLINK, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)), inGroup); {
		case err == nil:
			removed = append(removed, name)
		case !IsNoLink(err):
			errs = append(errs, fmt.Errorf("remove %s: set link group: %w", name, err))
		}
	}
	if len(removed) == 0 {
		return nil, errors.Join(errs...)
	}
	if err := request(unix.RTM_DELLINK, inGroup); err != nil && !IsNoLink(err) {
		return nil, errors.Join(append(errs, fmt.Errorf("remove %d links: %w", len(removed), err))...)
	}
	return removed, errors.Join(errs...)
}
