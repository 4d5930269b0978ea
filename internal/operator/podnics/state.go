package podnics

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/retry"
)

const (
	// firstPoll and lastPoll bound the time between two questions how a port does,
	// which doubles: as long as a pod's start may be late for it.
	firstPoll = 500 * time.Millisecond
	lastPoll  = 10 * time.Second
	// pollGrid is what the moments of polls are rounded up to, so that many ports are
	// asked about in one call.
	pollGrid = 250 * time.Millisecond
	// firstLook and lastLook bound the time between looks for what may come yet.
	firstLook = time.Second
	lastLook  = 15 * time.Second
	// freely is how often in a row something is asked for again at once, where that is
	// the policy, before it waits as well.
	freely = 3
)

// book is what is known of each NIC besides its PodNIC.
type book struct {
	clock  clock.Clock
	settle time.Duration
	again  func(types.NamespacedName) // has a NIC reconciled; takes no lock of the book's

	mu       sync.Mutex // guards all below
	tenants  map[tenant]*places
	began    time.Time
	nics     map[types.UID]*nic
	uids     map[types.NamespacedName]types.UID
	fresh    map[types.UID]bool            // PodNICs that this process made and has not seen yet
	underway map[types.NamespacedName]bool // PodNICs that it makes in this moment; whether they were asked for
	gates    map[gateKey]*gate
	// abandoned are the PodNICs that vanished and may have ports still; wake is set when there is one more.
	abandoned map[types.UID]abandoned
	wake      retry.Signal
	placed    map[string]time.Time // when a NIC of a VPC last was to have a port whose host was known
}

// nic is one of them.
type nic struct {
	key   types.NamespacedName
	vpc   string
	given bool // its port is a user's
	taken bool // it is to get a port in this moment, or has just got one
	woken bool // it was woken for a place, and has not looked whether it gets one
	have  nicplan.Have
	busy  bool // a call is under way
	try   byte // of MAC addresses
	// anew tells that its addresses of before are another's by now.
	anew bool
	// replaced is the resourceVersion that this process's last write replaced: the
	// cache trails while it shows that.
	replaced string

	waits  waits // of its pod, for metrics
	failed failure
	asked  nicplan.Want // in vain, when it failed
	looks  int          // in a row that did not settle it
	polls  int          // since its port was last changed
	next   time.Time    // before when it is neither looked for nor polled
	// unclear is when a call ended last of which it is not known what it did.
	unclear time.Time
	called  time.Time // when the call about it that is under way was asked for
	touched time.Time // when a call about it ended last
	// unplaced is since when it is to have a port while its pod has no node.
	unplaced time.Time
	// idle is since when no pod that lives has it; zero while one has.
	idle time.Time
	// gone is the UID of a pod that was found to be no more.
	gone string
	// lost is the ID of its port that was deleted behind the controller's back, until
	// there is another.
	lost string
}

func newBook(c clock.Clock, settle time.Duration) *book {
	return &book{
		again: func(types.NamespacedName) {}, tenants: map[tenant]*places{},
		clock: c, settle: settle, began: c.Now(), nics: map[types.UID]*nic{}, uids: map[types.NamespacedName]types.UID{},
		fresh: map[types.UID]bool{}, underway: map[types.NamespacedName]bool{}, gates: map[gateKey]*gate{},
		placed: map[string]time.Time{}, abandoned: map[types.UID]abandoned{}, wake: retry.NewSignal(),
	}
}

// begin is when this process begins to lead.
func (b *book) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.began = b.clock.Now()
}

// making notes that a PodNIC is about to be made; made is to follow.
func (b *book) making(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.underway[key] = false
}

// made notes the UID of a PodNIC that this process made: nothing was ever asked for it. An
// empty one tells that it was not made. It tells whether isMaking was asked meanwhile.
func (b *book) made(key types.NamespacedName, uid types.UID) (asked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked = b.underway[key]
	delete(b.underway, key)
	if uid != "" {
		b.fresh[uid] = true
	}
	return asked
}

// isMaking tells whether a PodNIC is made in this moment.
func (b *book) isMaking(key types.NamespacedName) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, is := b.underway[key]
	if is {
		b.underway[key] = true
	}
	return is
}

// with has do read and change what is known of a PodNIC's NIC, which is new if there was
// none, or another of its name. Do must be quick.
func (b *book) with(o *v1alpha1.PodNIC, kept bool, do func(*nic)) {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	b.mu.Lock()
	defer b.mu.Unlock()
	if old, has := b.uids[key]; has && old != o.UID {
		b.drop(key)
	}
	n := b.nics[o.UID]
	if n == nil {
		n = b.add(key, o, kept)
	}
	do(n)
	b.count(o.UID, n)
}

// add begins to know a NIC. b.mu is held.
func (b *book) add(key types.NamespacedName, o *v1alpha1.PodNIC, kept bool) *nic {
	n := &nic{key: key, vpc: o.Spec.VPC, given: o.Spec.PortID != "", have: nicplan.Restored(kept, o.Status.PortID)}
	if b.fresh[o.UID] && kept && o.Status.PortID == "" {
		n.have.Unclear, n.have.Looked = false, true
	}
	delete(b.fresh, o.UID)
	delete(b.abandoned, o.UID) // etcd was restored once more
	b.nics[o.UID], b.uids[key] = n, o.UID
	return n
}

// addListed has a NIC known of a PodNIC that a listing had, unless one of its name is. It is reconciled: the
// PodNIC may be gone by now.
func (b *book) addListed(o *v1alpha1.PodNIC, kept bool) {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.uids[key]; known {
		return
	}
	b.count(o.UID, b.add(key, o, kept))
	b.again(key)
}

// edit has do change what is known of a NIC, if there is one still.
func (b *book) edit(uid types.UID, do func(*nic)) (key types.NamespacedName, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.nics[uid]
	if n == nil {
		return key, false
	}
	do(n)
	b.count(uid, n)
	return n.key, true
}

// forget drops what is known of the PodNIC of a name, and returns its UID.
func (b *book) forget(key types.NamespacedName) (uid types.UID, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	uid, known = b.uids[key]
	b.drop(key)
	return uid, known
}

// drop is forget. b.mu is held.
func (b *book) drop(key types.NamespacedName) {
	uid, has := b.uids[key]
	if !has {
		return
	}
	b.uncount(uid, b.nics[uid])
	for _, g := range b.gates {
		delete(g.waiting, key)
		if g.probe == uid {
			g.probe = ""
		}
	}
	if n := b.nics[uid]; n.leaves(uid) {
		b.abandoned[uid] = abandoned{vpc: n.vpc, at: b.clock.Now(), busy: n.busy}
		b.wake.Set()
	}
	delete(b.nics, uid)
	delete(b.uids, key)
}

// late tells whether a look that began at a moment shows all that was asked for before.
func (b *book) late(n *nic, at time.Time) bool {
	since := b.began
	if n.unclear.After(since) {
		since = n.unclear
	}
	return at.Sub(since) >= b.settle
}

// ports are the IDs of those that NICs have, as far as this process knows.
func (b *book) ports() map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := map[string]bool{}
	for _, n := range b.nics {
		if n.have.Port != nil {
			ids[n.have.Port.ID] = true
		}
	}
	return ids
}

// known is how many NICs are known. It takes the lock that all work needs.
func (b *book) known() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.nics)
}
