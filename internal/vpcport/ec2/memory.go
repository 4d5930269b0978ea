package ec2

import (
	"maps"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
)

// memory is what replies told, which listings may not show yet.
type memory struct {
	clock  clock.Clock
	settle time.Duration

	mu      sync.Mutex                   // guards all below
	told    map[string]told              // by ENI, for settle
	assoc   map[string]cloud.Association // by branch, until it is known to be none
	deleted map[string]int               // by device, how many of its ENIs turned out to be gone
}

// told is an ENI as the last reply about it left it.
type told struct {
	eni  cloud.ENI
	gone bool
	at   time.Time
}

func newMemory(c clock.Clock, settle time.Duration) *memory {
	return &memory{clock: c, settle: settle, told: map[string]told{}, assoc: map[string]cloud.Association{}, deleted: map[string]int{}}
}

// is notes what an ENI is after a change.
func (m *memory) is(e cloud.ENI) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune()
	e.Tags, e.Groups = maps.Clone(e.Tags), append([]string(nil), e.Groups...)
	m.told[e.ID] = told{eni: e, at: m.clock.Now()}
	if e.Type != cloud.InterfaceBranch {
		delete(m.assoc, e.ID)
	}
}

// associated notes that an ENI is a branch.
func (m *memory) associated(e cloud.ENI, a cloud.Association) {
	e.Type, e.Status = cloud.InterfaceBranch, "in-use"
	m.is(e)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.assoc[e.ID] = a
}

// gone notes that there is no such ENI, although nobody asked to have it deleted.
func (m *memory) gone(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune()
	if t := m.told[id]; !t.gone {
		if device := t.eni.Tags[eni.TagNIC]; device != "" {
			m.deleted[device]++
		}
	}
	m.told[id] = told{gone: true, at: m.clock.Now()}
	delete(m.assoc, id)
}

// dropped notes that an ENI was deleted whose device nobody needs any more. It returns the
// association that it had.
func (m *memory) dropped(id string) (cloud.Association, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune()
	delete(m.deleted, m.told[id].eni.Tags[eni.TagNIC])
	m.told[id] = told{gone: true, at: m.clock.Now()}
	a, ok := m.assoc[id]
	delete(m.assoc, id)
	return a, ok
}

// isGone tells whether an ENI is known to be deleted, of a device: a repeat of the request
// that made it gets it again (EC2 API, "Ensuring idempotency"), and is another request from
// now on.
func (m *memory) isGone(id, device string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.told[id].gone {
		return false
	}
	m.deleted[device]++
	return true
}

// generation tells how many ENIs of a device turned out to be gone.
func (m *memory) generation(device string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.deleted[device]
}

// prune forgets what listings show by now. m.mu is held.
func (m *memory) prune() {
	now := m.clock.Now()
	maps.DeleteFunc(m.told, func(_ string, t told) bool { return now.Sub(t.at) >= m.settle })
}

// over is a listing with what replies told in the place of what it trails. Matches tells
// whether an ENI belongs into it.
func (m *memory) over(list []cloud.ENI, matches func(cloud.ENI) bool) []cloud.ENI {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune()
	var out []cloud.ENI
	listed := map[string]bool{}
	for _, e := range list {
		listed[e.ID] = true
		if t, ok := m.told[e.ID]; ok {
			if e = t.eni; t.gone {
				continue
			}
		} else if e.Type != cloud.InterfaceBranch {
			delete(m.assoc, e.ID)
		}
		if matches(e) {
			out = append(out, e)
		}
	}
	for id, t := range m.told {
		if !listed[id] && !t.gone && matches(t.eni) {
			out = append(out, t.eni)
		}
	}
	return out
}

// association is what is known of a branch: what a reply told, else what its tags say.
func (m *memory) association(e cloud.ENI) cloud.Association {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.assoc[e.ID]; ok {
		return a
	}
	return tagged(e)
}
