package nodenetwork

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/published"
)

// change is what a new state of an object means for its node.
type change struct {
	foreign bool // somebody else wrote what the operator publishes
	usage   bool // pods use other addresses, or the daemon confirmed some
}

// see takes a state of the object, if it is newer than the one at hand.
func (n *node) see(o *v1alpha1.NodeNetwork) change {
	n.mu.Lock()
	defer n.mu.Unlock()
	if o.UID != n.uid || !published.Newer(o, n.obj) {
		if o.UID == n.uid && o.ResourceVersion == n.obj.ResourceVersion {
			n.obj = o // the cache's copy of the answer to a write: one of them goes
		}
		return change{}
	}
	before := n.obj
	old := tally(before, n.reserved)
	n.obj = o
	c := change{foreign: n.foreign(before, o)}
	if c.foreign {
		n.doubted = true
		n.shun(before, o)
		n.handshake.adoptReleasing(o)
	}
	if sameReport(before, o) {
		return c // such as after an own write
	}
	n.reportedAt = n.c.now()
	c.usage = before.Status.IPAM.Waiting != o.Status.IPAM.Waiting || !sameUsage(old, tally(o, n.reserved)) ||
		len(n.handshake.candidates) > 0 && !slices.Equal(before.Status.IPAM.Released, o.Status.IPAM.Released)
	return c
}

// foreign tells whether o has another spec.ipam than before, and than what this
// process sent since, the answer to which may come later, or never.
func (n *node) foreign(before, o *v1alpha1.NodeNetwork) bool {
	if sameIPAM(before.Spec.IPAM, o.Spec.IPAM) {
		return false
	}
	for _, own := range [...]*v1alpha1.IPAMSpec{n.sent, n.lost} {
		if own != nil && sameIPAM(*own, o.Spec.IPAM) {
			return false
		}
	}
	return true
}

func sameIPAM(x, y v1alpha1.IPAMSpec) bool {
	return maps.Equal(x.Available, y.Available) && slices.Equal(x.Releasing, y.Releasing) && slices.Equal(x.Unassigning, y.Unassigning)
}

func sameReport(x, y *v1alpha1.NodeNetwork) bool {
	a, b := &x.Status.IPAM, &y.Status.IPAM
	return a.Waiting == b.Waiting && a.InstanceID == b.InstanceID && slices.Equal(a.Released, b.Released) && maps.Equal(a.Used, b.Used)
}

// shun remembers what another operator took out of available: most likely it
// was unassigned, and a listing of the cloud that has it is old. A person who
// took it out is put right as soon as the cloud was asked. n.mu is held.
func (n *node) shun(before, o *v1alpha1.NodeNetwork) {
	if !byOperator(o) {
		return
	}
	until := n.c.now().Add(n.c.o.Settle)
	for text := range before.Spec.IPAM.Available {
		if _, still := o.Spec.IPAM.Available[text]; still {
			continue
		}
		if p, err := published.Parse(text); err == nil {
			n.shunned[p] = until
		}
	}
	n.recall(n.c.now())
}

// recall has the node looked at when something is no longer shunned. The queue
// keeps one time for each node, so every look asks for the next. n.mu is held.
func (n *node) recall(now time.Time) {
	var first time.Time
	for _, until := range n.shunned {
		if first.IsZero() || until.Before(first) {
			first = until
		}
	}
	if !first.IsZero() {
		n.c.later(n.name, first.Sub(now))
	}
}

// unshun forgets what was shunned for long enough, and tells whether there was
// any: the cloud is to be asked for it once more.
func (n *node) unshun(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := len(n.shunned)
	defer n.recall(now)
	maps.DeleteFunc(n.shunned, func(_ netip.Prefix, until time.Time) bool { return !until.After(now) })
	if len(n.shunned) == before {
		return false
	}
	n.doubted = true
	return true
}
