package clients

import (
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
)

// book is what is known of all Egresses and their clients.
type book struct {
	clock clock.Clock

	mu       sync.Mutex // guards all below
	open     bool       // it is filled
	egresses clientplan.Egresses
	accounts map[membership.Ref]*account
	pods     map[types.NamespacedName]entry
	// served are UIDs of pods that slices have, while the book is filled.
	served map[string]bool
}

// entry is what a pod is to its Egresses.
type entry struct {
	uid       string
	since     time.Time // as scene.since
	standings []standing
}

// standing is how far a client has come with one Egress.
type standing struct {
	ref membership.Ref
	uid string // of the Egress; empty where there is none
	// client is what gateways serve; nil: they do not.
	client *v1alpha1.ServedClient
	// refused is the reason why the pod may not use it, stuck the one why it is not
	// served although it may; empty: it is not refused, or comes on.
	refused, stuck string
}

// account is that of an Egress, or of one that is gone and has slices left.
type account struct {
	uid            string // empty: there is no such Egress
	ledger         *clientplan.Ledger
	refused, stuck map[types.NamespacedName]string
	// slices are those at the API server, deleted those that this process deleted, by
	// name.
	slices  map[string]found
	deleted map[string]types.UID
	// stale are slices of another Egress of the name.
	stale map[string]types.UID
	// wrote is when slices were written last, said when the status was.
	wrote, said time.Time
	// status is the resource version of the Egress since this process wrote its status.
	status string
	// noConsent tells whether it selects a namespace that does not consent; nil: it is to be found
	// out.
	noConsent *bool
	// since is when clients came that are in no slice yet, by UID.
	since map[string]time.Time
}

// found is a slice at the API server.
type found struct {
	uid     types.UID
	version string // resource version
}

func newBook(clk clock.Clock, berthNamespace string) *book {
	return &book{clock: clk, egresses: clientplan.NewEgresses(berthNamespace, nil), accounts: map[membership.Ref]*account{}, pods: map[types.NamespacedName]entry{}}
}

func newAccount(uid string) *account {
	return &account{
		uid: uid, ledger: clientplan.NewLedger(), refused: map[types.NamespacedName]string{}, stuck: map[types.NamespacedName]string{},
		slices: map[string]found{}, deleted: map[string]types.UID{}, stale: map[string]types.UID{}, since: map[string]time.Time{},
	}
}

// known are all Egresses.
func (b *book) known() clientplan.Egresses {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.egresses
}

// learn takes in an Egress, nil if there is none of the name, and returns all as they were and as
// they are.
func (b *book) learn(ref membership.Ref, now *clientplan.Egress) (before, after clientplan.Egresses) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before = b.egresses
	if now != before.Get(ref) {
		b.egresses = before.With(ref, now)
		b.account(ref)
	}
	return before, b.egresses
}

// grant takes in whether an administrator lets Egresses of a namespace select pods of others, and
// returns all as they were and as they are.
func (b *book) grant(namespace string, granted bool) (before, after clientplan.Egresses) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before = b.egresses
	b.egresses = before.Granting(namespace, granted)
	return before, b.egresses
}

// lookForConsent has it found out anew whether namespaces do not consent to Egresses.
func (b *book) lookForConsent(refs []membership.Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ref := range refs {
		if a := b.accounts[ref]; a != nil {
			a.noConsent = nil
		}
	}
}

// account has an account of an Egress as it is known, made anew if it is another of its name,
// where there is something to account for. The lock is held.
func (b *book) account(ref membership.Ref) {
	uid := ""
	if e := b.egresses.Get(ref); e != nil {
		uid = e.UID
	}
	a := b.accounts[ref]
	switch {
	case a == nil && uid == "":
		return
	case a == nil:
		a = newAccount(uid)
		b.accounts[ref] = a
	case a.uid != uid:
		next := newAccount(uid)
		next.stale, next.deleted = a.stale, a.deleted
		for name, s := range a.slices {
			next.stale[name] = s.uid
		}
		a = next
		b.accounts[ref] = a
	}
	if a.uid == "" && len(a.stale) == 0 {
		delete(b.accounts, ref)
		return
	}
}

