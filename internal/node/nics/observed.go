package nics

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
)

// observed is the observed state: the node's PodNICs, the VPCs of namespaces, and the plugged NICs. It is kept in
// memory, and is not safe for concurrent use.
type observed struct {
	sync       *kubeapi.Sync
	objects    map[types.NamespacedName]object
	ofPod      map[string]map[types.NamespacedName]bool // keys of objects, by UID of the pod
	namespaces map[string]string                        // annotation berth.dev/vpc, by name
	plugged    map[string]held                          // NICs that are plugged and ready, by UID of the PodNIC
	failed     map[string]failure                       // last failed attempt to plug, by UID of the PodNIC
	unplugged  map[string]bool                          // unplugged NICs, whose record may still exist for a moment, by UID of the PodNIC
	invalid    []error                                  // errors of PodNICs, to be logged
}

// held is a NIC that is plugged on this node.
type held struct {
	rec attachment.Record
	nic attachment.NIC
}

// failure is the reason why a NIC could not be plugged or unplugged.
type failure struct{ pod, port, reason, message string }

func newObserved() *observed {
	return &observed{
		sync: kubeapi.NewSync(), objects: map[types.NamespacedName]object{}, ofPod: map[string]map[types.NamespacedName]bool{}, namespaces: map[string]string{},
		plugged: map[string]held{}, failed: map[string]failure{}, unplugged: map[string]bool{},
	}
}

// put stores a PodNIC. It queues a new error of the PodNIC for the log.
func (o *observed) put(n object) {
	before, had := o.objects[n.name]
	if had && before.uid != n.uid {
		o.forget(before)
	}
	o.unlist(before)
	o.objects[n.name] = n
	if n.pod != "" {
		if o.ofPod[n.pod] == nil {
			o.ofPod[n.pod] = map[types.NamespacedName]bool{}
		}
		o.ofPod[n.pod][n.name] = true
	}
	if n.err != nil && (before.err == nil || before.err.Error() != n.err.Error()) {
		o.invalid = append(o.invalid, n.err)
	}
}

// drop removes a PodNIC that was deleted or moved to another node. An empty uid matches any PodNIC with the name.
func (o *observed) drop(name types.NamespacedName, uid types.UID) {
	if n, ok := o.objects[name]; ok && (uid == "" || n.uid == uid) {
		delete(o.objects, name)
		o.unlist(n)
		o.forget(n)
	}
}

// unlist removes a PodNIC from the PodNICs of its pod.
func (o *observed) unlist(n object) {
	if names := o.ofPod[n.pod]; names != nil {
		if delete(names, n.name); len(names) == 0 {
			delete(o.ofPod, n.pod)
		}
	}
}

func (o *observed) forget(n object) {
	delete(o.failed, string(n.uid))
	delete(o.unplugged, string(n.uid))
}

// of returns the PodNICs of a pod, by interface, without PodNICs of other namespaces that claim the pod.
func (o *observed) of(pod attachment.Pod) []object {
	var list []object
	for name := range o.ofPod[pod.UID] {
		if name.Namespace == pod.Namespace {
			list = append(list, o.objects[name])
		}
	}
	slices.SortFunc(list, func(x, y object) int {
		return cmp.Or(strings.Compare(x.ifName, y.ifName), strings.Compare(x.name.Name, y.name.Name))
	})
	return list
}

// sorted returns all PodNICs by name.
func (o *observed) sorted() []object {
	return slices.SortedFunc(maps.Values(o.objects), func(x, y object) int { return strings.Compare(x.name.String(), y.name.String()) })
}

// find returns the PodNIC of a recorded NIC, or nil if it was deleted.
func (o *observed) find(rec attachment.Record, n attachment.NIC) *object {
	found, ok := o.objects[types.NamespacedName{Namespace: rec.Pod.Namespace, Name: n.Object}]
	if !ok || string(found.uid) != n.UID || found.port != n.Port {
		return nil
	}
	return &found
}

// setPlugged sets the plugged NICs of an attachment.
func (o *observed) setPlugged(rec attachment.Record) {
	maps.DeleteFunc(o.plugged, func(_ string, h held) bool { return h.rec.Key == rec.Key })
	for _, nic := range rec.NICs {
		delete(o.unplugged, nic.UID)
		if nic.State == attachment.Plugging {
			continue
		}
		o.plugged[nic.UID] = held{rec, nic}
		if nic.State == attachment.Plugged {
			delete(o.failed, nic.UID)
		}
	}
}

// setUnplugged marks the NICs of an attachment as unplugged.
func (o *observed) setUnplugged(rec attachment.Record) {
	for _, nic := range rec.NICs {
		delete(o.failed, nic.UID)
		if h, ok := o.plugged[nic.UID]; ok && h.rec.Key == rec.Key {
			delete(o.plugged, nic.UID)
		}
		if n, ok := o.objects[types.NamespacedName{Namespace: rec.Pod.Namespace, Name: nic.Object}]; ok && string(n.uid) == nic.UID {
			o.unplugged[nic.UID] = true
		}
	}
}

// dependingOn returns the plugged ports that depend on a link of the node.
func (o *observed) dependingOn(name string, address net.HardwareAddr) (ports []string) {
	for _, h := range o.plugged {
		if dependsOn(h.nic, name, address) {
			ports = append(ports, h.nic.Port)
		}
	}
	return ports
}
