package demo

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/lab/network/ns"
	"github.com/berthnet/berth/lab/run/node"
)

// noTunnels wants nothing of egress to be left in a pod: no tunnel, and no rules but the kernel's own.
func noTunnels(p *node.Pod) error {
	return ns.Netlink(p.Netns(), func(h *netlink.Handle) error {
		var errs []error
		for _, name := range []string{tunnel.Link4, tunnel.Link6} {
			if _, err := h.LinkByName(name); err == nil {
				errs = append(errs, fmt.Errorf("link %s is there", name))
			}
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			rules, err := h.RuleList(family)
			errs = append(errs, err)
			for _, r := range rules {
				if r.Priority != 0 && r.Priority < 32766 {
					errs = append(errs, fmt.Errorf("rule %s is there", r))
				}
			}
		}
		return errors.Join(errs...)
	})
}
