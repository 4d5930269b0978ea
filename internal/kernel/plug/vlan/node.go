package vlan

import (
	"bytes"
	"context"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// The link of a port can stay on the node, which routes between it and the pod (package
// routedvlan). It is named after the port and has the port's MAC address. Otherwise it follows the
// rules for links in pods.

func (p *Plugger) onNode(r plug.Ref) place { return place{p.spaces.home(), r.VLANLink()} }

// MakeOnNode ensures that the link of a port exists on the node, and does not change whether it is
// up. It waits briefly for the trunk and sets that up. Errors: plug.ErrNameTaken,
// plug.ErrPortInUse, plug.ErrNoVLAN, plug.ErrNotReady, plug.ErrInvalid.
//
// It waits before it takes the turn that all ports on the node share, so that it does not delay
// ports whose trunk exists.
func (p *Plugger) MakeOnNode(ctx context.Context, w plug.Want) (*netlink.Vlan, error) {
	if _, err := p.trunks.await(ctx, w.Ref, p.briefly()); err != nil {
		return nil, err
	}
	done, err := p.spaces.turn(ctx, p.spaces.home())
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := p.make(ctx, w, p.onNode(w.Ref), 0)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(l.HardwareAddr, w.Interface.MAC) {
		if err := p.node.NL.LinkSetHardwareAddr(rtnl.LinkRef(l.Index), w.Interface.MAC); err != nil {
			return nil, fmt.Errorf("set the MAC address of %s to %s: %w", l.Name, w.Interface.MAC, err)
		}
		l.HardwareAddr = w.Interface.MAC
	}
	if mtu := w.Interface.MTU; mtu != 0 && l.MTU != mtu {
		if err := p.node.NL.LinkSetMTU(rtnl.LinkRef(l.Index), mtu); err != nil {
			return nil, fmt.Errorf("set the MTU of %s to %d: %w", l.Name, mtu, err)
		}
		l.MTU = mtu
	}
	return l, nil
}

// RemoveFromNode removes the link of a port from the node, and incomplete links. It succeeds if
// there is none, and leaves the links of other ports alone.
func (p *Plugger) RemoveFromNode(ctx context.Context, r plug.Ref) error {
	done, err := p.spaces.turn(ctx, p.spaces.home())
	if err != nil {
		return err
	}
	defer done()
	return clean(p.spaces.home(), r)
}

// CheckOnNode adds the differences of the trunk and of the link of a port on the node. The link is
// nil if it is missing.
func (p *Plugger) CheckOnNode(w plug.Want, found *plug.Differences) (*netlink.Vlan, error) {
	if err := p.trunks.check(w.Ref, found); err != nil {
		return nil, err
	}
	in, err := look(p.spaces.home(), w.Ref)
	if err != nil {
		return nil, err
	}
	if len(in.mine) == 0 {
		found.Add("the node lacks the port's link %s", w.VLANLink())
		return nil, nil
	}
	l := in.mine[0]
	switch {
	case !bytes.Equal(l.HardwareAddr, w.Interface.MAC):
		found.Add("%s has MAC address %s, not %s", l.Name, l.HardwareAddr, w.Interface.MAC)
	case w.Interface.MTU != 0 && l.MTU != w.Interface.MTU:
		found.Add("%s has MTU %d, not %d", l.Name, l.MTU, w.Interface.MTU)
	case l.Flags&net.FlagUp == 0:
		found.Add("%s is down", l.Name)
	}
	return l, p.checkLink(w, l, p.onNode(w.Ref), found)
}
