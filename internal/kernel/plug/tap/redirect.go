package tap

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// redirect sends all frames that come in by one link out by another, like Kata Containers' tcfilter. It replaces any
// other filters, because the link belongs to this port only.
func redirect(pod *podif.Namespace, from, to netlink.Link) error {
	ok, err := redirects(pod, from, to)
	if err != nil || ok {
		return err
	}
	qdisc := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: from.Attrs().Index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0),
	}}
	if err := pod.NL.QdiscDel(qdisc); err != nil && !errors.Is(err, unix.EINVAL) && !rtnl.IsGone(err) {
		return fmt.Errorf("remove filters of %s in %s: %w", from.Attrs().Name, pod.Path, err)
	}
	if err := pod.NL.QdiscAdd(qdisc); err != nil {
		return fmt.Errorf("add a queueing discipline to %s in %s: %w", from.Attrs().Name, pod.Path, err)
	}
	// u32 with an empty selector matches all frames, and is older than matchall.
	filter := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: from.Attrs().Index, Parent: netlink.MakeHandle(0xffff, 0), Protocol: unix.ETH_P_ALL, Priority: 1},
		Actions: []netlink.Action{&netlink.MirredAction{
			ActionAttrs:  netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
			MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: to.Attrs().Index,
		}},
	}
	if err := pod.NL.FilterAdd(filter); err != nil {
		return fmt.Errorf("redirect frames of %s to %s in %s: %w", from.Attrs().Name, to.Attrs().Name, pod.Path, err)
	}
	return nil
}

// redirects reports whether redirect has nothing to change.
func redirects(pod *podif.Namespace, from, to netlink.Link) (bool, error) {
	filters, err := rtnl.Whole(func() ([]netlink.Filter, error) { return pod.NL.FilterList(from, netlink.MakeHandle(0xffff, 0)) })
	if errors.Is(err, unix.EINVAL) { // the queueing discipline is missing
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list filters of %s in %s: %w", from.Attrs().Name, pod.Path, err)
	}
	found := false
	for _, f := range filters {
		u, ok := f.(*netlink.U32)
		if !ok {
			return false, nil
		}
		for _, a := range u.Actions {
			m, ok := a.(*netlink.MirredAction)
			if !ok || m.Ifindex != to.Attrs().Index || m.MirredAction != netlink.TCA_EGRESS_REDIR {
				return false, nil
			}
			found = true
		}
	}
	return found, nil
}
