package podnics

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

// vanished are the PodNICs that were gone before their ports were released: somebody removed the
// finalizer, or etcd was restored. Each is kept until a listing shows no port of it any more.
type vanished struct {
	clock  clock.Clock
	settle time.Duration
	// wake is set when there is one more.
	wake retry.Signal

	mu  sync.Mutex // guards all
	all map[types.UID]vanishedNIC
}

// vanishedNIC is one of them.
type vanishedNIC struct {
	vpc      string
	at       time.Time // when it vanished, or the last call about it ended
	inFlight bool      // a call about it is in flight, which may still make a port
}

func newVanished(c clock.Clock, settle time.Duration) *vanished {
	return &vanished{clock: c, settle: settle, wake: retry.NewSignal(), all: map[types.UID]vanishedNIC{}}
}

// leaves tells whether a NIC whose PodNIC is gone may have left a port. A user's port counts only if
// it carries the NIC's mark: without one it was never taken, or was given back.
func (n *nic) leaves(uid types.UID) bool {
	o := n.observed
	port := o.Port != nil && (!n.given || strings.HasSuffix(o.Port.Device, ":"+string(uid)))
	return n.call.inFlight || port || len(o.Extra) > 0 || !o.Looked && (o.Kept || o.Recorded != "")
}

// add adds a PodNIC of a VPC that has vanished.
func (v *vanished) add(uid types.UID, vpc string, inFlight bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all[uid] = vanishedNIC{vpc: vpc, at: v.clock.Now(), inFlight: inFlight}
	v.wake.Set()
}

// remove drops a PodNIC that exists again.
func (v *vanished) remove(uid types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.all, uid)
}

// callEnded notes the end of a call about a PodNIC that vanished meanwhile.
func (v *vanished) callEnded(uid types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := v.all[uid]; n.inFlight {
		v.all[uid] = vanishedNIC{vpc: n.vpc, at: v.clock.Now()}
		v.wake.Set()
	}
}

// in returns when those PodNICs of a VPC vanished that a listing shows ports of. The others are
// dropped if the listing began long enough after they vanished to show all ports.
func (v *vanished) in(vpc string, listed map[types.UID][]vpcport.Port, began time.Time) map[types.UID]time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := map[types.UID]time.Time{}
	for uid, n := range v.all {
		switch {
		case n.vpc != vpc:
		case len(listed[uid]) > 0:
			out[uid] = n.at
		case !n.inFlight && began.Sub(n.at) >= v.settle:
			delete(v.all, uid)
		}
	}
	return out
}

// vpcs returns which of the existing VPCs have vanished PodNICs, and drops those of other VPCs.
func (v *vanished) vpcs(existing []string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	names := map[string]bool{}
	maps.DeleteFunc(v.all, func(_ types.UID, n vanishedNIC) bool { return !slices.Contains(existing, n.vpc) })
	for _, n := range v.all {
		names[n.vpc] = true
	}
	return slices.Sorted(maps.Keys(names))
}
