package vlan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/plug"
)

const up = net.FlagUp

// pollTrunk is how often the trunk's link is looked for.
const pollTrunk = 100 * time.Millisecond

// await waits until the trunk's link is there.
func (p *Plugger) await(ctx context.Context, r plug.Ref) error {
	ctx, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	tick := time.NewTicker(pollTrunk)
	defer tick.Stop()
	for {
		_, err := p.trunk(r)
		if !errors.Is(err, plug.ErrNotReady) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// trunk is the link of the node that carries a port's VLAN: the one with its MAC address that is
// an ENI's. Links that were made on the node, such as those to pods, are none, whatever a PodNIC
// says. Errors: plug.ErrNotReady without one, plug.ErrInvalid with several.
func (p *Plugger) trunk(r plug.Ref) (*netlink.LinkAttrs, error) {
	links, err := rtnl.Whole(p.node.NL.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links of the node: %w", err)
	}
	var found *netlink.LinkAttrs
	for _, l := range links {
		a := l.Attrs()
		if a.HardwareAddr.String() != r.Trunk || !mayBeTrunk(l) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("Trunk: %q: %s and %s have this MAC address: want that of one link: %w", r.Trunk, found.Name, a.Name, plug.ErrInvalid)
		}
		found = a
	}
	if found == nil {
		return nil, fmt.Errorf("%w: the node has no link of an ENI with the trunk's MAC address %s", plug.ErrNotReady, r.Trunk)
	}
	return found, nil
}

// mayBeTrunk tells whether a link may be an ENI's: not one that is Berth's, nor of a kind that
// is made of other links. A veth may be: of such the lab's ENIs are.
func mayBeTrunk(l netlink.Link) bool {
	a := l.Attrs()
	switch l.Type() {
	case "vlan", "bridge", "bond", "macvlan", "ipvlan", "tuntap", "dummy", "vxlan":
		return false
	}
	return a.MasterIndex == 0 && a.Group != plug.LinkGroup && !strings.HasPrefix(a.Name, rtnl.PodLinkPrefix)
}
