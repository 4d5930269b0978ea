package datapath

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// adoptLink gives the pod's link of another network the name of Berth's. It does nothing if that was done before, or if
// the other end of the link is not the pod's interface.
func (e *podEnds) adoptLink() error {
	if e.pod.FormerLink == "" {
		return nil
	}
	former, err := e.k.main.LinkByName(e.pod.FormerLink)
	if rtnl.IsNoLink(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up %s: %w", e.pod.FormerLink, err)
	}
	if found, err := e.findLink(former); err != nil || !found {
		return err
	}
	return RenameLink(e.k.main, former, e.pod.HostIfName)
}

// joinGroup gives an adopted link the group of Berth's. From then on the node ignores the pod's ARP requests, so the pod
// must have Berth's gateway before: it may need some for the gateway of the other network.
func (e *podEnds) joinGroup() error {
	if e.pod.FormerLink == "" {
		return nil
	}
	return setGroup(e.k.main, rtnl.LinkRef(e.links.HostIndex), podGroup)
}

// LeaveGroup takes a link out of the group of Berth's, so that the node answers the pod's ARP requests.
func LeaveGroup(h *netlink.Handle, link netlink.Link) error { return setGroup(h, link, 0) }

func setGroup(h *netlink.Handle, link netlink.Link, group int) error {
	if err := h.LinkSetGroup(link, group); err != nil {
		return fmt.Errorf("set the group of link %d to %d: %w", link.Attrs().Index, group, err)
	}
	return nil
}

// RenameLink gives a link another name. The link stays up: since Linux 6.2 a link can be renamed while it is up. An older
// kernel renames it while it is down, about a millisecond, and removes its routes.
func RenameLink(h *netlink.Handle, link netlink.Link, name string) error {
	a := link.Attrs()
	if a.Name == name {
		return nil
	}
	err := h.LinkSetName(link, name)
	if errors.Is(err, unix.EBUSY) && a.Flags&net.FlagUp != 0 {
		if err := h.LinkSetDown(link); err != nil {
			return fmt.Errorf("set %s down, as this kernel renames no link that is up: %w", a.Name, err)
		}
		err = errors.Join(h.LinkSetName(link, name), h.LinkSetUp(link))
	}
	if err != nil {
		return fmt.Errorf("rename %s to %s: %w", a.Name, name, err)
	}
	return nil
}
