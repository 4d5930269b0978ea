package podnics

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

const (
	// firstPoll and lastPoll bound the time between two polls of a port, which doubles: a pod's
	// start may be late by as much.
	firstPoll = 500 * time.Millisecond
	lastPoll  = 10 * time.Second
	// pollGrid is what the times of polls are rounded up to, so that one call polls many ports.
	pollGrid = 250 * time.Millisecond
	// firstLook and lastLook bound the time between looks for a port that may still appear.
	firstLook = time.Second
	lastLook  = 15 * time.Second
	// freely is how often in a row a call is repeated at once, where that is the policy, before it
	// waits as well.
	freely = 3
)

// nic is what this process knows of one NIC besides its PodNIC. nicStates guards it.
type nic struct {
	key      types.NamespacedName
	vpc      string
	given    bool // its port is a user's
	observed nicplan.Observed
	attempts nicplan.Attempts
	call     callState
	history  portHistory
	// replaced is the resourceVersion that this process's last write replaced: the cache is stale
	// while it shows that.
	replaced string
	// unscheduled is since when it is to get a port while its pod has no node.
	unscheduled time.Time
	waits       waits // of its pod, for metrics
	// idle is since when no pod that lives has it; zero while one has.
	idle time.Time
	// gone is the UID of a pod that the API server has confirmed to be gone.
	gone string
}

// callState is whether a call about a NIC is in flight.
type callState struct {
	inFlight bool
	asked    time.Time // when it was asked for
	ended    time.Time // when the last one ended
}

// portHistory is what earlier ports of a NIC mean for the next.
type portHistory struct {
	macs    byte      // MAC addresses that others turned out to have
	readdr  bool      // its earlier addresses are another's by now
	lost    string    // ID of the port that somebody else deleted, until there is another
	unclear time.Time // when the last call ended of which it is not known whether it made a port
}

// nicStates are the NICs that this process knows. It tells quotas, backoffs and vanished of each
// change: their locks are taken under its own.
type nicStates struct {
	clock    clock.Clock
	settle   time.Duration
	quotas   *quotas
	backoffs *backoffs
	vanished *vanished

	mu      sync.Mutex // guards all below
	began   time.Time  // when this process began to lead
	nics    map[types.UID]*nic
	uids    map[types.NamespacedName]types.UID
	created map[types.UID]bool            // PodNICs that this process has made and not seen yet
	making  map[types.NamespacedName]bool // PodNICs that it is making; whether isMaking was asked
	placed  map[string]time.Time          // when a NIC of a VPC last was to get a port with a known host
}

// newNICStates returns states without NICs. NICs that wait for a place in their quota are passed to
// wake, which must not block.
func newNICStates(c clock.Clock, settle time.Duration, wake func(types.NamespacedName)) *nicStates {
	return &nicStates{
		clock: c, settle: settle, quotas: newQuotas(c, settle, wake), backoffs: newBackoffs(c), vanished: newVanished(c, settle),
		began: c.Now(), nics: map[types.UID]*nic{}, uids: map[types.NamespacedName]types.UID{},
		created: map[types.UID]bool{}, making: map[types.NamespacedName]bool{}, placed: map[string]time.Time{},
	}
}

// begin notes that this process begins to lead.
func (s *nicStates) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = s.clock.Now()
	s.quotas.begin(s.began)
}

// make creates a PodNIC by create, which returns its UID. Nothing was ever asked for such a NIC. It
// reports whether isMaking was asked meanwhile.
func (s *nicStates) make(key types.NamespacedName, create func() (types.UID, error)) (asked bool, err error) {
	s.mu.Lock()
	s.making[key] = false
	s.mu.Unlock()
	uid, err := create()
	s.mu.Lock()
	defer s.mu.Unlock()
	asked = s.making[key]
	delete(s.making, key)
	if err == nil {
		s.created[uid] = true
	}
	return asked, err
}

// isMaking reports whether a PodNIC is being created in this moment.
func (s *nicStates) isMaking(key types.NamespacedName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, is := s.making[key]
	if is {
		s.making[key] = true
	}
	return is
}