// note takes in what a pod is to its Egresses, and returns those of which a slice or the
// counts differ by that.
func (b *book) note(key types.NamespacedName, now entry) (touched []membership.Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.noteLocked(key, now)
}

func (b *book) noteLocked(key types.NamespacedName, now entry) (touched []membership.Ref) {
	before := b.pods[key]
	if len(now.standings) == 0 {
		delete(b.pods, key)
	} else {
		b.pods[key] = now
	}
	is := map[membership.Ref]bool{}
	for _, s := range now.standings {
		is[s.ref] = true
	}
	for _, s := range before.standings {
		if a := b.accounts[s.ref]; a != nil && (!is[s.ref] || before.uid != now.uid) && a.leave(key, before.uid) {
			touched = append(touched, s.ref)
		}
	}
	for _, s := range now.standings {
		if a := b.accounts[s.ref]; a != nil && a.uid == s.uid && a.take(key, now.uid, s, b.clock.Now()) {
			touched = append(touched, s.ref)
		}
	}
	return touched
}

// leave takes a pod out, and tells whether anything differs by that.
func (a *account) leave(key types.NamespacedName, uid string) bool {
	differs := a.ledger.Remove(uid) || a.refused[key] != "" || a.stuck[key] != ""
	delete(a.refused, key)
	delete(a.stuck, key)
	delete(a.since, uid)
	return differs
}

// take takes in what a pod is, and tells whether anything differs by that.
func (a *account) take(key types.NamespacedName, uid string, s standing, now time.Time) (differs bool) {
	if s.client == nil {
		differs = a.ledger.Remove(uid)
		delete(a.since, uid)
	} else if was := a.ledger.Has(uid); a.ledger.Set(*s.client) {
		differs = true
		if !was {
			a.since[uid] = now
		}
	}
	return set(a.stuck, key, s.stuck) || set(a.refused, key, s.refused) || differs
}

// set gives a key a value, or takes the key out where that is empty, and tells whether
// that differs.
func set(of map[types.NamespacedName]string, key types.NamespacedName, value string) bool {
	before := of[key]
	if value == "" {
		delete(of, key)
	} else {
		of[key] = value
	}
	return before != value
}

// isServed is an isServed.
func (b *book) isServed(key types.NamespacedName, uid string) (bool, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.isServedLocked(key, uid)
}

func (b *book) isServedLocked(key types.NamespacedName, uid string) (bool, time.Time) {
	e := b.pods[key]
	if e.uid != uid {
		return b.served[uid], time.Time{}
	}
	return b.served[uid] || slices.ContainsFunc(e.standings, func(s standing) bool { return s.client != nil }), e.since
}

// seen takes in a slice as the cache has it. One that is older than what this process wrote
// is left out.
func (b *book) seen(ref membership.Ref, o *v1alpha1.EgressClientSlice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seenLocked(ref, o)
}

func (b *book) seenLocked(ref membership.Ref, o *v1alpha1.EgressClientSlice) {
	a := b.accounts[ref]
	if a == nil {
		a = newAccount("")
		b.accounts[ref] = a
	}
	if a.deleted[o.Name] == o.UID {
		return
	}
	if a.uid == "" || uidOfOwner(o) != a.uid {
		a.stale[o.Name] = o.UID
		return
	}
	have, known := a.slices[o.Name]
	if known && !newer(o.ResourceVersion, have.version) {
		return
	}
	a.slices[o.Name] = found{o.UID, o.ResourceVersion}
	a.ledger.Found(o.Name, o.Clients)
}

