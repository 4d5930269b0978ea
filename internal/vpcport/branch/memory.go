package branch

import (
	"maps"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
)

// memory holds the ENIs' state according to replies, which listings may not show yet.
type memory struct {
	clock  clock.Clock
	settle time.Duration

	mu      sync.Mutex                   // guards the fields below
	replies map[string]reply             // by ENI, kept for settle
	assoc   map[string]cloud.Association // by branch, kept until its end is known
	renewed map[string]int               // by device: the number of used client tokens
}

// reply is the state of an ENI according to the last reply.
type reply struct {
	eni  cloud.ENI
	gone bool
	at   time.Time
}

func newMemory(c clock.Clock, settle time.Duration) *memory {
	return &memory{clock: c, settle: settle, replies: map[string]reply{}, assoc: map[string]cloud.Association{}, renewed: map[string]int{}}
}

// is records an ENI after a change.
func (m *memory) is(e cloud.ENI) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune()
	e.Tags, e.Groups = maps.Clone(e.Tags), append([]string(nil), e.Groups...)
	m.replies[e.ID] = reply{eni: e, at: m.clock.Now()}
	if e.Type != cloud.InterfaceBranch {
		delete(m.assoc, e.ID)
	}
}

// tagged records new tags of an ENI.
func (m *memory) tagged(id string, tags map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t, ok := m.replies[id]; ok && !t.gone {
		t.eni.Tags = with(t.eni.Tags, tags)
		m.replies[id] = t
	}
}

// associated records that an ENI is a branch.
func (m *memory) associated(e cloud.ENI, a cloud.Association) {
	e.Type, e.Status = cloud.InterfaceBranch, "in-use"
	m.is(e)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.assoc[e.ID] = a
}

// forget drops the state of an ENI: the next listing decides.
func (m *memory) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.replies, id)
	delete(m.assoc, id)
}

// gone records that an ENI does not exist although this provider did not delete it.
func (m *memory) gone(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune()
	m.replies[id] = reply{gone: true, at: m.clock.Now()}
	delete(m.assoc, id)
}

// dropped records the deletion of an ENI and its device, and returns the ENI's association.
func (m *memory) dropped(id string) (cloud.Association, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune()
	delete(m.renewed, m.replies[id].eni.Tags[eni.TagNIC])
	m.replies[id] = reply{gone: true, at: m.clock.Now()}
	a, ok := m.assoc[id]
	delete(m.assoc, id)
	return a, ok
}

// isGone reports whether an ENI is known to be deleted.
func (m *memory) isGone(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.replies[id].gone
}

// renew changes the client token of requests for a device. EC2 answers the old token with the ENI of the first request even if that has
// been deleted (EC2 API, "Ensuring idempotency").
func (m *memory) renew(device string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.renewed[device]++
}

// generation returns how often renew was called for a device.
func (m *memory) generation(device string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.renewed[device]
}

// prune drops replies that listings include by now. m.mu is held.
func (m *memory) prune() {
	now := m.clock.Now()
	maps.DeleteFunc(m.replies, func(_ string, t reply) bool { return now.Sub(t.at) >= m.settle })
}

// over replaces listed ENIs with later replies, and adds matching ENIs that are not listed yet.
func (m *memory) over(list []cloud.ENI, matches func(cloud.ENI) bool) []cloud.ENI {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune()
	var out []cloud.ENI
	listed := map[string]bool{}
	for _, e := range list {
		listed[e.ID] = true
		if t, ok := m.replies[e.ID]; ok {
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
	for id, t := range m.replies {
		if !listed[id] && !t.gone && matches(t.eni) {
			out = append(out, t.eni)
		}
	}
	return out
}

// association returns the association of a branch, from a reply or otherwise from its tags.
func (m *memory) association(e cloud.ENI) cloud.Association {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.assoc[e.ID]; ok {
		return a
	}
	return tagged(e)
}
