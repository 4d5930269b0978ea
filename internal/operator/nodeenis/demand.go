package nodeenis

import "time"

// demand is since when more pods wait on a node than there are free addresses.
type demand struct {
	since     time.Time // zero: no more than there are
	available int       // how many addresses were published then
}

// update takes the counts of now. Once demand is over because addresses were
// published, it returns since when there was some; pods may also go without any.
func (d *demand) update(waiting, free, available int, now time.Time) (served time.Time) {
	switch {
	case waiting > free:
		if d.since.IsZero() {
			*d = demand{now, available}
		}
	case !d.since.IsZero():
		if available > d.available {
			served = d.since
		}
		d.since = time.Time{}
	}
	return served
}

// trackDemand updates demand, and reports how long it lasted if it was served.
func (n *node) trackDemand() {
	now := n.c.now()
	n.mu.Lock()
	since := n.demand.update(n.usage().Waiting, n.freeNow(), len(n.obj.Spec.IPAM.Available), now)
	n.mu.Unlock()
	if !since.IsZero() && n.c.o.DemandServed != nil {
		n.c.o.DemandServed(now.Sub(since))
	}
}

// freeNow is for how many pods there are published addresses that no pod has and
// nobody takes back. n.mu is held.
func (n *node) freeNow() (sum int) {
	used, _ := usedOf(n.obj)
	for _, room := range n.room(n.obj, used) {
		sum += room
	}
	return sum
}
