package podnics

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/vpcport"
)

// maxNote is how long an Event's note may be, in bytes (events.k8s.io/v1).
const maxNote = 1024

// told is what the pods' Events said last, so that each is said once.
type told struct {
	mu  sync.Mutex // guards all
	all map[types.NamespacedName]lastWords
}

// lastWords are those of one pod, by its NICs.
type lastWords struct {
	uid   types.UID
	byNIC map[string]string
}

func newTold() *told { return &told{all: map[types.NamespacedName]lastWords{}} }

// warn makes an Event of an error of a pod, or of one of its NICs, unless the last one was
// the same; without an error it forgets that.
func (c *Controller) warn(p *corev1.Pod, nic, reason string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if !c.told.isNews(client.ObjectKeyFromObject(p), p.UID, nic, text) || err == nil {
		return
	}
	c.events.Eventf(p, nil, corev1.EventTypeWarning, reason, "ProvideNICs", "%s", vpcport.Cut(text, maxNote))
}

// isNews notes a text, and tells whether the last one was another.
func (t *told) isNews(pod types.NamespacedName, uid types.UID, nic, text string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.all[pod]
	if last.uid != uid { // another pod of its name
		last = lastWords{uid: uid, byNIC: map[string]string{}}
	}
	if last.byNIC[nic] == text {
		return false
	}
	last.byNIC[nic] = text
	t.all[pod] = last
	return true
}

// forget drops the pod of a name, which is no more.
func (t *told) forget(pod types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, pod)
}
