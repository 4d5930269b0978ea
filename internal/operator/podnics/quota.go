package podnics

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
)

// wakes is the number of waiting NICs that are reconciled when a place becomes free. Without a limit it would be as many as users
// create.
const wakes = 16

// tenant is a namespace in a VPC.
type tenant struct{ vpc, namespace string }

// quotas count the ports of each tenant's NICs, and enforce the limit.
type quotas struct {
	clock  clock.Clock
	settle time.Duration
	wake   func(types.NamespacedName) // queues a NIC; must not block

	mu      sync.Mutex // guards the fields below
	began   time.Time  // when this process became leader
	nics    map[types.UID]*quotaNIC
	tenants map[tenant]*quota
}

// quota is the quota of one tenant.
type quota struct {
	complete bool                    // includes the PodNICs from before this process
	holders  map[types.UID]bool      // NICs with a place
	waiting  map[types.UID]*quotaNIC // NICs waiting for a place
}

// quotaNIC is the state of a NIC with regard to its tenant's quota.
type quotaNIC struct {
	key    types.NamespacedName
	tenant tenant
	port   portClaim
	taking bool // it is getting a port right now, or has just got one
	woken  bool // it was woken for a place but has not asked for it yet
}

// portClaim says whether a NIC has a port.
type portClaim struct {
	has     bool      // a port is recorded or was seen
	may     bool      // a port may have been requested
	looked  bool      // the provider showed no port
	unclear time.Time // when the last call that may have created one ended
}

// claim returns whether a NIC has a port. A user's port that was not taken counts once a NIC has it recorded.
func (n *nic) claim() portClaim {
	o := n.observed
	return portClaim{
		has: o.Recorded != "" || !n.given && o.Port != nil, may: o.Unclear && (!n.given || !o.Looked),
		looked: o.Looked, unclear: n.history.unclear,
	}
}

func newQuotas(c clock.Clock, settle time.Duration, wake func(types.NamespacedName)) *quotas {
	return &quotas{clock: c, settle: settle, wake: wake, began: c.Now(), nics: map[types.UID]*quotaNIC{}, tenants: map[tenant]*quota{}}
}

// begin records that this process became leader.
func (q *quotas) begin(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.began = now
}

// of returns the quota of a tenant. q.mu is held.
func (q *quotas) of(t tenant) *quota {
	of := q.tenants[t]
	if of == nil {
		of = &quota{holders: map[types.UID]bool{}, waiting: map[types.UID]*quotaNIC{}}
		q.tenants[t] = of
	}
	return of
}

// update applies the state of a NIC. A NIC that cannot have a port gives up its place.
func (q *quotas) update(uid types.UID, n *nic) {
	q.mu.Lock()
	defer q.mu.Unlock()
	each := q.nics[uid]
	if each == nil {
		each = &quotaNIC{key: n.key, tenant: tenant{n.vpc, n.key.Namespace}}
		q.nics[uid] = each
	}
	each.port = n.claim()
	q.count(uid, each)
}

// count gives or takes a NIC's place, depending on what is known of its port. q.mu is held.
func (q *quotas) count(uid types.UID, each *quotaNIC) {
	if each.taking || each.port.has || each.port.may {
		q.of(each.tenant).holders[uid] = true
		return
	}
	q.vacate(uid, each)
}

// vacate gives up a NIC's place, and wakes waiting NICs. q.mu is held.
func (q *quotas) vacate(uid types.UID, each *quotaNIC) {
	of := q.of(each.tenant)
	if !of.holders[uid] {
		return
	}
	delete(of.holders, uid)
	q.wakeWaiting(of, wakes)
}

// wakeWaiting queues up to most waiting NICs. q.mu is held.
func (q *quotas) wakeWaiting(of *quota, most int) {
	for uid, each := range of.waiting {
		if most--; most < 0 {
			return
		}
		delete(of.waiting, uid)
		each.woken = true
		q.wake(each.key)
	}
}

func (q *quotas) forget(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	each := q.nics[uid]
	if each == nil {
		return
	}
	of := q.of(each.tenant)
	delete(of.waiting, uid)
	q.vacate(uid, each)
	if each.woken {
		q.wakeWaiting(of, 1)
	}
	if len(of.holders)+len(of.waiting) == 0 {
		delete(q.tenants, each.tenant)
	}
	delete(q.nics, uid)
}

// isComplete reports whether all PodNICs of a NIC's tenant are counted, including those from before this process; setComplete
// records that.
func (q *quotas) isComplete(uid types.UID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	each := q.nics[uid]
	return each != nil && q.of(each.tenant).complete
}

func (q *quotas) setComplete(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if each := q.nics[uid]; each != nil {
		q.of(each.tenant).complete = true
	}
}

// enter gives a NIC that is to get a port one of the tenant's most places, and reports whether it has one. A NIC with a port keeps its
// place. Requests of an earlier operator keep their place until it is known that they created no port.
func (q *quotas) enter(uid types.UID, most int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	each := q.nics[uid]
	if each == nil {
		return false
	}
	of := q.of(each.tenant)
	each.woken = false
	if !each.taking && !each.port.has && !q.isRoom(of, uid, most) {
		of.waiting[uid] = each
		return false
	}
	each.taking = true
	delete(of.waiting, uid)
	of.holders[uid] = true
	q.wakeWaiting(of, min(wakes, most-len(of.holders))) // there may be room for several
	return true
}

// isRoom reports whether fewer than most NICs other than this one have a place. q.mu is held.
func (q *quotas) isRoom(of *quota, beside types.UID, most int) bool {
	if len(of.holders) < most {
		return true
	}
	others := 0
	for uid := range of.holders {
		if !q.holds(q.nics[uid]) {
			delete(of.holders, uid)
		} else if uid != beside {
			if others++; others >= most {
				break
			}
		}
	}
	return others < most
}

// holds reports whether a NIC may have a port by now: a port requested long ago that has not been seen does not exist. q.mu is held.
func (q *quotas) holds(each *quotaNIC) bool {
	if each.taking || each.port.has {
		return true
	}
	late := q.clock.Now().Sub(nicplan.Later(q.began, each.port.unclear)) >= q.settle
	return each.port.may && (!each.port.looked || !late)
}

// ended records the end of the call for which a NIC entered. The NIC keeps its place if it then has a port; update follows.
func (q *quotas) ended(uid types.UID, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if each := q.nics[uid]; each != nil && !ok {
		each.taking = false
	}
}

// leave gives up the place of a NIC that gets no port after all.
func (q *quotas) leave(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if each := q.nics[uid]; each != nil {
		each.taking = false
		q.count(uid, each)
	}
}

// passOn wakes another NIC if this one was woken for a place and has not asked for it, because it has ended or was refused.
func (q *quotas) passOn(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if each := q.nics[uid]; each != nil && each.woken {
		each.woken = false
		q.wakeWaiting(q.of(each.tenant), 1)
	}
}

// settles returns how long a NIC without a place waits before it asks again: until it is known which ports an earlier process has
// requested, or for a long time.
func (q *quotas) settles() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if left := q.began.Add(q.settle).Sub(q.clock.Now()); left > 0 {
		return left
	}
	return 10 * time.Minute
}
