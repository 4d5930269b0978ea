package clients

import (
	"context"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
	"github.com/berthnet/berth/internal/operator/objects"
)

// state is what is known of all Egresses and their clients. All of it follows from objects, so an
// operator that starts writes only what differs.
type state struct {
	clock          clock.Clock
	berthNamespace string // Berth's own; empty: unknown

	mu       sync.Mutex // guards all below
	filled   bool
	egresses clientplan.Egresses
	of       map[membership.Ref]*egressState
	pods     map[types.NamespacedName]podUses
	// served are the UIDs of the pods in slices, while the state is filled.
	served map[string]bool
}

// podUses are a pod's uses of Egresses.
type podUses struct {
	uid   string
	since time.Time // as in podView
	uses  []use
}

// use is how far a pod has come with one Egress.
type use struct {
	ref membership.Ref
	uid string // of the Egress; empty: it does not exist
	// client is what gateways serve; nil: they do not.
	client *v1alpha1.ServedClient
	// refused is the reason why the pod may not use the Egress, and waiting the reason why it
	// has not been served for a while although it may; empty: there is none.
	refused, waiting string
}

// egressState is what is known of an Egress, or of one that is gone and has slices left.
type egressState struct {
	uid              string // empty: there is no such Egress
	placed           *clientplan.Slices
	refused, waiting map[types.NamespacedName]string
	// slices are those at the API server, and deleted those that this process deleted, by
	// name.
	slices  map[string]sliceVersion
	deleted map[string]types.UID
	// stale are slices of another Egress of the name.
	stale map[string]types.UID
	// wroteSlices and wroteStatus are when the slices, and the counts in the status, were last
	// written, and version is the resource version of the Egress since this process wrote its
	// status.
	wroteSlices, wroteStatus time.Time
	version                  string
	// lacksConsent reports whether it selects a namespace that does not consent; nil: not found
	// out yet.
	lacksConsent *bool
	// since is when clients came that are in no slice yet, by UID.
	since map[string]time.Time
}

// sliceVersion is a slice at the API server.
type sliceVersion struct {
	uid     types.UID
	version string // resource version
}

func newState(clk clock.Clock, berthNamespace string) *state {
	return &state{clock: clk, berthNamespace: berthNamespace, egresses: clientplan.NewEgresses(berthNamespace, nil), of: map[membership.Ref]*egressState{}, pods: map[types.NamespacedName]podUses{}}
}

func newEgressState(uid string) *egressState {
	return &egressState{
		uid: uid, placed: clientplan.NewSlices(), refused: map[types.NamespacedName]string{}, waiting: map[types.NamespacedName]string{},
		slices: map[string]sliceVersion{}, deleted: map[string]types.UID{}, stale: map[string]types.UID{}, since: map[string]time.Time{},
	}
}

// fill reads everything from the cache once, before anything else is done: no slice is
// written from a part of it. It returns at once when that was done.
func (s *state) fill(ctx context.Context, r *reader) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.filled {
		return nil
	}
	namespaces, err := r.namespaces(ctx)
	if err != nil {
		return err
	}
	egresses, err := objects.List[v1alpha1.EgressList](ctx, r.client)
	if err != nil {
		return err
	}
	clients, err := objects.List[v1alpha1.EgressClientList](ctx, r.client)
	if err != nil {
		return err
	}
	slices, err := objects.List[v1alpha1.EgressClientSliceList](ctx, r.client)
	if err != nil {
		return err
	}
	all := make([]*clientplan.Egress, len(egresses.Items))
	for i := range egresses.Items {
		all[i] = clientplan.NewEgress(&egresses.Items[i])
	}
	s.egresses = clientplan.NewEgresses(s.berthNamespace, all)
	for _, n := range namespaces {
		s.egresses = s.egresses.Granting(n.Name, n.Granted())
	}
	for _, e := range all {
		s.updateEgress(e.Ref)
	}
	s.served = map[string]bool{}
	for i := range slices.Items {
		for _, c := range slices.Items[i].Clients {
			s.served[c.UID] = true
		}
	}
	for i := range clients.Items {
		o := &clients.Items[i]
		p, err := r.pod(ctx, client.ObjectKeyFromObject(o))
		if err != nil {
			return err
		}
		v, err := r.view(ctx, p, r.namespace(ctx, o.Namespace), o, s.egresses, s.isServedLocked)
		if err != nil {
			return err
		}
		s.setPodLocked(client.ObjectKeyFromObject(o), v.uses(s.clock.Now()))
	}
	for i := range slices.Items {
		s.observeSliceLocked(refOfSlice(&slices.Items[i]), &slices.Items[i])
	}
	for _, a := range s.of {
		clear(a.since) // these clients came while others led
	}
	s.served, s.filled = nil, true
	return nil
}