// with has do read and change the state of a PodNIC's NIC, which is new if there was none, or another
// of its name.
func (s *nicStates) with(o *v1alpha1.PodNIC, kept bool, do func(*nic)) {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, has := s.uids[key]; has && old != o.UID {
		s.drop(key)
	}
	n := s.nics[o.UID]
	if n == nil {
		n = s.add(key, o, kept)
	}
	do(n)
	s.quotas.update(o.UID, n)
}

// addListed adds a NIC of a PodNIC that a listing had, unless one of its name is known, and reports
// whether it did. The PodNIC may be gone by now.
func (s *nicStates) addListed(o *v1alpha1.PodNIC, kept bool) bool {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.uids[key]; known {
		return false
	}
	s.quotas.update(o.UID, s.add(key, o, kept))
	return true
}

// add adds a NIC. s.mu is held.
func (s *nicStates) add(key types.NamespacedName, o *v1alpha1.PodNIC, kept bool) *nic {
	n := &nic{key: key, vpc: o.Spec.VPC, given: o.Spec.PortID != "", observed: nicplan.Restored(kept, o.Status.PortID)}
	if s.created[o.UID] && kept && o.Status.PortID == "" {
		n.observed.Unclear, n.observed.Looked = false, true
	}
	delete(s.created, o.UID)
	s.vanished.remove(o.UID) // etcd was restored once more
	s.nics[o.UID], s.uids[key] = n, o.UID
	return n
}

// edit has do change the state of a NIC, if there is one still.
func (s *nicStates) edit(uid types.UID, do func(*nic)) (key types.NamespacedName, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nics[uid]
	if n == nil {
		return key, false
	}
	do(n)
	s.quotas.update(uid, n)
	return n.key, true
}

// forget drops the NIC of the PodNIC of a name, and returns its UID.
func (s *nicStates) forget(key types.NamespacedName) (uid types.UID, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid, known = s.uids[key]
	s.drop(key)
	return uid, known
}

// drop is forget. s.mu is held.
func (s *nicStates) drop(key types.NamespacedName) {
	uid, has := s.uids[key]
	if !has {
		return
	}
	n := s.nics[uid]
	delete(s.nics, uid)
	delete(s.uids, key)
	s.quotas.forget(uid)
	s.backoffs.forget(uid, key)
	if n.leaves(uid) {
		s.vanished.add(uid, n.vpc, n.call.inFlight)
	}
}

// late reports whether a look that began at a moment shows all that was asked for before. s.mu is held.
func (s *nicStates) late(n *nic, at time.Time) bool {
	return at.Sub(nicplan.Later(s.began, n.history.unclear)) >= s.settle
}

// scheduling is what is known of the scheduling of the pod of a NIC without a node.
func (s *nicStates) scheduling(n nic) nicplan.Scheduling {
	s.mu.Lock()
	defer s.mu.Unlock()
	return nicplan.Scheduling{Pending: true, Since: n.unscheduled, Placed: s.placed[n.vpc]}
}

// noteCreating records that a NIC is to get a port now, and whether that waits for its pod's node.
func (s *nicStates) noteCreating(uid types.UID, pending, hasHost bool) {
	s.edit(uid, func(n *nic) {
		switch now := s.clock.Now(); {
		case !pending:
			n.unscheduled = time.Time{}
			if hasHost {
				s.placed[n.vpc] = now
			}
		case n.unscheduled.IsZero():
			n.unscheduled = now
		}
	})
}

// resume ends the waits of NICs that waited for a failure which is over now.
func (s *nicStates) resume(waiters []waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range waiters {
		if n := s.nics[s.uids[w.key]]; n != nil && n.attempts.Failed.Class == w.class {
			n.attempts.Failed.Until = time.Time{}
		}
	}
}

// ports are the IDs of the ports that NICs have, as far as this process knows.
func (s *nicStates) ports() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]bool{}
	for _, n := range s.nics {
		if n.observed.Port != nil {
			ids[n.observed.Port.ID] = true
		}
	}
	return ids
}

