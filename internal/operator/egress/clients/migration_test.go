package clients

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
)

// Running pods on nodes that have not moved from Coil wait for the migration, however long, and are not reported as not
// served. Other pods are.
func TestClientsThatWaitForMigration(t *testing.T) {
	created := metav1.NewTime(time.Unix(1000, 0))
	egress := func(name, coils, destination string) *clientplan.Egress {
		o := &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: name, Annotations: map[string]string{
			v1alpha1.AnnotationCoilClients: "true", v1alpha1.AnnotationCoilEgress: coils,
		}}}
		o.Spec = v1alpha1.EgressSpec{Destinations: []string{destination}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}}}
		return clientplan.NewEgress(o)
	}
	const moving, moved = "moving", "moved"
	all := clientplan.NewEgresses("berth-system", []*clientplan.Egress{egress(moving, "1", "203.0.113.0/24"), egress(moved, "", "198.51.100.0/24")})
	pod := func(annotation, names string, ips ...corev1.PodIP) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "2", CreationTimestamp: created, Annotations: map[string]string{annotation + "internet": names}}}
		p.Spec.NodeName, p.Status.PodIPs = "node-1", ips
		return p
	}
	runs := corev1.PodIP{IP: "10.0.0.5"}
	for name, tt := range map[string]struct {
		pod    *corev1.Pod
		status v1alpha1.EgressClientStatus
		want   string
	}{
		"runs, not moved":               {pod: pod(v1alpha1.AnnotationCoilEgressPrefix, moving, runs), want: reasonMigration},
		"does not run":                  {pod: pod(v1alpha1.AnnotationCoilEgressPrefix, moving), want: reasonWaiting},
		"uses an Egress that has moved": {pod: pod(v1alpha1.AnnotationCoilEgressPrefix, moving+","+moved, runs), want: reasonWaiting},
		"names it for Berth":            {pod: pod(v1alpha1.AnnotationEgressPrefix, moving, runs), want: reasonWaiting},
		"its node failed": {
			pod:    pod(v1alpha1.AnnotationCoilEgressPrefix, moving, runs),
			status: v1alpha1.EgressClientStatus{Node: &v1alpha1.EgressClientNode{State: v1alpha1.EgressClientFailed}}, want: reasonFailed,
		},
	} {
		is := clientplan.Pod{Namespace: membership.Namespace{Name: "shop"}, Annotations: tt.pod.Annotations}
		o := &v1alpha1.EgressClient{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: created}, Status: tt.status}
		v := podView{pod: tt.pod, o: o, egresses: all, is: is, decision: clientplan.Decide(is, all)}
		if c := v.ready(); c == nil || c.Status != metav1.ConditionFalse || c.Reason != tt.want {
			t.Errorf("%s: condition %+v, want the reason %s", name, c, tt.want)
		}
		reported := tt.want
		if reported == reasonMigration {
			reported = ""
		}
		if got := v.waitsFor(created.Add(time.Hour)); got != reported {
			t.Errorf("%s: after an hour it counts as not served because of %q, want %q", name, got, reported)
		}
	}
}
