package ns

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// doomed is the link group that links are put into before they are deleted
// together: the kernel's wait for each deleted veth is then shared by all.
const doomed = 0x626c

// deleteLinks deletes all veth links of a namespace, in which the calling thread
// is, and by that their peers wherever they are.
func deleteLinks(h *netlink.Handle) error {
	links, err := h.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // links changed meanwhile
		links, err = h.LinkList()
	}
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	n := 0
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		if err := h.LinkSetGroup(l, doomed); err != nil {
			if gone(err) {
				continue
			}
			return fmt.Errorf("mark link %s for deletion: %w", l.Attrs().Name, err)
		}
		n++
	}
	if n == 0 {
		return nil
	}
	if err := deleteGroup(doomed); err != nil && !gone(err) {
		return fmt.Errorf("delete %d links: %w", n, err)
	}
	return nil
}

// deleteGroup deletes all links of a group (RTM_DELLINK with IFLA_GROUP,
// rtnetlink(7)), which the netlink library has no call for.
func deleteGroup(group uint32) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func gone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.As(err, &netlink.LinkNotFoundError{})
}

// DeleteLink deletes a link. A missing link is no error.
func DeleteLink(h *netlink.Handle, name string) error {
	l, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkDel(l)
	}
	if err != nil && !gone(err) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}
