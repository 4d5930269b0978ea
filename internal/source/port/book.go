package port

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/attachment"
)

// book is what is known. It is not safe for concurrent use.
type book struct {
	objects    map[types.NamespacedName]object
	namespaces map[string]string  // annotation berth.dev/vpc, by name
	plugged    map[string]held    // by the UID of the PodNIC: what is plugged and ready here
	failed     map[string]failure // by the UID of the PodNIC: the last try to plug it, if it failed
	said       map[types.UID]saying
	listed     struct{ nics, namespaces bool }
	trouble    map[string]error // of what is watched, by what
}

// held is a NIC that is plugged here.
type held struct {
	rec attachment.Record
	nic attachment.NIC
}

// failure is why a NIC could not be plugged.
type failure struct{ pod, message string }

func newBook() *book {
	return &book{
		objects: map[types.NamespacedName]object{}, namespaces: map[string]string{}, plugged: map[string]held{}, failed: map[string]failure{},
		said: map[types.UID]saying{}, trouble: map[string]error{},
	}
}

// put takes a state of a PodNIC, and returns that of before.
func (b *book) put(o object) (before object, had bool) {
	before, had = b.objects[o.name]
	if had && before.uid != o.uid {
		b.forget(before)
	}
	b.objects[o.name] = o
	return before, had
}

// gone takes that a PodNIC is no more, or another node's.
func (b *book) gone(name types.NamespacedName, uid types.UID) {
	if o, ok := b.objects[name]; ok && (uid == "" || o.uid == uid) {
		delete(b.objects, name)
		b.forget(o)
	}
}

func (b *book) forget(o object) {
	delete(b.failed, string(o.uid))
	delete(b.said, o.uid)
}

// keepOnly takes that there are no others than these.
func (b *book) keepOnly(list []object) {
	there := map[types.NamespacedName]bool{}
	for _, o := range list {
		there[o.name] = true
	}
	for name := range b.objects {
		if !there[name] {
			b.gone(name, "")
		}
	}
}

// of lists the PodNICs of a pod, by interface. Those of another namespace that claim it
// are not among them.
func (b *book) of(pod attachment.Pod) []object {
	var list []object
	for _, o := range b.objects {
		if o.pod != "" && o.pod == pod.UID && o.name.Namespace == pod.Namespace {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(x, y object) int {
		if c := strings.Compare(x.ifName, y.ifName); c != 0 {
			return c
		}
		return strings.Compare(x.name.Name, y.name.Name)
	})
	return list
}

// sorted lists all PodNICs by name.
func (b *book) sorted() []object {
	return slices.SortedFunc(maps.Values(b.objects), func(x, y object) int { return strings.Compare(x.name.String(), y.name.String()) })
}

// replaced are the NICs that an attachment should have where PodNICs of its pod have
// another port than was plugged, or are others of the same interface.
func (b *book) replaced(rec attachment.Record) (nics []attachment.NIC, ok bool) {
	there := b.of(rec.Pod)
	if checkTogether(there) != nil {
		return nil, false
	}
	nics = slices.Clone(rec.NICs)
	for i, old := range nics {
		at := slices.IndexFunc(there, func(o object) bool { return o.ifName == old.IfName })
		if at < 0 || !there[at].bound() || there[at].err != nil {
			continue
		}
		now := there[at].nic
		if now.Port == old.Port && now.UID == old.UID {
			continue
		}
		now.DefaultRoute = old.DefaultRoute // was decided on when the pod came
		nics[i], ok = now, true
	}
	return nics, ok
}

// find is the PodNIC of a recorded NIC, and nil if it is gone.
func (b *book) find(rec attachment.Record, n attachment.NIC) *object {
	o, ok := b.objects[types.NamespacedName{Namespace: rec.Pod.Namespace, Name: n.Object}]
	if !ok || string(o.uid) != n.UID || o.port != n.Port {
		return nil
	}
	return &o
}

// anyTrouble is why the API server cannot be used; nil if it can.
func (b *book) anyTrouble() error {
	for _, what := range []string{podNICs, namespaces} {
		if err := b.trouble[what]; err != nil {
			return err
		}
	}
	return nil
}
