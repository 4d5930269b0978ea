package nics

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/node/attachment"
)

// book is what is known. It is not safe for concurrent use.
type book struct {
	objects    map[types.NamespacedName]object
	ofPod      map[string]map[types.NamespacedName]bool // names in objects, by the UID of the pod
	namespaces map[string]string                        // annotation berth.dev/vpc, by name
	plugged    map[string]held                          // by the UID of the PodNIC: what is plugged and ready here
	failed     map[string]failure                       // by the UID of the PodNIC: the last try to plug it, if it failed
	unplugged  map[string]bool                          // by the UID of the PodNIC: nothing is left of it, though its record may go a moment later
	said       map[types.UID]saying
	listed     struct{ nics, namespaces bool }
	trouble    map[string]error // of what is watched, by what
}

// held is a NIC that is plugged here.
type held struct {
	rec attachment.Record
	nic attachment.NIC
}

// failure is why a NIC could not be plugged, or unplugged.
type failure struct{ pod, port, reason, message string }

func newBook() *book {
	return &book{
		objects: map[types.NamespacedName]object{}, ofPod: map[string]map[types.NamespacedName]bool{}, namespaces: map[string]string{}, plugged: map[string]held{}, failed: map[string]failure{}, unplugged: map[string]bool{},
		said: map[types.UID]saying{}, trouble: map[string]error{},
	}
}

// put takes a state of a PodNIC, and returns that of before.
func (b *book) put(o object) (before object, had bool) {
	before, had = b.objects[o.name]
	if had && before.uid != o.uid {
		b.forget(before)
	}
	b.unlist(before)
	b.objects[o.name] = o
	if o.pod != "" {
		if b.ofPod[o.pod] == nil {
			b.ofPod[o.pod] = map[types.NamespacedName]bool{}
		}
		b.ofPod[o.pod][o.name] = true
	}
	return before, had
}

// gone takes that a PodNIC is no more, or another node's.
func (b *book) gone(name types.NamespacedName, uid types.UID) {
	if o, ok := b.objects[name]; ok && (uid == "" || o.uid == uid) {
		delete(b.objects, name)
		b.unlist(o)
		b.forget(o)
	}
}

// unlist takes a PodNIC from those of its pod.
func (b *book) unlist(o object) {
	if names := b.ofPod[o.pod]; names != nil {
		if delete(names, o.name); len(names) == 0 {
			delete(b.ofPod, o.pod)
		}
	}
}

func (b *book) forget(o object) {
	delete(b.failed, string(o.uid))
	delete(b.unplugged, string(o.uid))
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
	for name := range b.ofPod[pod.UID] {
		if name.Namespace == pod.Namespace {
			list = append(list, b.objects[name])
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
