package nodeenis

import (
	"maps"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// change is what a new state of an object means for its node.
type change struct {
	foreign bool // somebody else wrote what the operator publishes
	usage   bool // pods use other addresses, or the daemon confirmed some
}

// update takes a state of the object, if it is newer than the one at hand.
func (n *node) update(o *v1alpha1.NodeNetwork) change {
	n.mu.Lock()
	defer n.mu.Unlock()
	if o.UID != n.uid || !nodenetwork.Newer(o, n.obj) {
		if o.UID == n.uid && o.ResourceVersion == n.obj.ResourceVersion {
			n.obj = o // the cache's copy of the answer to a write: one of them goes
		}
		return change{}
	}
	before := n.obj
	old := n.tally(before)
	n.obj = o
	c := change{foreign: n.ownership.foreign(before, o)}
	if c.foreign {
		n.ownership.overwritten(before, o, n.c.now(), n.c.o.Settle)
		n.handshake.adoptReleasing(o)
	}
	if sameReport(before, o) {
		return c // such as after an own write
	}
	n.liveness.reportedAt = n.c.now()
	c.usage = before.Status.IPAM.Waiting != o.Status.IPAM.Waiting || !slices.Equal(before.Status.IPAM.MissingLinks, o.Status.IPAM.MissingLinks) || !sameUsage(old, n.tally(o)) ||
		len(n.handshake.candidates) > 0 && !slices.Equal(before.Status.IPAM.Released, o.Status.IPAM.Released)
	return c
}

func sameReport(x, y *v1alpha1.NodeNetwork) bool {
	a, b := &x.Status.IPAM, &y.Status.IPAM
	return a.Waiting == b.Waiting && a.InstanceID == b.InstanceID && slices.Equal(a.Released, b.Released) && slices.Equal(a.MissingLinks, b.MissingLinks) && maps.Equal(a.Used, b.Used)
}

// expireSuppressed is ownership.expire.
func (n *node) expireSuppressed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ownership.expire(n.c.now())
}
