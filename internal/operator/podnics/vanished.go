package podnics

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/vpcport"
)

// abandonedPause is how long the sweep for ports of PodNICs that vanished waits for more of them, so that
// many cost one listing, and abandonedAgain how long it waits after a listing that failed.
const (
	abandonedPause = 2 * time.Second
	abandonedAgain = 15 * time.Second
)

// abandoned is what a PodNIC leaves that vanished before its port was given back: somebody took its finalizer, or
// etcd was restored. It is kept until a listing shows nothing of it any more.
type abandoned struct {
	vpc  string
	at   time.Time // when it vanished, or the last call about it ended
	busy bool      // a call about it is under way, which may make a port yet
}

// leaves tells whether a NIC whose PodNIC is no more may have a port still.
// A user's port has not, unless it carries the NIC's mark: it was never taken, or was given back.
func (n *nic) leaves(uid types.UID) bool {
	h := n.have
	port := h.Port != nil && (!n.given || strings.HasSuffix(h.Port.Device, ":"+string(uid)))
	return n.busy || port || len(h.Extra) > 0 || !h.Looked && (h.Kept || h.Recorded != "")
}

// callEnded notes the end of a call about a PodNIC that vanished meanwhile.
func (b *book) callEnded(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.abandoned[uid]; a.busy {
		b.abandoned[uid] = abandoned{vpc: a.vpc, at: b.clock.Now()}
		b.wake.Set()
	}
}

// abandonedOf are the PodNICs of a VPC that vanished, with the moment; those of which a listing that began
// long enough after it shows no port, and none can come, are forgotten.
func (b *book) abandonedOf(vpc string, listed map[types.UID][]vpcport.Port, began time.Time) map[types.UID]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[types.UID]time.Time{}
	for uid, a := range b.abandoned {
		switch {
		case a.vpc != vpc:
		case len(listed[uid]) > 0:
			out[uid] = a.at
		case !a.busy && began.Sub(a.at) >= b.settle:
			delete(b.abandoned, uid)
		}
	}
	return out
}

// abandonedIn are the VPCs with PodNICs that vanished, of those that there are.
func (b *book) abandonedIn(vpcs []string) (in []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := map[string]bool{}
	maps.DeleteFunc(b.abandoned, func(_ types.UID, a abandoned) bool { return !slices.Contains(vpcs, a.vpc) })
	for _, a := range b.abandoned {
		names[a.vpc] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// dueOrphans are the ports, of those that no known PodNIC has, that are to be given back by now: those of PodNICs that vanished
// while this process watched once they have cooled, and if collect, those that were seen for so long.
func dueOrphans(orphans map[types.UID][]vpcport.Port, gone map[types.UID]time.Time, seen sightings, collect bool, now time.Time, cooling, age time.Duration) map[types.UID][]vpcport.Port {
	due := map[types.UID][]vpcport.Port{}
	for uid, ports := range orphans {
		at, vanished := gone[uid]
		for _, p := range ports {
			if vanished && now.Sub(at) >= cooling || collect && now.Sub(seen[p.ID]) >= age {
				due[uid] = append(due[uid], p)
			}
		}
	}
	return due
}
