package vpcport

import (
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/vpcport/plan"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
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

	mu       sync.Mutex // guards all below
	began    time.Time
	nics     map[types.UID]*nic
	uids     map[types.NamespacedName]types.UID
	fresh    map[types.UID]bool            // PodNICs that this process made and has not seen yet
	underway map[types.NamespacedName]bool // PodNICs that it makes in this moment
	gates    map[gateKey]*gate
}

// nic is one of them.
type nic struct {
	key  types.NamespacedName
	vpc  string
	have plan.Have
	busy bool // a call is under way
	try  byte // of MAC addresses
	// anew tells that its addresses of before are another's by now.
	anew bool
	// replaced is the resourceVersion that this process's last write replaced: the
	// cache trails while it shows that.
	replaced string

	failed failure
	looks  int       // in a row that did not settle it
	polls  int       // since its port was last changed
	next   time.Time // before when it is neither looked for nor polled
	// unclear is when a call ended last of which it is not known what it did.
	unclear time.Time
	touched time.Time // when a call about it ended last
	// idle is since when no pod that lives has it; zero while one has.
	idle time.Time
	// gone is the UID of a pod that was found to be no more.
	gone string
	// lost is the ID of its port that was deleted behind the controller's back, until
	// there is another.
	lost string
}

// failure is how the last call went.
type failure struct {
	class   vpcport.Class
	message string // empty: it did not fail
	reason  string // of the condition, where it is not the class's
	times   int
	until   time.Time
}

// gateKey is what a gate holds up: new ports of a subnet or of a VPC, or all calls of it.
type gateKey struct {
	vpc    string
	scope  vpcport.Scope // ScopeSubnet, ScopeVPC or ScopeCaller
	subnet string        // IDs of the subnets that are asked for
}

// gate holds NICs up after a failure that all of them would meet. After the wait one of
// them asks, for all.
type gate struct {
	failure
	probe   types.UID // of the NIC that asks; empty: none does
	waiting map[types.NamespacedName]bool
}

func newBook(c clock.Clock, settle time.Duration) *book {
	return &book{
		clock: c, settle: settle, began: c.Now(), nics: map[types.UID]*nic{}, uids: map[types.NamespacedName]types.UID{},
		fresh: map[types.UID]bool{}, underway: map[types.NamespacedName]bool{}, gates: map[gateKey]*gate{},
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
	b.underway[key] = true
}

// made notes the UID of a PodNIC that this process made: nothing was ever asked for it. An
// empty one tells that it was not made.
func (b *book) made(key types.NamespacedName, uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.underway, key)
	if uid != "" {
		b.fresh[uid] = true
	}
}

// isMaking tells whether a PodNIC is made in this moment.
func (b *book) isMaking(key types.NamespacedName) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.underway[key]
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
		n = &nic{key: key, vpc: o.Spec.VPC, have: plan.Restored(kept, o.Status.PortID)}
		if b.fresh[o.UID] && kept && o.Status.PortID == "" {
			n.have.Unclear, n.have.Looked = false, true
		}
		delete(b.fresh, o.UID)
		b.nics[o.UID], b.uids[key] = n, o.UID
	}
	do(n)
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
	return n.key, true
}

// forget drops what is known of the PodNIC of a name.
func (b *book) forget(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(key)
}

// drop is forget. b.mu is held.
func (b *book) drop(key types.NamespacedName) {
	uid, has := b.uids[key]
	if !has {
		return
	}
	for _, g := range b.gates {
		delete(g.waiting, key)
		if g.probe == uid {
			g.probe = ""
		}
	}
	delete(b.nics, uid)
	delete(b.uids, key)
}

// gatesOf are those that a call of a NIC meets.
func gatesOf(vpc string, w plan.Want, k plan.Kind) []gateKey {
	keys := []gateKey{{vpc: vpc, scope: vpcport.ScopeCaller}}
	if k == plan.Create {
		keys = append(keys, gateKey{vpc: vpc, scope: vpcport.ScopeVPC}, gateKey{vpc: vpc, scope: vpcport.ScopeSubnet, subnet: subnetsOf(w)})
	}
	return keys
}

// subnetsOf are the subnets of which a NIC is to get any address.
func subnetsOf(w plan.Want) string {
	var ids []string
	for _, a := range w.Addresses {
		if !a.IP.IsValid() {
			ids = append(ids, a.SubnetID)
		}
	}
	return strings.Join(ids, " ")
}

