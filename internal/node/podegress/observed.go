package podegress

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

// firstInterface is the one by which the kubelet knows a pod: its packets to the outside leave
// there, and not by what others add later.
const firstInterface = "eth0"

// book is what is known. It is not safe for concurrent use.
type book struct {
	members    map[types.NamespacedName]member                        // EgressClients of this node
	targets    map[types.NamespacedName]target                        // Egresses
	selectors  membership.Selectors                                   // of pods that use Egresses without naming them
	users      map[types.NamespacedName]map[types.NamespacedName]bool // EgressClients in members, by the names of Egresses
	namespaces map[string]membership.Namespace                        // by name
	silent     map[use]silentOnes                                     // gateways that do not answer while others do
	muted      map[string]time.Time                                   // gateways, by UID, for which no ADD waits until then
	listed     map[string]bool                                        // what the API server told of, by what is watched
	late       bool                                                   // it had its time to do so
	trouble    map[string]error                                       // of what is watched

	pods    map[types.NamespacedName]*local // pods with an attachment here
	waiters map[attachment.Key]*waiter      // ADDs
	unsaid  map[types.NamespacedName]bool   // EgressClients of which something may be to be said
	said    map[types.UID]saying            // the last report of each EgressClient
	news    bool                            // pods may have to have other egresses than before
}

// local is a pod of this node that has attachments.
type local struct {
	held map[attachment.Key]held
	// as is the egress of one of its attachments that is as wanted, since nothing has touched
	// the pod.
	as *settled
}

// settled is that an attachment is to have what it has.
type settled struct {
	key  attachment.Key
	what *attachment.Egress
}

// held is what is set up for an attachment.
type held struct {
	rec    attachment.Record // as it was told last
	failed *failure          // the last try, if it failed
	// before are Egresses that are set up still though that try failed.
	before []v1alpha1.EgressReference
}

// newBook is empty. berthNamespace is Berth's own, empty if it is not known.
func newBook(berthNamespace string) *book {
	return &book{
		members: map[types.NamespacedName]member{}, targets: map[types.NamespacedName]target{}, selectors: membership.NewSelectors(berthNamespace),
		users: map[types.NamespacedName]map[types.NamespacedName]bool{}, namespaces: map[string]membership.Namespace{}, silent: map[use]silentOnes{}, muted: map[string]time.Time{},
		listed: map[string]bool{}, trouble: map[string]error{}, pods: map[types.NamespacedName]*local{}, waiters: map[attachment.Key]*waiter{},
		unsaid: map[types.NamespacedName]bool{}, said: map[types.UID]saying{},
	}
}

// putMember takes a state of an EgressClient.
func (b *book) putMember(m member) {
	before, had := b.members[m.name]
	if had && before.uid != m.uid {
		delete(b.said, before.uid)
	}
	b.members[m.name] = m
	b.unsaid[m.name] = true
	if said := b.said[m.uid]; said.state != nil && m.node != nil && sameNode(*said.state, *m.node) {
		said.state, said.retry = nil, retry.Backoff{}
		b.said[m.uid] = said
	}
	if had && before.same(m) {
		return
	}
	b.unlist(before)
	for _, u := range m.uses {
		if b.users[u.name] == nil {
			b.users[u.name] = map[types.NamespacedName]bool{}
		}
		b.users[u.name][m.name] = true
	}
	b.touch(m.name)
}

// dropMember takes that an EgressClient is no more. Without a UID it is whichever has the name.
func (b *book) dropMember(name types.NamespacedName, uid types.UID) {
	m, ok := b.members[name]
	if !ok || uid != "" && m.uid != uid {
		return
	}
	delete(b.members, name)
	delete(b.said, m.uid)
	delete(b.unsaid, name)
	b.unlist(m)
	b.touch(name)
}

// unlist takes an EgressClient from those of its Egresses.
func (b *book) unlist(m member) {
	for _, u := range m.uses {
		if delete(b.users[u.name], m.name); len(b.users[u.name]) == 0 {
			delete(b.users, u.name)
		}
	}
}

// putTarget takes a state of an Egress, and returns what of it makes no sense, once.
func (b *book) putTarget(t target) (senseless error) {
	before, had := b.targets[t.name]
	b.targets[t.name] = t
	if now, differs := b.selectors.With(membership.Ref(t.name), t.created, t.selector); differs {
		b.setSelectors(t.name.Namespace, now)
	}
	if !had || !before.same(t) {
		b.touchUsers(t.name)
	}
	if t.err != nil && (before.err == nil || before.err.Error() != t.err.Error()) {
		return t.err
	}
	return nil
}

// setSelectors takes in that Egresses of a namespace select otherwise, or may no more or may now.
// Pods that use one of them and ADDs that wait are looked at again.
func (b *book) setSelectors(namespace string, now membership.Selectors) {
	before := b.selectors
	b.selectors = now
	was, is := before.Active(namespace), now.Active(namespace)
	b.wakeAll()
	for _, ref := range slices.Concat(was, is) {
		b.touchUsers(types.NamespacedName(ref))
	}
}

// dropTarget takes that an Egress is no more. Without a UID it is whichever has the name.
func (b *book) dropTarget(name types.NamespacedName, uid types.UID) {
	t, ok := b.targets[name]
	if !ok || uid != "" && t.uid != uid {
		return
	}
	delete(b.targets, name)
	if now, differs := b.selectors.Without(membership.Ref(name)); differs {
		b.setSelectors(name.Namespace, now)
	}
	b.touchUsers(name)
}

