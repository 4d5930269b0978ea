package podnics

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

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
		{name: "missed", made: time.Second, want: missed, says: "make the pod anew"},
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
