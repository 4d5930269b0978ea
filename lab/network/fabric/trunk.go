package fabric

import (
	"errors"
	"fmt"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// A branch is a VLAN on its trunk's link: the router has a link of its own for it there,
// which is all that distinguishes it from the link of an ENI. Frames without a VLAN are the
// trunk's. Frames of a VLAN that no branch has are dropped by the router's kernel, which has
// no link for them (packets for other hosts, to it). Nothing is made in the node: it has to
// make its end, with the VLAN and the branch's MAC.

// Associate makes an ENI a branch of a trunk that is attached. Associating one that is
// plugged in is an error.
func (f *Fabric) Associate(e vpc.ENI) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.Trunk == nil {
		return fmt.Errorf("associate %s: it has no association", e.ID)
	}
	t := f.enis[e.Trunk.TrunkID]
	switch {
	case t == nil:
		return fmt.Errorf("associate %s: its trunk %s is not attached", e.ID, e.Trunk.TrunkID)
	case f.enis[e.ID] != nil:
		return fmt.Errorf("associate %s: it is plugged into %s", e.ID, f.enis[e.ID].node)
	}
	p := &plugged{eni: e.Clone(), node: t.node, link: f.router.newLink()}
	err := f.router.addVLAN(p, t)
	if err == nil {
		err = f.plug(p)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("associate %s with %s: %w", e.ID, t.eni.ID, err), f.unplug(p))
	}
	f.enis[e.ID] = p
	return nil
}