func (s *state) all() clientplan.Egresses {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.egresses
}

// setEgress takes an Egress, nil if none has the name, and returns all Egresses as they were and
// as they are.
func (s *state) setEgress(ref membership.Ref, now *clientplan.Egress) (before, after clientplan.Egresses) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.egresses
	if now != before.Get(ref) {
		s.egresses = before.With(ref, now)
		s.updateEgress(ref)
	}
	return before, s.egresses
}

// setGrant takes whether an administrator lets Egresses of a namespace select pods of others, and
// returns all Egresses as they were and as they are.
func (s *state) setGrant(namespace string, granted bool) (before, after clientplan.Egresses) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.egresses
	s.egresses = before.Granting(namespace, granted)
	return before, s.egresses
}

// forgetConsent has it found out again whether a namespace lacks consent for Egresses.
func (s *state) forgetConsent(refs []membership.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range refs {
		if a := s.of[ref]; a != nil {
			a.lacksConsent = nil
		}
	}
}

// updateEgress makes, replaces or drops the state of an Egress: it is replaced if another
// Egress has the name now, whose slices are stale then, and dropped once neither an Egress nor
// slices are left. s.mu is held.
func (s *state) updateEgress(ref membership.Ref) {
	uid := ""
	if e := s.egresses.Get(ref); e != nil {
		uid = e.UID
	}
	a := s.of[ref]
	switch {
	case a == nil && uid == "":
		return
	case a == nil:
		a = newEgressState(uid)
		s.of[ref] = a
	case a.uid != uid:
		next := newEgressState(uid)
		next.stale, next.deleted = a.stale, a.deleted
		for name, is := range a.slices {
			next.stale[name] = is.uid
		}
		a = next
		s.of[ref] = a
	}
	if a.uid == "" && len(a.stale) == 0 {
		delete(s.of, ref)
		return
	}
}

// setPod takes a pod's uses of Egresses, and returns the Egresses whose slices or counts change by
// that.
func (s *state) setPod(key types.NamespacedName, now podUses) (touched []membership.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.setPodLocked(key, now)
}

func (s *state) setPodLocked(key types.NamespacedName, now podUses) (touched []membership.Ref) {
	before := s.pods[key]
	if len(now.uses) == 0 {
		delete(s.pods, key)
	} else {
		s.pods[key] = now
	}
	is := map[membership.Ref]bool{}
	for _, u := range now.uses {
		is[u.ref] = true
	}
	for _, u := range before.uses {
		if a := s.of[u.ref]; a != nil && (!is[u.ref] || before.uid != now.uid) && a.removePod(key, before.uid) {
			touched = append(touched, u.ref)
		}
	}
	for _, u := range now.uses {
		if a := s.of[u.ref]; a != nil && a.uid == u.uid && a.setPod(key, now.uid, u, s.clock.Now()) {
			touched = append(touched, u.ref)
		}
	}
	return touched
}

// removePod drops a pod, and reports whether anything changed.
func (a *egressState) removePod(key types.NamespacedName, uid string) bool {
	differs := a.placed.Remove(uid) || a.refused[key] != "" || a.waiting[key] != ""
	delete(a.refused, key)
	delete(a.waiting, key)
	delete(a.since, uid)
	return differs
}

// setPod takes a pod's use, and reports whether anything changed.
func (a *egressState) setPod(key types.NamespacedName, uid string, s use, now time.Time) (differs bool) {
	if s.client == nil {
		differs = a.placed.Remove(uid)
		delete(a.since, uid)
	} else if was := a.placed.Has(uid); a.placed.Set(*s.client) {
		differs = true
		if !was {
			a.since[uid] = now
		}
	}
	return set(a.waiting, key, s.waiting) || set(a.refused, key, s.refused) || differs
}

// set gives a key a value, or deletes the key if the value is empty, and reports whether anything
// changed.
func set(of map[types.NamespacedName]string, key types.NamespacedName, value string) bool {
	before := of[key]
	if value == "" {
		delete(of, key)
	} else {
		of[key] = value
	}
	return before != value
}