func (s *nicStates) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.nics)
}

func (s *nicStates) has(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasLocked(uid)
}

func (s *nicStates) hasLocked(uid types.UID) bool { return s.nics[uid] != nil || s.created[uid] }

// compare finds drift: it returns the NICs of a VPC whose ports a listing shows to be other than they
// were seen last, and has those looked at. NICs about which a call was made since the listing
// began are left out.
func (s *nicStates) compare(vpc string, listed map[types.UID][]vpcport.Port, began time.Time) (other []types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, n := range s.nics {
		if n.vpc != vpc || n.call.inFlight || !n.observed.Looked || !n.call.ended.Before(began) {
			continue
		}
		ports, port := listed[uid], n.observed.Port
		if port == nil && len(ports) == 0 || port != nil && len(ports) == 1 && same(*port, ports[0]) {
			continue
		}
		n.observed.Looked, n.attempts.Looks, n.attempts.Failed = false, 0, nicplan.Failure{}
		s.quotas.update(uid, n)
		other = append(other, n.key)
	}
	return other
}

// same reports whether a port has not changed in what matters.
func same(a, b vpcport.Port) bool {
	return a.ID == b.ID && a.Device == b.Device && a.Owner == b.Owner && a.Host == b.Host && a.Status == b.Status &&
		a.Binding == b.Binding && a.MAC.String() == b.MAC.String() && slices.Equal(a.Addresses, b.Addresses) &&
		slices.Equal(slices.Sorted(slices.Values(a.Groups)), slices.Sorted(slices.Values(b.Groups)))
}

// strays counts listed ports, by PodNIC, that should not exist.
func (s *nicStates) strays(listed map[types.UID][]vpcport.Port) (found strays) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, ports := range listed {
		if s.hasLocked(uid) {
			found.doubles += len(ports) - 1
		} else {
			found.orphans += len(ports)
		}
	}
	return found
}

// longestWaits are how long the pods of each VPC with NICs have waited.
func (s *nicStates) longestWaits() map[string]longest {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, out := s.clock.Now(), map[string]longest{}
	since := func(t time.Time) time.Duration {
		if t.IsZero() {
			return 0
		}
		return now.Sub(t)
	}
	for _, n := range s.nics {
		l := out[n.vpc]
		out[n.vpc] = longest{max(l.bound, since(n.waits.bound)), max(l.plugged, since(n.waits.plugged))}
	}
	return out
}

// learn takes in what the reply to a call says of when to make the next.
func (n *nic) learn(c call, r nicplan.Reply, now time.Time) {
	a, class, recorded := &n.attempts, vpcport.ClassOf(r.Err), c.observed.Recorded
	a.Asked = c.desired
	a.Failed.Reason = ""
	if r.Err == nil && a.Failed.Message != "" {
		a.Failed.Reason = reasonBinding
	}
	switch {
	case r.Err != nil && c.step.Kind == nicplan.Create && n.observed.Unclear:
		n.history.unclear = now
	case class == vpcport.AddressTaken:
		n.history.readdr = true
	case class == vpcport.PortGone && recorded != "":
		n.history.lost = recorded
	}
	if r.Err != nil {
		return
	}
	switch c.step.Kind {
	case nicplan.Look:
		if n.observed.Port == nil && recorded != "" {
			n.history.lost = recorded
		}
		a.NotBefore = now.Add(retry.Delay(firstLook, lastLook, a.Looks))
		a.Looks++
	case nicplan.Poll:
		a.Polls++
		a.NotBefore = onGrid(now.Add(retry.Delay(firstPoll, lastPoll, a.Polls)))
	default:
		a.Looks, a.Polls = 0, 0
		a.NotBefore = onGrid(now.Add(firstPoll))
	}
}

// onGrid rounds a time up to pollGrid.
func onGrid(t time.Time) time.Time { return t.Add(pollGrid - 1).Truncate(pollGrid) }
