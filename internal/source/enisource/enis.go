package enisource

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

const (
	// linkPatience is how long the link of an ENI that was attached may take to appear
	// before it counts as missing. It takes seconds.
	linkPatience = 30 * time.Second
	// driverPatience is how long a driver may take to start again before pods and the node
	// are notified that a link is gone. Addresses of the ENI are not handed out meanwhile.
	driverPatience = 5 * time.Second
)

// enis is which ENIs serve pods, which of them the data path has, and which links the node lacks. It is
// not safe for concurrent use: Source.mu guards it.
type enis struct {
	clock clock.Clock
	log   *slog.Logger

	published map[string]eni.ENI // those that serve pods, by ID
	// programmed is what the data path has, by ID; while it is being changed, what it
	// has before and after.
	programmed map[string]eni.ENI
	down       map[string]string  // why an ENI's data path is not ready
	absent     map[string]absence // ENIs whose links the node lacks
}

func newENIs(c clock.Clock, log *slog.Logger) enis {
	return enis{clock: c, log: log, published: map[string]eni.ENI{}, programmed: map[string]eni.ENI{}, down: map[string]string{}, absent: map[string]absence{}}
}

// absence is since when the node has had no link of an ENI.
type absence struct {
	since time.Time
	had   bool // it had one before
}

// missing reports whether the link should be there: it is gone, or has not come for long.
func (a absence) missing(now time.Time) bool { return a.had || now.Sub(a.since) >= linkPatience }

// reportedAt returns when pods and the node are notified.
func (a absence) reportedAt() time.Time {
	if a.had {
		return a.since.Add(driverPatience)
	}
	return a.since.Add(linkPatience)
}

// publish takes the ENIs of an inventory. It returns those that no longer serve pods, and those that
// are new or have changed. Holds reports whether a pod has an address of an ENI.
func (n *enis) publish(list []eni.ENI, holds func(id string) bool) (gone, changed []string) {
	before := n.published
	n.published = map[string]eni.ENI{}
	for _, e := range list {
		if e.Serves {
			n.published[e.ID] = e
		}
	}
	for id := range before {
		if _, ok := n.published[id]; !ok {
			gone = append(gone, id)
			delete(n.down, id)
			if !holds(id) {
				delete(n.absent, id)
			}
		}
	}
	for id := range n.absent {
		_, was := before[id]
		if _, is := n.published[id]; is && !was { // it was attached again, and its link is to come
			n.absent[id] = absence{since: n.clock.Now()}
		}
	}
	for _, id := range sortedIDs(n.published) {
		if old, ok := before[id]; !ok || !old.Equal(n.published[id]) {
			changed = append(changed, id)
		}
	}
	return gone, changed
}

// unpublishedCame drops the absence of ENIs whose links came although no inventory has them: the
// supplier has to find out.
func (n *enis) unpublishedCame(changed map[string]source.LinkChange) {
	for id := range n.absent {
		if _, published := n.published[id]; !published && changed[id] != source.LinkGone {
			delete(n.absent, id)
		}
	}
}

// linkGone records that the node has no link of an ENI, or another than was set up, and reports whether
// that is news.
func (n *enis) linkGone(id string, had bool) bool {
	if n.lacksLink(id) {
		return false
	}
	if had {
		n.log.Warn("the link of an ENI is gone: its addresses are not handed out until it is back", "eni", id)
	}
	n.absent[id] = absence{n.clock.Now(), had}
	return true
}

func (n *enis) lacksLink(id string) bool { _, absent := n.absent[id]; return absent }

// missingLinks returns the ENIs whose links are missing, sorted.
func (n *enis) missingLinks() (ids []string) {
	now := n.clock.Now()
	for _, id := range sortedIDs(n.absent) {
		if n.absent[id].missing(now) {
			ids = append(ids, id)
		}
	}
	return ids
}

// nextReport returns when the next missing link is reported; zero: none is to be.
func (n *enis) nextReport(now time.Time) (next time.Time) {
	for _, a := range n.absent {
		next = retry.Earliest(now, next, a.reportedAt())
	}
	return next
}

// differences returns what the data path has too much and what it lacks. The data path of an ENI that
// is no longer published stays while pods hold its addresses, unless another ENI took its place.
func (n *enis) differences(holds func(id string) bool, desired func(eni.ENI) eni.ENI) (remove []string, set []eni.ENI) {
	taken := map[int]bool{}
	for _, e := range n.published {
		taken[e.DeviceIndex] = true
	}
	for _, id := range sortedIDs(n.programmed) {
		if _, ok := n.published[id]; !ok && (!holds(id) || taken[n.programmed[id].DeviceIndex]) {
			remove = append(remove, id)
		}
	}
	for _, id := range sortedIDs(n.published) {
		if e := desired(n.published[id]); n.lacksLink(id) || !e.Equal(n.programmed[id]) {
			n.programming(e)
			set = append(set, e)
		}
	}
	return remove, set
}

// programming records that the data path may lack, from now on, what e lacks: if that is published
// again meanwhile, it is not assignable before its turn.
func (n *enis) programming(e eni.ENI) {
	done, ok := n.programmed[e.ID]
	if !ok {
		return
	}
	for _, l := range [...]struct{ of, keep *[]netip.Addr }{{&done.Addresses, &e.Addresses}, {&done.IPv6, &e.IPv6}} {
		*l.of = filter(*l.of, func(a netip.Addr) bool { return slices.Contains(*l.keep, a) })
	}
	for _, l := range [...]struct{ of, keep *[]netip.Prefix }{{&done.Prefixes, &e.Prefixes}, {&done.IPv6Prefixes, &e.IPv6Prefixes}} {
		*l.of = filter(*l.of, func(p netip.Prefix) bool { return slices.Contains(*l.keep, p) })
	}
	n.programmed[e.ID] = done
}

// set takes the result of SetENI, and reports whether the node has no link of the ENI.
func (n *enis) set(e eni.ENI, err error) (noLink bool) {
	if err != nil {
		n.down[e.ID] = err.Error()
		return errors.Is(err, source.ErrNoLink)
	}
	delete(n.absent, e.ID)
	delete(n.down, e.ID)
	n.programmed[e.ID] = e
	return false
}

// has reports whether the data path has an ENI.
func (n *enis) has(id string) bool { _, ok := n.programmed[id]; return ok }

// removed takes the success of RemoveENI.
func (n *enis) removed(id string) {
	delete(n.programmed, id)
	delete(n.absent, id)
}

// why returns why the data path of an ENI is not ready; empty: all are, or no reason is known.
func (n *enis) why() (id, reason string) {
	for _, id := range sortedIDs(n.published) {
		if down := n.down[id]; down != "" {
			return id, down
		}
	}
	return "", ""
}

func sortedIDs[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