// newer tells whether a resource version is of a later write than another.
func newer(a, b string) bool {
	if b == "" {
		return true
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil && a != b || c > 0
}

// lost takes in that a slice is not there any more.
func (b *book) lost(ref membership.Ref, name string, uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[ref]
	if a == nil {
		return
	}
	if a.deleted[name] == uid {
		delete(a.deleted, name)
	}
	if a.stale[name] == uid {
		delete(a.stale, name)
	}
	if a.slices[name].uid == uid {
		delete(a.slices, name)
		a.ledger.Lost(name)
	}
	b.account(ref)
}

// due are the slices of an Egress that are to be written now, what is at the API server of
// each, and those of others of its name that are to go. If it is not time yet, wait
// is how long to wait.
func (b *book) due(ref membership.Ref) (writes []clientplan.Write, have map[string]found, stale map[string]types.UID, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[ref]
	if a == nil {
		return nil, nil, nil, 0
	}
	if a.uid != "" {
		a.ledger.Place(func(taken func(string) bool) string { return freshName(ref, a.uid, taken) })
		writes = a.ledger.Due()
	}
	if len(writes)+len(a.stale) == 0 {
		return nil, nil, nil, 0
	}
	now := b.clock.Now()
	if wait := a.wrote.Add(betweenWrites).Sub(now); wait > 0 {
		return nil, nil, nil, wait
	}
	a.wrote = now
	if a.uid != "" {
		a.ledger.Merge()
		writes = a.ledger.Due()
	}
	return writes, maps.Clone(a.slices), maps.Clone(a.stale), 0
}

// freshName is a name for a slice that no other slice has, nor one of another Egress of
// the name.
func freshName(ref membership.Ref, uid string, taken func(string) bool) string {
	h := fnv.New32a()
	h.Write([]byte(uid))
	prefix := ref.Name + "-" + strconv.FormatUint(uint64(h.Sum32())%(36*36*36*36), 36) + "-"
	for n := 0; ; n++ {
		if name := prefix + strconv.Itoa(n); !taken(name) {
			return name
		}
	}
}

// written takes in that a slice was written, or deleted where it has no clients. It
// returns how long clients had waited that came into it by that.
func (b *book) written(ref membership.Ref, uid string, w clientplan.Write, is found) (waited []time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[ref]
	if a == nil || a.uid != uid {
		return nil
	}
	if len(w.Clients) == 0 {
		a.deleted[w.Name] = is.uid
		delete(a.slices, w.Name)
	} else if have := a.slices[w.Name]; newer(is.version, have.version) {
		a.slices[w.Name] = is
	}
	a.ledger.Written(w)
	for _, c := range w.Clients {
		if since, is := a.since[c.UID]; is {
			waited = append(waited, b.clock.Now().Sub(since))
			delete(a.since, c.UID)
		}
	}
	return waited
}

// removed takes in that a slice of another Egress of a name was deleted.
func (b *book) removed(ref membership.Ref, name string, uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.accounts[ref]; a != nil && a.stale[name] == uid {
		a.deleted[name] = uid
		delete(a.stale, name)
	}
}

// corrected takes in that a slice is at the API server otherwise than this process believed:
// as it is there, or, zero, not at all.
func (b *book) corrected(ref membership.Ref, name string, is found) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[ref]
	if a == nil {
		return
	}
	if is == (found{}) {
		delete(a.slices, name)
		a.ledger.Lost(name)
		return
	}
	a.slices[name] = is
}

// count is how many pods are known.
func (b *book) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pods)
}

// counts are how many clients and slices an Egress has.
type counts struct{ served, stuck, refused, slices int }

// counts are those of all Egresses.
func (b *book) counts() map[membership.Ref]counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[membership.Ref]counts, len(b.accounts))
	for ref, a := range b.accounts {
		out[ref] = counts{a.ledger.Len(), len(a.stuck), len(a.refused), a.ledger.Slices() + len(a.stale)}
	}
	return out
}
