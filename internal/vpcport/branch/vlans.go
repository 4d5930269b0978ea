package branch

import (
	"hash/fnv"
	"maps"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
)

// vlans are the VLANs of trunks that are not to be chosen just now: those that were taken or
// given back within Settings.Cooling. That a VLAN is in use for longer EC2 tells, which refuses it.
type vlans struct {
	clock   clock.Clock
	cooling time.Duration

	mu   sync.Mutex                   // guards busy
	busy map[string]map[int]time.Time // by trunk and VLAN, until when
}

func newVLANs(c clock.Clock, cooling time.Duration) *vlans {
	return &vlans{clock: c, cooling: cooling, busy: map[string]map[int]time.Time{}}
}

// next is the VLAN for a device on a trunk: the same each time, as long as that is not busy,
// so that a repeat after a restart is the same request; else the next one that is not.
func (v *vlans) next(trunk, device string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	busy := v.of(trunk)
	h := fnv.New32a()
	_, _ = h.Write([]byte(device)) // which never fails
	first := int(h.Sum32() % cloud.MaxVLAN)
	for i := range cloud.MaxVLAN {
		if id := (first+i)%cloud.MaxVLAN + 1; busy[id].IsZero() {
			return id
		}
	}
	return first + 1
}

// take marks a VLAN as busy; false: it is.
func (v *vlans) take(trunk string, id int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if busy := v.of(trunk); !busy[id].IsZero() {
		return false
	}
	v.until(trunk, id)
	return true
}

// release has a VLAN cool that was given back.
func (v *vlans) release(trunk string, id int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.of(trunk)
	v.until(trunk, id)
}

// of are the busy VLANs of a trunk. v.mu is held.
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
