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

// state is the in-memory state of all Egresses and their clients. It is derived entirely from objects,
// so that an operator that starts writes only differences.
type state struct {
	clock          clock.Clock
	berthNamespace string // Berth's own namespace; "" if unknown

	mu       sync.Mutex // guards the fields below
	filled   bool
	egresses clientplan.Egresses
	of       map[membership.Ref]*egressState
	pods     map[types.NamespacedName]podUses
	// served are the UIDs of the pods in slices; used only while the state is being filled.
	served map[string]bool
}

// podUses are the Egresses that a pod uses or is refused.
type podUses struct {
	uid   string
	since time.Time // as in podView
	uses  []use
}

// use is the state of a pod with one Egress.
type use struct {
	ref membership.Ref
	uid string // of the Egress; "" if it does not exist
	// client is the client that gateways serve; nil if they do not serve the pod.
	client *v1alpha1.ServedClient
	// refused is why the pod may not use the Egress, and waiting why it has not been served for
	// some time although it may; "" if that is not the case.
	refused, waiting string
}

// egressState is the state of an Egress, or of a deleted one that still has slices.
type egressState struct {
	uid              string // "" if the Egress does not exist
	placed           *clientplan.Slices
	refused, waiting map[types.NamespacedName]string
	// slices are the slices at the API server, and deleted those deleted by this process, by name.
	slices  map[string]sliceVersion
	deleted map[string]types.UID
	// stale are slices of an earlier Egress of the same name.
	stale map[string]types.UID
	// wroteSlices and wroteStatus are when the slices, and the counts in the status, were last
	// written. version is the resource version of the Egress after this process wrote its status.
	wroteSlices, wroteStatus time.Time
	version                  string
	// lacksConsent reports whether the Egress selects a namespace that does not consent; nil if
	// unknown.
	lacksConsent *bool
	// since is when clients that are in no slice yet were added, by UID.
	since map[string]time.Time
}

// sliceVersion identifies the version of a slice at the API server.
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

// fill reads everything from the cache once, before any other work, so that no slice is written from
// partial data. It returns immediately if that was done.
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
		clear(a.since) // these clients were added while another operator led
	}
	s.served, s.filled = nil, true
	return nil
}

func (s *state) all() clientplan.Egresses {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.egresses
}

// setEgress sets an Egress, or removes it if nil, and returns all Egresses before and after the change.
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

// setGrant sets whether an administrator lets Egresses of a namespace select pods of other namespaces,
// and returns all Egresses before and after the change.
func (s *state) setGrant(namespace string, granted bool) (before, after clientplan.Egresses) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.egresses
	s.egresses = before.Granting(namespace, granted)
	return before, s.egresses
}

// forgetConsent clears lacksConsent of Egresses, so that it is determined again.
func (s *state) forgetConsent(refs []membership.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range refs {
		if a := s.of[ref]; a != nil {
			a.lacksConsent = nil
		}
	}
}

// updateEgress creates, replaces or drops the state of an Egress. It is replaced if another Egress has
// the name now, which makes its slices stale, and dropped once neither an Egress nor slices are left.
// s.mu is held.
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

// setPod sets a pod's uses, and returns the Egresses whose slices or counts change.
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

// removePod drops a pod and reports whether anything changed.
func (a *egressState) removePod(key types.NamespacedName, uid string) bool {
	differs := a.placed.Remove(uid) || a.refused[key] != "" || a.waiting[key] != ""
	delete(a.refused, key)
	delete(a.waiting, key)
	delete(a.since, uid)
	return differs
}

// setPod sets a pod's use of this Egress and reports whether anything changed.
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

// set sets the value of a key, or deletes the key if the value is "", and reports whether anything
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

// observeSlice records a slice from the cache, unless it is older than the version this process wrote.
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

// newer reports whether resource version a is from a later write than b, which may be "".
func newer(a, b string) bool {
	if b == "" {
		return true
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil && a != b || c > 0
}

// sliceGone records that a slice was deleted.
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

// due returns the slices of an Egress to write now, their versions at the API server, and the slices of
// an earlier Egress of the same name to delete. If a write must be delayed, wait is for how long.
func (s *state) due(ref membership.Ref) (writes []clientplan.Write, have map[string]sliceVersion, stale map[string]types.UID, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[ref]
	if a == nil {
		return nil, nil, nil, 0
	}
	isDue := len(a.stale) > 0
	if a.uid != "" {
		a.placed.Place(func(taken func(string) bool) string { return freshName(ref, a.uid, taken) })
		isDue = isDue || a.placed.IsDue()
	}
	if !isDue {
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

// freshName returns an unused name for a slice, distinct from those of other Egresses of the same name.
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

// sliceWritten records that a slice was written, or deleted if it has no clients. It returns how long
// the clients that are new in it waited.
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

// staleDeleted records that a slice of an earlier Egress of the same name was deleted.
func (s *state) staleDeleted(ref membership.Ref, name string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.of[ref]; a != nil && a.stale[name] == uid {
		a.deleted[name] = uid
		delete(a.stale, name)
	}
}

// correctSlice records the version of a slice at the API server if it differs from the expected one;
// zero means that the slice does not exist.
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

// counts are the numbers of clients and slices of an Egress.
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