// pass takes a NIC through its gates, and marks it busy; or says which failure holds it
// up, and until when.
func (b *book) pass(uid types.UID, w plan.Want, k plan.Kind) (held failure, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, now := b.nics[uid], b.clock.Now()
	if n == nil {
		return failure{}, false
	}
	var probes []*gate
	for _, key := range gatesOf(n.vpc, w, k) {
		g := b.gates[key]
		if g == nil {
			continue
		}
		if now.Before(g.until) || g.probe != "" && g.probe != uid {
			g.waiting[n.key] = true
			held = g.failure
			if !now.Before(held.until) {
				held.until = now.Add(lastPoll) // it is told when the one that asks has its answer
			}
			return held, false
		}
		probes = append(probes, g)
	}
	for _, g := range probes {
		g.probe = uid
	}
	n.busy = true
	return failure{}, true
}

// settled is what a call about a NIC came to, for it and for its gates. It returns the
// NICs that need not wait any longer. b.mu is held.
func (b *book) settled(uid types.UID, n *nic, w plan.Want, k plan.Kind, err error) (free []types.NamespacedName) {
	now := b.clock.Now()
	class := vpcport.ClassOf(err)
	policy := vpcport.PolicyOf(class)
	shut, scoped := scopeOf(n.vpc, w, k, policy)
	for _, key := range gatesOf(n.vpc, w, k) {
		g := b.gates[key]
		if g == nil || err != nil && scoped && key == shut {
			continue
		}
		if g.probe == uid || err == nil && k == plan.Create {
			free = append(free, b.lift(key)...)
		}
	}
	n.busy, n.touched = false, now
	if err == nil {
		n.failed = failure{}
		return free
	}
	n.failed.fail(now, class, err)
	if !scoped {
		return free
	}
	g := b.gates[shut]
	if g == nil {
		g = &gate{waiting: map[types.NamespacedName]bool{}}
		b.gates[shut] = g
	}
	if g.probe == uid || now.After(g.until) {
		g.fail(now, class, err)
		g.probe = ""
	}
	g.waiting[n.key] = true
	n.failed.until = g.until
	return free
}

// scopeOf is the gate that a failure shuts, if it is not the NIC's alone.
func scopeOf(vpc string, w plan.Want, k plan.Kind, p vpcport.Policy) (gateKey, bool) {
	switch p.Scope {
	case vpcport.ScopeCaller:
		return gateKey{vpc: vpc, scope: p.Scope}, p.First > 0
	case vpcport.ScopeVPC:
		return gateKey{vpc: vpc, scope: p.Scope}, k == plan.Create
	case vpcport.ScopeSubnet:
		return gateKey{vpc: vpc, scope: p.Scope, subnet: subnetsOf(w)}, k == plan.Create
	default:
		return gateKey{}, false
	}
}

// fail notes a failure; the wait doubles as long as it is of one class.
func (f *failure) fail(now time.Time, class vpcport.Class, err error) {
	if f.class != class {
		f.times = 0
	}
	policy := vpcport.PolicyOf(class)
	first, last := policy.First, policy.Last
	n := f.times
	if first == 0 {
		n -= freely
		first, last = time.Second, 30*time.Second
	}
	f.class, f.message = class, err.Error()
	f.times++
	f.until = now
	if n >= 0 {
		f.until = now.Add(retry.Jitter(retry.Delay(first, last, n)))
	}
}

// lift removes a gate, and returns whom it held up. b.mu is held.
func (b *book) lift(key gateKey) (free []types.NamespacedName) {
	g := b.gates[key]
	if g == nil {
		return nil
	}
	delete(b.gates, key)
	for waits := range g.waiting {
		free = append(free, waits)
	}
	for _, k := range free {
		if n := b.nics[b.uids[k]]; n != nil && n.failed.class == g.class {
			n.failed.until = time.Time{}
		}
	}
	return free
}

// open removes all gates of a VPC, whose object or provider is another by now.
func (b *book) open(vpc string) (free []types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.gates {
		if key.vpc == vpc {
			free = append(free, b.lift(key)...)
		}
	}
	return free
}

// room removes the gates of new ports of a VPC one of whose ports is gone. b.mu is held.
func (b *book) room(vpc string) (free []types.NamespacedName) {
	for key, g := range b.gates {
		if key.vpc == vpc && key.scope != vpcport.ScopeCaller && !vpcport.PolicyOf(g.class).Edit {
			free = append(free, b.lift(key)...)
		}
	}
	return free
}

// late tells whether a look that began at a moment shows all that was asked for before.
func (b *book) late(n *nic, at time.Time) bool {
	since := b.began
	if n.unclear.After(since) {
		since = n.unclear
	}
	return at.Sub(since) >= b.settle
}

// count is how many NICs are known. It takes the lock that all work needs.
func (b *book) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.nics)
}
