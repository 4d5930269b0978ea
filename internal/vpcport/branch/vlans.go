package branch

import (
	"hash/fnv"
	"maps"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
)

// vlans holds the VLANs of trunks that were taken or released within Settings.Cooling and must not be chosen. EC2 itself refuses VLANs
// that have been in use for longer.
type vlans struct {
	clock   clock.Clock
	cooling time.Duration

	mu   sync.Mutex                   // guards busy
	busy map[string]map[int]time.Time // by trunk and VLAN: when the VLAN may be used again
}

func newVLANs(c clock.Clock, cooling time.Duration) *vlans {
	return &vlans{clock: c, cooling: cooling, busy: map[string]map[int]time.Time{}}
}

// next returns the VLAN for a device on a trunk. It follows from the device, so that the request is the same after a restart; if that VLAN
// is busy, it is the next free one.
func (v *vlans) next(trunk, device string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	busy := v.of(trunk)
	h := fnv.New32a()
	_, _ = h.Write([]byte(device)) // never fails
	first := int(h.Sum32() % cloud.MaxVLAN)
	for i := range cloud.MaxVLAN {
		if id := (first+i)%cloud.MaxVLAN + 1; busy[id].IsZero() {
			return id
		}
	}
	return first + 1
}

// take marks a VLAN as busy. It returns false if it is busy already.
func (v *vlans) take(trunk string, id int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if busy := v.of(trunk); !busy[id].IsZero() {
		return false
	}
	v.until(trunk, id)
	return true
}

// release keeps a VLAN busy for Settings.Cooling.
func (v *vlans) release(trunk string, id int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.of(trunk)
	v.until(trunk, id)
}

// of returns the busy VLANs of a trunk. v.mu is held.
func (v *vlans) of(trunk string) map[int]time.Time {
	now := v.clock.Now()
	maps.DeleteFunc(v.busy[trunk], func(_ int, until time.Time) bool { return !now.Before(until) })
	if len(v.busy[trunk]) == 0 {
		delete(v.busy, trunk)
	}
	return v.busy[trunk]
}

func (v *vlans) until(trunk string, id int) {
	if v.busy[trunk] == nil {
		v.busy[trunk] = map[int]time.Time{}
	}
	v.busy[trunk][id] = v.clock.Now().Add(v.cooling)
}
