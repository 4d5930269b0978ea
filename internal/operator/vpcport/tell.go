package vpcport

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxNote is how long an Event's note may be, in bytes (events.k8s.io/v1).
const maxNote = 1024

// told is what the pods' Events said last, so that each is said once.
type told struct {
	mu  sync.Mutex // guards all
	all map[types.UID]map[string]string
}

func newTold() *told { return &told{all: map[types.UID]map[string]string{}} }

// warn makes an Event of an error of a pod, or of one of its NICs, unless the last one was
// the same; without an error it forgets that.
func (c *Controller) warn(p *corev1.Pod, nic, reason string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if !c.told.isNews(p.UID, nic, text) || err == nil {
		return
	}
	c.events.Eventf(p, nil, corev1.EventTypeWarning, reason, "ProvideNICs", "%s", text[:min(len(text), maxNote)])
}

// isNews notes a text, and tells whether the last one was another.
func (t *told) isNews(pod types.UID, nic, text string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[pod][nic] == text {
		return false
	}
	if t.all[pod] == nil {
		t.all[pod] = map[string]string{}
	}
	t.all[pod][nic] = text
	return true
}

// forget drops a pod that is no more.
func (t *told) forget(pod string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, types.UID(pod))
}
