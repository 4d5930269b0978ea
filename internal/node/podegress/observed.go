package podegress

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/node/attachment"
)

// firstInterface is the interface by which the kubelet knows a pod. Only its traffic uses Egresses, not that
// of interfaces that Multus adds later.
const firstInterface = "eth0"

// observed is the observed state: Egresses and their clients from the API server, the reachability of
// gateways, and the setups of the node's pods. It is kept in memory, and is not safe for concurrent use.
type observed struct {
	sync     *kubeapi.Sync
	late     bool // the time limit for the first list has passed
	clients  map[types.NamespacedName]egressClient
	users    users
	egresses egressSet
	silent   map[use]silentOnes // gateways that fail probes while others of their Egress respond
	pods     podSet
	// unreported are EgressClients whose status may be out of date.
	unreported map[types.NamespacedName]bool
	effects    effects
}

// effects are the actions that changes require, to be done after the lock is released.
type effects struct {
	changed bool                          // the desired egress of running pods may have changed
	wakeAll bool                          // all waiting ADDs must re-evaluate
	wake    map[types.NamespacedName]bool // waiting ADDs of these pods must re-evaluate
	invalid []error                       // to be logged
}

func (e effects) wakes(pod attachment.Pod) bool { return e.wakeAll || e.wake[nameOf(pod)] }

// newObserved returns an empty observed state. berthNamespace is Berth's namespace, or empty if unknown.
func newObserved(berthNamespace string) *observed {
	return &observed{
		sync: kubeapi.NewSync(), clients: map[types.NamespacedName]egressClient{}, users: users{},
		egresses: egressSet{map[types.NamespacedName]egress{}, membership.NewSelectors(berthNamespace), map[string]membership.Namespace{}},
		silent:   map[use]silentOnes{}, pods: podSet{}, unreported: map[types.NamespacedName]bool{}, effects: effects{wake: map[types.NamespacedName]bool{}},
	}
}

// take returns the effects of all changes since the last call.
func (e *effects) take() effects {
	taken := *e
	*e = effects{wake: map[types.NamespacedName]bool{}}
	return taken
}

// putClient stores an EgressClient.
func (o *observed) putClient(m egressClient) {
	before, had := o.clients[m.name]
	o.clients[m.name] = m
	o.unreported[m.name] = true
	if had && before.same(m) {
		return
	}
	o.users.remove(before)
	o.users.add(m)
	o.touch(m.name)
}

// dropClient removes an EgressClient. An empty uid matches any with the name.
func (o *observed) dropClient(name types.NamespacedName, uid types.UID) {
	m, ok := o.clients[name]
	if !ok || uid != "" && m.uid != uid {
		return
	}
	delete(o.clients, name)
	delete(o.unreported, name)
	o.users.remove(m)
	o.touch(name)
}

// putEgress stores an Egress. It queues a new error of the Egress for the log.
func (o *observed) putEgress(t egress) {
	if before := o.egresses.byName[t.name]; t.err != nil && (before.err == nil || before.err.Error() != t.err.Error()) {
		o.effects.invalid = append(o.effects.invalid, t.err)
	}
	o.touchUsers(o.egresses.put(t))
}

// dropEgress removes an Egress. An empty uid matches any with the name.
func (o *observed) dropEgress(name types.NamespacedName, uid types.UID) {
	if t, ok := o.egresses.byName[name]; ok && (uid == "" || t.uid == uid) {
		o.touchUsers(o.egresses.drop(name))
	}
}

// putNamespace stores a Namespace.
func (o *observed) putNamespace(n membership.Namespace) {
	affected, same := o.egresses.putNamespace(n)
	if same {
		return
	}
	o.touchUsers(affected, true)
	for pod := range o.pods {
		if pod.Namespace == n.Name {
			o.touch(pod)
		}
	}
}

