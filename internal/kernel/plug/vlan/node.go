package vlan

import (
	"cmp"
	"context"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// The link of a port can stay on the node, which routes between it and the pod (package
// routedvlan). It is named after the port and has the port's MAC address. Otherwise it follows the
// rules for links in pods.

func (p *Plugger) onNode(r plug.Ref) place { return place{p.spaces.home(), r.VLANLink()} }

func linkOnNode(w plug.Want) rtnl.Link {
	return rtnl.Link{Name: w.VLANLink(), MAC: w.Interface.MAC, MTU: w.Interface.MTU}
}

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
	if _, err := linkOnNode(w).Set(p.node.NL, l.Attrs()); err != nil {
		return nil, err
	}
	l.HardwareAddr, l.MTU = w.Interface.MAC, cmp.Or(w.Interface.MTU, l.MTU)
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
	*found = append(*found, linkOnNode(w).Differences(l.Attrs())...)
	return l, p.checkLink(w, l, p.onNode(w.Ref), found)
}
