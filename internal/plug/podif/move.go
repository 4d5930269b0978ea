package podif

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Move takes the link with an index to another namespace and names it there, in one step of
// the kernel's: it is never there under another name. It loses its addresses and routes, and
// goes down. EEXIST tells that the name is taken there.
func (s *Namespace) Move(index int, to *Namespace, name string) error {
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
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("move link %d from %s to %s as %s: %w", index, s.Path, to.Path, name, err)
	}
	return nil
}
