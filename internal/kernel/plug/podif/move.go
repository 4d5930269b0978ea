package podif

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Move moves the link with an index to another namespace and renames it, in one request, so that it never has another
// name there. The link loses its addresses and routes, and goes down. Errors: unix.EEXIST, if the name is taken
// there; the link then stays.
func (s *Namespace) Move(index int, to *Namespace, name string) error {
	l, err := s.NL.LinkByIndex(index)
	if err != nil {
		return fmt.Errorf("look up link %d in %s: %w", index, s.Path, err)
	}
	old := l.Attrs()
	taken, err := to.Link(name)
	if err != nil {
		return err
	}
	err = error(unix.EEXIST)
	if taken == nil {
		err = s.move(index, to, name)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("move %s from %s to %s as %s: %w", old.Name, s.Path, to.Path, name, err)
	// The kernel moves the link before it renames it, and does not move it back if the name was taken in between.
	if _, gone := s.NL.LinkByIndex(index); !rtnl.IsNoLink(gone) {
		return err
	}
	stray, look := to.Link(old.Name)
	if look != nil || stray == nil || !sameLink(stray.Attrs(), old) {
		return errors.Join(err, look)
	}
	return errors.Join(err, to.move(stray.Attrs().Index, s, old.Name))
}

// sameLink reports whether two observations are of the same link.
func sameLink(a, b *netlink.LinkAttrs) bool {
	return a.Alias == b.Alias && a.HardwareAddr.String() == b.HardwareAddr.String()
}

func (s *Namespace) move(index int, to *Namespace, name string) error {
	socket, err := nl.GetNetlinkSocketAt(s.NS, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", s.Path, err)
	}
	defer socket.Close()
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(to.NS))))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