// listed notes that the API server has listed all objects of a kind. Before the first list the desired egress of
// pods may have been unknown.
func (o *observed) listed(first bool) {
	if first {
		for name := range o.pods {
			o.touch(name)
		}
	}
	o.effects.wakeAll = true
}

// uses returns the Egresses of an EgressClient that the node honors. It omits those that select the pod according
// to the operator, but that the pod's namespace, as observed here, does not permit. Only the operator knows which
// Egresses a pod names and which labels it has.
func (o *observed) uses(m egressClient) []use {
	if len(m.selected) == 0 || !o.sync.Listed(watched...) {
		return m.uses
	}
	return o.egresses.permitted(m)
}

// egressClient returns the EgressClient of a pod, never that of another pod with the same name.
func (o *observed) egressClient(pod attachment.Pod) (egressClient, bool) {
	m, ok := o.clients[nameOf(pod)]
	return m, ok && (pod.UID == "" || m.pod == pod.UID)
}

func nameOf(pod attachment.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// inputs returns the inputs for the plan of a pod with egress.
func (o *observed) inputs(m egressClient, has *attachment.Egress) inputs {
	return inputs{pod: m.pod, uses: o.uses(m), find: o.egresses.find, silent: func(u use) silentOnes { return o.silent[u] }, has: has}
}

// desired returns the desired egress of a ready attachment, and whether it differs from the recorded one.
func (o *observed) desired(rec attachment.Record) (_ *attachment.Egress, differs bool) {
	if rec.Key.IfName != firstInterface || rec.Pod.Name == "" || !o.sync.Listed(egressClients, egresses) {
		return nil, false
	}
	p := o.pods[nameOf(rec.Pod)]
	if p != nil && p.settled != nil && p.settled.key == rec.Key && p.settled.egress == rec.Egress {
		return rec.Egress, false
	}
	m, _ := o.egressClient(rec.Pod)
	if rec.Adopted != nil && rec.Egress == nil && !o.served(m) {
		return nil, false
	}
	e := plan(o.inputs(m, rec.Egress))
	if !sameEgress(&e, rec.Egress) {
		return &e, true
	}
	if p != nil {
		p.settled = &settled{rec.Key, rec.Egress}
	}
	return rec.Egress, false
}

// served reports whether a pod's Egresses allow it, and each has a gateway. Until then a pod that another network made keeps
// the tunnels that it has from there.
func (o *observed) served(m egressClient) bool {
	return len(m.refused) == 0 && !slices.ContainsFunc(o.uses(m), func(u use) bool {
		t, known := o.egresses.find(u)
		return !known || !slices.ContainsFunc(t.gateways, func(g gateway) bool { return !g.ending })
	})
}

// touch triggers a re-evaluation of a pod: by its waiting ADD, and by the daemon if it runs.
func (o *observed) touch(pod types.NamespacedName) {
	if p := o.pods[pod]; p != nil {
		p.settled, o.effects.changed = nil, true
	}
	o.effects.wake[pod] = true
}

// touchUsers touches the clients of Egresses, and makes all waiting ADDs re-evaluate if the Egresses that select pods
// have changed.
func (o *observed) touchUsers(affected []types.NamespacedName, selectors bool) {
	o.effects.wakeAll = o.effects.wakeAll || selectors
	for _, name := range affected {
		for pod := range o.users[name] {
			o.touch(pod)
		}
	}
}

// gateways returns the gateways that new connections of this node's pods may use, by Egress.
func (o *observed) gateways() map[use][]gateway {
	out := map[use][]gateway{}
	for _, m := range o.clients {
		for _, u := range o.uses(m) {
			if _, seen := out[u]; seen {
				continue
			}
			if t, ok := o.egresses.find(u); ok && !t.toService {
				out[u] = slices.DeleteFunc(slices.Clone(t.gateways), func(g gateway) bool { return g.ending })
			}
		}
	}
	return out
}

// silence sets the gateways that fail probes while others respond.
func (o *observed) silence(now map[use]silentOnes) {
	before := o.silent
	o.silent = now
	for _, of := range []map[use]silentOnes{before, now} {
		for u := range of {
			if !maps.Equal(before[u], now[u]) {
				o.touchUsers([]types.NamespacedName{u.name}, false)
			}
		}
	}
}

// unusable returns the errors of Egresses that have users, by name.
func (e *egressSet) unusable(of users) (errs []error) {
	for _, name := range slices.SortedFunc(maps.Keys(of), func(x, y types.NamespacedName) int { return cmp.Compare(x.String(), y.String()) }) {
		if t, ok := e.byName[name]; ok && t.err != nil {
			errs = append(errs, t.err)
		}
	}
	return errs
}

// setUp notes that an attachment is set up as recorded.
func (o *observed) setUp(rec attachment.Record) {
	o.pods.of(rec.Pod).held[rec.Key] = held{rec: rec}
	o.unreported[nameOf(rec.Pod)] = true
	if _, differs := o.desired(rec); differs {
		o.effects.changed = true // changed since its ADD acquired the egress
	}
}

// fail notes that the setup of an attachment failed. An earlier setup may still be in force.
func (o *observed) fail(rec attachment.Record, err error) {
	p := o.pods.of(rec.Pod)
	h, had := p.held[rec.Key]
	before := h.before
	if had && h.failed == nil {
		before = references(h.rec.Egress)
	}
	p.held[rec.Key] = held{rec: rec, failed: failureOf(err), before: before}
	o.unreported[nameOf(rec.Pod)] = true
}

// end notes that an attachment has ended.
func (o *observed) end(rec attachment.Record) {
	if o.pods.end(rec) {
		o.unreported[nameOf(rec.Pod)] = true
	}
}

// due returns the pending reports.
func (o *observed) due() (list []report) {
	for name := range o.unreported {
		m, ok := o.clients[name]
		if !ok {
			delete(o.unreported, name)
			continue
		}
		if state := o.state(m); state != nil {
			list = append(list, report{Name: m.name, UID: m.uid, Version: m.version, State: *state})
		} else {
			delete(o.unreported, name)
		}
	}
	return list
}

// egressSet holds the Egresses, and which of them may select pods of which namespaces.
type egressSet struct {
	byName     map[types.NamespacedName]egress
	selectors  membership.Selectors // selectors of pods that use Egresses without naming them
	namespaces map[string]membership.Namespace
}

// put stores an Egress. It returns the Egresses whose clients may be affected, and whether other pods may now be
// selected.
func (e *egressSet) put(t egress) (affected []types.NamespacedName, selectors bool) {
	before, had := e.byName[t.name]
	e.byName[t.name] = t
	if now, differs := e.selectors.With(membership.Ref(t.name), t.created, t.selector); differs {
		affected, selectors = e.replace(t.name.Namespace, now), true
	}
	if !had || !before.same(t) {
		affected = append(affected, t.name)
	}
	return affected, selectors
}

// drop removes an Egress. The results are those of put.
func (e *egressSet) drop(name types.NamespacedName) (affected []types.NamespacedName, selectors bool) {
	delete(e.byName, name)
	if now, differs := e.selectors.Without(membership.Ref(name)); differs {
		affected, selectors = e.replace(name.Namespace, now), true
	}
	return append(affected, name), selectors
}

// replace replaces the selectors when those of one namespace's Egresses have changed, and returns these
// Egresses.
func (e *egressSet) replace(namespace string, now membership.Selectors) (affected []types.NamespacedName) {
	before := e.selectors
	e.selectors = now
	for _, ref := range slices.Concat(before.Active(namespace), now.Active(namespace)) {
		affected = append(affected, types.NamespacedName(ref))
	}
	return affected
}

// putNamespace stores a Namespace. It returns the Egresses whose clients may be affected; same reports that nothing
// relevant changed.
func (e *egressSet) putNamespace(n membership.Namespace) (affected []types.NamespacedName, same bool) {
	before, had := e.namespaces[n.Name]
	if e.namespaces[n.Name] = n; had && before.Same(n) {
		return nil, true
	}
	if e.selectors.Granted(n.Name) != n.Granted() {
		affected = e.replace(n.Name, e.selectors.Granting(n.Name, n.Granted()))
	}
	return affected, false
}

func (e *egressSet) dropNamespace(name string) {
	delete(e.namespaces, name)
	e.selectors = e.selectors.Granting(name, false)
}

// permitted returns the Egresses of an EgressClient, without those that select the pod against its namespace's will.
func (e *egressSet) permitted(m egressClient) []use {
	n, known := e.namespaces[m.name.Namespace]
	if !known {
		return m.uses
	}
	return slices.DeleteFunc(slices.Clone(m.uses), func(u use) bool {
		_, there := e.find(u)
		return there && m.selected[u.name] && !e.selectors.Selects(membership.Ref(u.name), n)
	})
}

// find returns an Egress by name and UID, if it is known and usable.
func (e *egressSet) find(u use) (egress, bool) {
	t, ok := e.byName[u.name]
	return t, ok && t.uid == u.uid && !t.unusable
}

// users are the EgressClients of this node by the names of their Egresses.
type users map[types.NamespacedName]map[types.NamespacedName]bool

func (s users) add(m egressClient) {
	for _, u := range m.uses {
		if s[u.name] == nil {
			s[u.name] = map[types.NamespacedName]bool{}
		}
		s[u.name][m.name] = true
	}
}

func (s users) remove(m egressClient) {
	for _, u := range m.uses {
		if delete(s[u.name], m.name); len(s[u.name]) == 0 {
			delete(s, u.name)
		}
	}
}

// podSet holds the pods that have an attachment on this node.
type podSet map[types.NamespacedName]*pod

// pod holds the setups of a pod, by attachment.
type pod struct {
	held map[attachment.Key]held
	// settled is an attachment whose egress was as desired when last compared. It is nil after any change
	// that concerns the pod.
	settled *settled
}

type settled struct {
	key    attachment.Key
	egress *attachment.Egress
}

// held is the setup of an attachment.
type held struct {
	rec    attachment.Record // the latest record
	failed *failure          // failure of the last attempt, if any
	// before are the Egresses that are still set up after a failed attempt.
	before []v1alpha1.EgressReference
}

// of returns a pod, adding it if it is missing.
func (s podSet) of(p attachment.Pod) *pod {
	name := nameOf(p)
	if s[name] == nil {
		s[name] = &pod{held: map[attachment.Key]held{}}
	}
	return s[name]
}

// end removes an attachment. It reports whether its pod was known.
func (s podSet) end(rec attachment.Record) bool {
	name := nameOf(rec.Pod)
	p := s[name]
	if p == nil {
		return false
	}
	delete(p.held, rec.Key)
	if p.settled != nil && p.settled.key == rec.Key {
		p.settled = nil
	}
	if len(p.held) == 0 {
		delete(s, name)
	}
	return true
}

// latest returns the setup of the pod of an EgressClient: for several sandboxes, the latest.
func (s podSet) latest(m egressClient) (h held, ok bool) {
	p := s[m.name]
	if p == nil {
		return held{}, false
	}
	for _, one := range p.held {
		if is := one.rec.Pod.UID == "" || one.rec.Pod.UID == m.pod; is && (!ok || one.rec.Since.After(h.rec.Since)) {
			h, ok = one, true
		}
	}
	return h, ok
}

// gateways returns the attachments that are gateways.
func (s podSet) gateways() (list []attachment.Record) {
	for _, p := range s {
		for _, h := range p.held {
			if h.rec.Egress != nil && h.rec.Egress.Forward {
				list = append(list, h.rec)
			}
		}
	}
	return list
}