func (s *state) isServed(key types.NamespacedName, uid string) (bool, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isServedLocked(key, uid)
}

func (s *state) isServedLocked(key types.NamespacedName, uid string) (bool, time.Time) {
	e := s.pods[key]
	if e.uid != uid {
		return s.served[uid], time.Time{}
	}
	return s.served[uid] || slices.ContainsFunc(e.uses, func(u use) bool { return u.client != nil }), e.since
}

// observeSlice takes a slice as the cache has it, unless it is older than what this process wrote.
func (s *state) observeSlice(ref membership.Ref, o *v1alpha1.EgressClientSlice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observeSliceLocked(ref, o)
}

func (s *state) observeSliceLocked(ref membership.Ref, o *v1alpha1.EgressClientSlice) {
	a := s.of[ref]
	if a == nil {
		a = newEgressState("")
		s.of[ref] = a
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
	a.slices[o.Name] = sliceVersion{o.UID, o.ResourceVersion}
	a.placed.Observe(o.Name, o.Clients)
}

// newer reports whether a resource version is of a later write than another, which may be empty.
func newer(a, b string) bool {
	if b == "" {
		return true
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil && a != b || c > 0
}

// sliceGone takes that a slice was deleted.
func (s *state) sliceGone(ref membership.Ref, name string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[ref]
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
		a.placed.Gone(name)
	}
	s.updateEgress(ref)
}

// due are the slices of an Egress to write now, their versions at the API server, and the slices of
// others of its name to delete. If it is not time yet, wait is how long to wait.
func (s *state) due(ref membership.Ref) (writes []clientplan.Write, have map[string]sliceVersion, stale map[string]types.UID, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[ref]
	if a == nil {
		return nil, nil, nil, 0
	}
	if a.uid != "" {
		a.placed.Place(func(taken func(string) bool) string { return freshName(ref, a.uid, taken) })
		writes = a.placed.Due()
	}
	if len(writes)+len(a.stale) == 0 {
		return nil, nil, nil, 0
	}
	now := s.clock.Now()
	if wait := a.wroteSlices.Add(betweenWrites).Sub(now); wait > 0 {
		return nil, nil, nil, wait
	}
	a.wroteSlices = now
	if a.uid != "" {
		a.placed.Merge()
		writes = a.placed.Due()
	}
	return writes, maps.Clone(a.slices), maps.Clone(a.stale), 0
}

// freshName is a name for a slice that no other slice of this Egress has, nor a slice of another
// Egress of the name.
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

// sliceWritten takes that a slice was written, or deleted if it has no clients. It returns how
// long the clients waited that are new in it.
func (s *state) sliceWritten(ref membership.Ref, uid string, w clientplan.Write, is sliceVersion) (waited []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[ref]
	if a == nil || a.uid != uid {
		return nil
	}
	if len(w.Clients) == 0 {
		a.deleted[w.Name] = is.uid
		delete(a.slices, w.Name)
	} else if have := a.slices[w.Name]; newer(is.version, have.version) {
		a.slices[w.Name] = is
	}
	a.placed.Written(w)
	for _, c := range w.Clients {
		if since, is := a.since[c.UID]; is {
			waited = append(waited, s.clock.Now().Sub(since))
			delete(a.since, c.UID)
		}
	}
	return waited
}

// staleDeleted takes that a slice of another Egress of the name was deleted.
func (s *state) staleDeleted(ref membership.Ref, name string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.of[ref]; a != nil && a.stale[name] == uid {
		a.deleted[name] = uid
		delete(a.stale, name)
	}
}

// correctSlice takes the version of a slice at the API server, where that is another than this
// process knew; zero: it does not exist.
func (s *state) correctSlice(ref membership.Ref, name string, is sliceVersion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[ref]
	if a == nil {
		return
	}
	if is == (sliceVersion{}) {
		delete(a.slices, name)
		a.placed.Gone(name)
		return
	}
	a.slices[name] = is
}

func (s *state) podCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pods)
}

// counts are how many clients and slices an Egress has.
type counts struct{ served, waiting, refused, slices int }

func (s *state) counts() map[membership.Ref]counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[membership.Ref]counts, len(s.of))
	for ref, a := range s.of {
		out[ref] = counts{a.placed.Len(), len(a.waiting), len(a.refused), a.placed.SliceCount() + len(a.stale)}
	}
	return out
}
