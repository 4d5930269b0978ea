package podnics

import (
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
)

const (
	// MaxNote is the maximum length of an Event's note, in bytes (events.k8s.io/v1).
	MaxNote = 1024
	// aboutPolicies is the subject of an Event about a pod's policies, where others have a NIC's
	// name. No NIC has it.
	aboutPolicies = "/policies"
)

// podEvents makes Events of pods, each once in a row.
type podEvents struct {
	recorder events.EventRecorder

	mu   sync.Mutex // guards last
	last map[types.NamespacedName]lastNotes
}

// lastNotes are the notes of a pod's last Events, by subject.
type lastNotes struct {
	uid types.UID
	of  map[string]string
}

func newPodEvents(recorder events.EventRecorder) *podEvents {
	return &podEvents{recorder: recorder, last: map[types.NamespacedName]lastNotes{}}
}

// warn makes an Event of an error of a pod, about the pod (empty subject), one of its NICs or its
// policies, unless the last one was the same. Without an error the next one is news again.
func (e *podEvents) warn(p *corev1.Pod, subject, reason string, err error) {
	note := ""
	if err != nil {
		note = err.Error()
	}
	if !e.isNews(client.ObjectKeyFromObject(p), p.UID, subject, note) || err == nil {
		return
	}
	e.recorder.Eventf(p, nil, corev1.EventTypeWarning, reason, "ProvideNICs", "%s", vpcport.Cut(note, MaxNote))
}

// isNews remembers a note, and reports whether the last one about the subject was another.
func (e *podEvents) isNews(pod types.NamespacedName, uid types.UID, subject, note string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	last := e.last[pod]
	if last.uid != uid { // another pod of its name
		last = lastNotes{uid: uid, of: map[string]string{}}
	}
	if last.of[subject] == note {
		return false
	}
	last.of[subject] = note
	e.last[pod] = last
	return true
}

// forget drops what is remembered of a pod that is gone.
func (e *podEvents) forget(pod types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.last, pod)
}

// policyTrouble returns what is wrong with the NICPolicies of a pod, whose namespace has had some since
// a moment or has none. An empty reason: nothing.
func policyTrouble(p *corev1.Pod, since time.Time, some bool) (reason, text string) {
	if over := p.Annotations[v1alpha1.AnnotationNICPolicyOverlap]; over != "" {
		return "NICPolicyOverlap", fmt.Sprintf("several policies select the pod: the oldest counts, %s; not counted: %s",
			strings.ReplaceAll(p.Annotations[v1alpha1.AnnotationNICPolicy], ",", ", "), strings.ReplaceAll(over, ",", ", "))
	}
	_, judged := p.Annotations[v1alpha1.AnnotationNICPolicy]
	// Times of objects are whole seconds.
	if !some || judged || !askedOf(p, "").MayBeSelected() || p.CreationTimestamp.Time.Before(since.Truncate(time.Second)) {
		return "", ""
	}
	return "NICPolicyMissed", "the pod came before the NICPolicies of its namespace were in force: if one is to count for it, recreate the pod"
}