// putNamespace takes a state of a Namespace.
func (b *book) putNamespace(n membership.Namespace) {
	before, had := b.namespaces[n.Name]
	if b.namespaces[n.Name] = n; had && before.Same(n) {
		return
	}
	if b.selectors.Granted(n.Name) != n.Granted() {
		b.setSelectors(n.Name, b.selectors.Granting(n.Name, n.Granted()))
	}
	for pod := range b.pods {
		if pod.Namespace == n.Name {
			b.touch(pod)
		}
	}
	b.wakeAll()
}

// dropNamespace takes that a Namespace is no more.
func (b *book) dropNamespace(name string) {
	delete(b.namespaces, name)
	b.selectors = b.selectors.Granting(name, false)
}

// uses are the Egresses of an EgressClient that the node goes by: not those of which the operator says
// that they select the pod where the pod's namespace, as it is known here, does not let them. What is not
// known is the operator's word: whether the pod names an Egress, and which labels it has.
func (b *book) uses(m member) []use {
	n, known := b.namespaces[m.name.Namespace]
	if len(m.selected) == 0 || !known || !b.isListed() {
		return m.uses
	}
	return slices.DeleteFunc(slices.Clone(m.uses), func(u use) bool {
		_, there := b.find(u)
		return there && m.selected[u.name] && !b.selectors.Selects(membership.Ref(u.name), n)
	})
}

// find is the Egress that is named, if it is known and usable.
func (b *book) find(u use) (target, bool) {
	t, ok := b.targets[u.name]
	return t, ok && t.uid == u.uid && !t.unusable
}

// member is the EgressClient of a pod: never that of another pod of its name.
func (b *book) member(pod attachment.Pod) (member, bool) {
	m, ok := b.members[nameOf(pod)]
	return m, ok && (pod.UID == "" || m.pod == pod.UID)
}

func nameOf(pod attachment.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// scene is what the egress of a pod follows from that has some.
func (b *book) scene(m member, has *attachment.Egress) scene {
	return scene{pod: m.pod, uses: b.uses(m), find: b.find, silent: func(u use) silentOnes { return b.silent[u] }, has: has}
}

// wanted is what a ready attachment is to have by now, and whether it has something else.
func (b *book) wanted(rec attachment.Record) (_ *attachment.Egress, differ bool) {
	if rec.Key.IfName != firstInterface || rec.Pod.Name == "" || !b.listed[egressClients] || !b.listed[egresses] {
		return nil, false
	}
	l := b.pods[nameOf(rec.Pod)]
	if l != nil && l.as != nil && l.as.key == rec.Key && l.as.what == rec.Egress {
		return rec.Egress, false
	}
	m, _ := b.member(rec.Pod)
	e := plan(b.scene(m, rec.Egress))
	if !sameEgress(&e, rec.Egress) {
		return &e, true
	}
	if l != nil {
		l.as = &settled{rec.Key, rec.Egress}
	}
	return rec.Egress, false
}

// local is what is known of a pod that has an attachment here.
func (b *book) local(pod attachment.Pod) *local {
	name := nameOf(pod)
	if b.pods[name] == nil {
		b.pods[name] = &local{held: map[attachment.Key]held{}}
	}
	return b.pods[name]
}

// touch has a pod looked at again: by its ADD that waits, and by who brings running pods to
// what they are to have.
func (b *book) touch(pod types.NamespacedName) {
	if l := b.pods[pod]; l != nil {
		l.as, b.news = nil, true
	}
	for _, w := range b.waiters {
		if w.pod == pod {
			w.look.Set()
		}
	}
}

// touchUsers touches the clients of an Egress.
func (b *book) touchUsers(name types.NamespacedName) {
	for pod := range b.users[name] {
		b.touch(pod)
	}
}

// touchAll touches all pods.
func (b *book) touchAll() {
	for _, l := range b.pods {
		l.as, b.news = nil, true
	}
	b.wakeAll()
}

// wakeAll has all ADDs look again that wait.
func (b *book) wakeAll() {
	for _, w := range b.waiters {
		w.look.Set()
	}
}

// anyTrouble is why the API server cannot be used; nil if it can.
func (b *book) anyTrouble() error {
	for _, what := range []string{egressClients, egresses, namespaces} {
		if err := b.trouble[what]; err != nil {
			return err
		}
	}
	return nil
}

// isListed tells whether the API server told of all that is watched.
func (b *book) isListed() bool {
	return b.listed[egressClients] && b.listed[egresses] && b.listed[namespaces]
}

// gateways are those that new connections of this node's pods may take, by Egress.
func (b *book) gateways() map[use][]gateway {
	out := map[use][]gateway{}
	for _, m := range b.members {
		for _, u := range b.uses(m) {
			if _, seen := out[u]; seen {
				continue
			}
			if t, ok := b.find(u); ok && !t.toService {
				out[u] = slices.DeleteFunc(slices.Clone(t.gateways), func(g gateway) bool { return g.ending })
			}
		}
	}
	return out
}

// silence takes which gateways do not answer while others do.
func (b *book) silence(now map[use]silentOnes) {
	before := b.silent
	b.silent = now
	for _, of := range []map[use]silentOnes{before, now} {
		for u := range of {
			if !maps.Equal(before[u], now[u]) {
				b.touchUsers(u.name)
			}
		}
	}
}

// unusable is what of Egresses that pods of this node use makes no sense, by name.
func (b *book) unusable() (errs []error) {
	for _, name := range slices.SortedFunc(maps.Keys(b.users), func(x, y types.NamespacedName) int { return cmp.Compare(x.String(), y.String()) }) {
		if t, ok := b.targets[name]; ok && t.err != nil {
			errs = append(errs, t.err)
		}
	}
	return errs
}
