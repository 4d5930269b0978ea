package podnics

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// Each is said once of a pod; another pod of its name is another.
func TestToldOnce(t *testing.T) {
	said, web := newPodEvents(nil), types.NamespacedName{Namespace: "default", Name: "web"}
	for i, tt := range []struct {
		uid       types.UID
		nic, text string
		news      bool
	}{
		{"1", "eth0", "", false}, {"1", "eth0", "full", true}, {"1", "eth0", "full", false}, {"1", "eth1", "full", true},
		{"1", "eth0", "", true}, {"1", "eth0", "full", true}, {"2", "eth0", "full", true}, {"2", "eth1", "", false},
	} {
		if got := said.isNews(web, tt.uid, tt.nic, tt.text); got != tt.news {
			t.Errorf("%d: news is %v: %+v", i, got, tt)
		}
	}
}

// What is said is as the API server keeps it: cut between characters.
func TestShortened(t *testing.T) {
	for text, want := range map[string]string{"": "", "full": "full", "voll für heute": "voll f", "\xffull": "ull"} {
		if got := vpcport.Cut(text, 7); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	st := v1alpha1.PodNICStatus{}
	setCondition(&st, metav1.Condition{Type: v1alpha1.ConditionPortReady, Message: "x" + strings.Repeat("ü", maxMessage)}, metav1.Now())
	if m := st.Conditions[0].Message; !utf8.ValidString(m) || len(m) != maxMessage-1 {
		t.Errorf("%d bytes: %q", len(m), m[len(m)-4:])
	}
}

// Nothing is kept of pods that are gone or have ended, also of those that got no NIC.
func TestNothingIsKeptOfPods(t *testing.T) {
	w := start(t, Options{})
	for _, name := range []string{"gone", "ended"} {
		w.pod(name, `[{subnett: a}]`)
		w.schedule(name, "node-a")
		w.awaitEvent(name, "NICsRefused", "unknown")
	}
	w.pod("served", `[{subnet: web, securityGroup: g-none}]`)
	w.awaitNIC("served", "eth0", "waits", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, "NotFound"))
	w.deletePod("gone")
	w.deletePod("served")
	w.finish("ended", corev1.PodFailed)
	harness.Eventually(t, limit, "all are forgotten", poll.True(func() bool {
		w.c.nics.events.mu.Lock()
		defer w.c.nics.events.mu.Unlock()
		return len(w.c.nics.events.last) == 0
	}))
}

func TestPolicyTrouble(t *testing.T) {
	at := time.Unix(1000, 0)
	const missed, overlap = "NICPolicyMissed", "NICPolicyOverlap"
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		host        bool
		made        time.Duration // after the oldest policy
		none        bool          // there is no policy
		want, says  string
	}{
		{name: "no policies", none: true},
		{name: "selected", annotations: map[string]string{v1alpha1.AnnotationNICPolicy: "NICPolicy/a", v1alpha1.AnnotationVPC: "v", v1alpha1.AnnotationNICs: "[{}]"}},
		{name: "looked at", annotations: map[string]string{v1alpha1.AnnotationNICPolicy: ""}},
		{name: "older", made: -time.Second},
		{name: "missed", made: time.Second, want: missed, says: "recreate the pod"},
		{name: "missed in the same second", want: missed},
		{name: "with a VPC of its own", annotations: map[string]string{v1alpha1.AnnotationVPC: ""}},
		{name: "with NICs of its own", annotations: map[string]string{v1alpha1.AnnotationNICs: "[{}]"}},
		{name: "static", annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}},
		{name: "of the node's network", host: true},
		{
			name: "two", annotations: map[string]string{v1alpha1.AnnotationNICPolicy: "NICPolicy/a", v1alpha1.AnnotationNICPolicyOverlap: "NICPolicy/b,NICPolicy/c"},
			want: overlap, says: "the oldest counts, NICPolicy/a; not counted: NICPolicy/b, NICPolicy/c",
		},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tt.annotations, CreationTimestamp: metav1.NewTime(at.Add(tt.made))}}
		p.Spec.HostNetwork = tt.host
		reason, text := policyTrouble(p, at.Add(300*time.Millisecond), !tt.none)
		if reason != tt.want || !strings.Contains(text, tt.says) {
			t.Errorf("%s: got %q, %q, want %q, %q", tt.name, reason, text, tt.want, tt.says)
		}
	}
}
