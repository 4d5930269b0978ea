package gatewayplan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
)

var moment = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

// gateway returns a ready pod of an Egress's Deployment.
func gateway(name string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), Labels: Labels("nat"),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "nat-5d9f", UID: "set", Controller: new(true)}},
	}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, ip := range ips {
		p.Status.PodIP = ips[0]
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func ended(p *corev1.Pod) *corev1.Pod {
	p.DeletionTimestamp = &moment
	return p
}

func unreadied(p *corev1.Pod) *corev1.Pod {
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	return p
}

func TestIsGateway(t *testing.T) {
	type set = metav1.PartialObjectMetadata
	for name, tt := range map[string]struct {
		change func(*corev1.Pod, *set)
		want   bool
	}{
		"gateway":                             {func(*corev1.Pod, *set) {}, true},
		"label of another Egress":             {func(p *corev1.Pod, _ *set) { p.Labels = Labels("other") }, false},
		"no owner":                            {func(p *corev1.Pod, _ *set) { p.OwnerReferences = nil }, false},
		"owner with another UID":              {func(p *corev1.Pod, _ *set) { p.OwnerReferences[0].UID = "other" }, false},
		"owner that is not its controller":    {func(p *corev1.Pod, _ *set) { p.OwnerReferences[0].Controller = nil }, false},
		"host network":                        {func(p *corev1.Pod, _ *set) { p.Spec.HostNetwork = true }, false},
		"ReplicaSet without owner":            {func(_ *corev1.Pod, s *set) { s.OwnerReferences = nil }, false},
		"another Deployment":                  {func(_ *corev1.Pod, s *set) { s.OwnerReferences[0].Name = "web" }, false},
		"earlier Deployment of the same name": {func(_ *corev1.Pod, s *set) { s.OwnerReferences[0].UID = "before" }, false},
		"StatefulSet":                         {func(_ *corev1.Pod, s *set) { s.OwnerReferences[0].Kind = "StatefulSet" }, false},
	} {
		p, of := gateway("nat-1"), &set{ObjectMeta: metav1.ObjectMeta{
			Name: "nat-5d9f", UID: "set", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "nat", UID: "deployment", Controller: new(true)}},
		}}
		of.SetGroupVersionKind(ReplicaSet)
		tt.change(p, of)
		if got := IsGateway("nat", p, of, "deployment"); got != tt.want {
			t.Errorf("%s: IsGateway() = %v", name, got)
		}
	}
	if p := gateway("nat-1"); IsGateway("nat", p, nil, "deployment") {
		t.Error("IsGateway() = true without a ReplicaSet")
	}
}

func TestGateways(t *testing.T) {
	got := Gateways([]*corev1.Pod{
		gateway("c", "10.0.0.3", "10.0.0.4", "2001:db8::3"), unreadied(gateway("b", "10.0.0.2")), ended(gateway("a", "10.0.0.1")),
		ended(unreadied(gateway("d", "10.0.0.5"))), gateway("e"), gateway("f", "what"),
	}, nil)
	want := []v1alpha1.EgressGateway{
		{Name: "a", UID: "uid-a", Addresses: []string{"10.0.0.1"}, Ending: true},
		{Name: "c", UID: "uid-c", Addresses: []string{"10.0.0.3", "2001:db8::3"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Gateways() (-want +got):\n%s", d)
	}
	var many []*corev1.Pod
	for i := range 1100 {
		p := gateway(fmt.Sprintf("p%04d", i), "10.0.0.1")
		if i < 200 {
			ended(p)
		}
		many = append(many, p)
	}
	got = Gateways(many, nil)
	ready := 0
	for _, g := range got {
		if !g.Ending {
			ready++
		}
	}
	if len(got) != 1024 || ready != 900 {
		t.Errorf("Gateways() of 1100 pods, 900 of them ready = %d gateways with %d ready, want 1024 with 900 ready", len(got), ready)
	}
}

// A gateway whose program was killed keeps its connections while it restarts.
func TestRestartingGatewaysKeepConnections(t *testing.T) {
	starting := func(name, address string) *corev1.Pod {
		p := unreadied(gateway(name, address))
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse})
		return p
	}
	lost := unreadied(gateway("lost", "10.0.0.4"))
	lost.Status.Conditions = append(lost.Status.Conditions, corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue})
	a := v1alpha1.EgressGateway{Name: "a", UID: "uid-a", Addresses: []string{"10.0.0.1"}}
	b := v1alpha1.EgressGateway{Name: "b", UID: "uid-b", Addresses: []string{"10.0.0.2"}}
	away := a
	away.Ending = true
	for name, tt := range map[string]struct {
		pods         []*corev1.Pod
		before, want []v1alpha1.EgressGateway
	}{
		"another gateway is ready": {[]*corev1.Pod{starting("a", "10.0.0.1"), gateway("b", "10.0.0.2")}, []v1alpha1.EgressGateway{a, b}, []v1alpha1.EgressGateway{away, b}},
		"only gateway":             {[]*corev1.Pod{starting("a", "10.0.0.1")}, []v1alpha1.EgressGateway{away}, []v1alpha1.EgressGateway{a}},
		"was never a gateway":      {[]*corev1.Pod{starting("a", "10.0.0.1"), gateway("b", "10.0.0.2")}, []v1alpha1.EgressGateway{b}, []v1alpha1.EgressGateway{b}},
		"being deleted":            {[]*corev1.Pod{ended(starting("a", "10.0.0.1")), gateway("b", "10.0.0.2")}, []v1alpha1.EgressGateway{a, b}, []v1alpha1.EgressGateway{b}},
		"node unreachable":         {[]*corev1.Pod{lost, gateway("b", "10.0.0.2")}, []v1alpha1.EgressGateway{{Name: "lost", UID: "uid-lost"}, b}, []v1alpha1.EgressGateway{b}},
		"sandbox being recreated":  {[]*corev1.Pod{starting("a", "what"), gateway("b", "10.0.0.2")}, []v1alpha1.EgressGateway{a, b}, []v1alpha1.EgressGateway{b}},
	} {
		if d := cmp.Diff(tt.want, Gateways(tt.pods, tt.before)); d != "" {
			t.Errorf("%s: Gateways() (-want +got):\n%s", name, d)
		}
	}
	e := &v1alpha1.Egress{Status: v1alpha1.EgressStatus{Gateways: []v1alpha1.EgressGateway{a}}}
	if st := Status(e, Seen{Pods: []*corev1.Pod{starting("a", "10.0.0.1")}}, metav1.Now()); st.ReadyGateways != 0 || len(st.Gateways) != 1 {
		t.Errorf("while the only gateway restarts, %d are ready of %v, want 0 of 1", st.ReadyGateways, st.Gateways)
	}
}

func TestConditions(t *testing.T) {
	service := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1"}}}
	waits := gateway("nat-1")
	waits.Status = corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "egress", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"},
	}}}}
	homeless := gateway("nat-2")
	homeless.Status = corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes"}}}
	refused := &appsv1.Deployment{Status: appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{
		{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "violates PodSecurity"},
	}}}
	for name, tt := range map[string]struct {
		spec  func(*v1alpha1.EgressSpec)
		seen  Seen
		kind  string
		want  string // reason
		words string
	}{
		"ready":                {nil, Seen{Pods: []*corev1.Pod{gateway("a", "10.0.0.1")}}, v1alpha1.ConditionAvailable, v1alpha1.EgressGatewaysReady, ""},
		"no pods":              {nil, Seen{}, v1alpha1.ConditionAvailable, v1alpha1.EgressNoGateways, "no pod of Deployment nat"},
		"scaled to 0":          {func(s *v1alpha1.EgressSpec) { s.Replicas = new(int32(0)) }, Seen{}, v1alpha1.ConditionAvailable, v1alpha1.EgressNoReplicas, "spec.replicas is 0"},
		"image pull error":     {nil, Seen{Pods: []*corev1.Pod{waits}}, v1alpha1.ConditionAvailable, v1alpha1.EgressNoGateways, "pod nat-1 waits: container egress: ErrImagePull: no such image"},
		"unschedulable":        {nil, Seen{Pods: []*corev1.Pod{homeless}}, v1alpha1.ConditionAvailable, v1alpha1.EgressNoGateways, "pod nat-2 has no node: Unschedulable: 0/3 nodes"},
		"probe failing":        {nil, Seen{Pods: []*corev1.Pod{unreadied(gateway("a", "10.0.0.1"))}}, v1alpha1.ConditionAvailable, v1alpha1.EgressNoGateways, "pod a is not ready: "},
		"only ending gateways": {nil, Seen{Pods: []*corev1.Pod{ended(gateway("a", "10.0.0.1"))}}, v1alpha1.ConditionAvailable, v1alpha1.EgressNoGateways, ""},
		"four starting":        {nil, Seen{Pods: []*corev1.Pod{unreadied(gateway("a")), unreadied(gateway("b")), unreadied(gateway("c")), unreadied(gateway("d"))}}, v1alpha1.ConditionAvailable, v1alpha1.EgressNoGateways, "pod a starts; pod b starts; pod c starts; and 1 more"},
		"no IPv6 address": {func(s *v1alpha1.EgressSpec) { s.Destinations = []string{"10.0.0.0/8", "::/0"} },
			Seen{Pods: []*corev1.Pod{gateway("a", "10.0.0.1")}}, v1alpha1.ConditionAvailable, v1alpha1.EgressFamilyMissing, "spec.destinations[1]: ::/0 is of IPv6"},
		"no IPv4 address": {nil, Seen{Pods: []*corev1.Pod{gateway("a", "2001:db8::1")}}, v1alpha1.ConditionAvailable, v1alpha1.EgressFamilyMissing, "spec.destinations[0]: 0.0.0.0/0 is of IPv4"},
		"IPv6 only on an ending gateway": {func(s *v1alpha1.EgressSpec) { s.Destinations = []string{"::/0"} },
			Seen{Pods: []*corev1.Pod{gateway("a", "10.0.0.1"), ended(gateway("b", "2001:db8::1"))}}, v1alpha1.ConditionAvailable, v1alpha1.EgressFamilyMissing, ""},
		"Service without IPv6": {func(s *v1alpha1.EgressSpec) { s.Destinations, s.TunnelTo = []string{"::/0"}, v1alpha1.TunnelToService },
			Seen{Service: service, Pods: []*corev1.Pod{gateway("a", "2001:db8::1")}}, v1alpha1.ConditionAvailable, v1alpha1.EgressFamilyMissing, "Service nat has no address of that family"},
		"Service without IPv6, not used": {func(s *v1alpha1.EgressSpec) { s.Destinations = []string{"::/0"} },
			Seen{Service: service, Pods: []*corev1.Pod{gateway("a", "2001:db8::1")}}, v1alpha1.ConditionAvailable, v1alpha1.EgressGatewaysReady, ""},
		"foreign pods in the Service": {func(s *v1alpha1.EgressSpec) { s.TunnelTo = v1alpha1.TunnelToService },
			Seen{Service: service, Pods: []*corev1.Pod{gateway("a", "10.0.0.1")}, Others: []*corev1.Pod{gateway("web-2", "10.0.0.3"), gateway("web-1", "10.0.0.2")}},
			v1alpha1.ConditionAvailable, v1alpha1.EgressForeignPods, "Service nat would send clients' packets to pod web-1, which does not belong to Deployment nat"},
		"foreign pods that the Service does not send to": {func(s *v1alpha1.EgressSpec) { s.TunnelTo = v1alpha1.TunnelToService },
			Seen{Service: service, Pods: []*corev1.Pod{gateway("a", "10.0.0.1")}, Others: []*corev1.Pod{gateway("b"), ended(gateway("c", "10.0.0.2")), unreadied(gateway("d", "10.0.0.3"))}},
			v1alpha1.ConditionAvailable, v1alpha1.EgressGatewaysReady, ""},
		"foreign pods, Service not used": {nil,
			Seen{Service: service, Pods: []*corev1.Pod{gateway("a", "10.0.0.1")}, Others: []*corev1.Pod{gateway("web-1", "10.0.0.2")}},
			v1alpha1.ConditionAvailable, v1alpha1.EgressGatewaysReady, ""},
		"all applied":  {nil, Seen{}, v1alpha1.ConditionServiceReady, v1alpha1.EgressApplied, ""},
		"problem":      {nil, Seen{Problem: &Problem{"A", "b"}, Deployment: refused}, v1alpha1.ConditionServiceReady, "A", "b"},
		"pods refused": {nil, Seen{Deployment: refused}, v1alpha1.ConditionServiceReady, v1alpha1.EgressPodsRefused, "violates PodSecurity"},
		"long message": {nil, Seen{Problem: &Problem{"A", strings.Repeat("a", 5000)}}, v1alpha1.ConditionServiceReady, "A", strings.Repeat("a", 1024)},
	} {
		e := newEgress(tt.spec)
		e.Generation = 7
		st := Status(e, tt.seen, moment)
		c := meta.FindStatusCondition(st.Conditions, tt.kind)
		if addresses := len(st.ServiceIPs); tt.seen.Service != nil && (addresses == 0) != (tt.want == v1alpha1.EgressForeignPods) {
			t.Errorf("%s: status has %d Service addresses", name, addresses)
		}
		good := tt.want == v1alpha1.EgressGatewaysReady || tt.want == v1alpha1.EgressApplied
		if c == nil || c.Reason != tt.want || (c.Status == metav1.ConditionTrue) != good || !strings.Contains(c.Message, tt.words) || c.ObservedGeneration != 7 || len(c.Message) > 1024 {
			t.Errorf("%s: condition = %+v, want reason %s and message containing %q", name, c, tt.want, tt.words)
		}
	}
}

// The other fields of a status; an unchanged condition keeps its transition time.
func TestStatus(t *testing.T) {
	e := newEgress(nil)
	e.Generation = 3
	seen := Seen{
		Service: &corev1.Service{Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1", "FD00::1", "None"}}},
		Pods:    []*corev1.Pod{gateway("a", "10.0.0.1"), ended(gateway("b", "10.0.0.2")), unreadied(gateway("c", "10.0.0.3"))},
	}
	st := Status(e, seen, moment)
	if st.Replicas != 2 || st.ReadyGateways != 1 || len(st.Gateways) != 2 || st.Selector != "egress.berth.dev/name=nat" || st.ObservedGeneration != 3 || len(st.Conditions) != 2 {
		t.Errorf("Status() = %+v, want one ready gateway of two and its own selector", st)
	}
	if d := cmp.Diff([]string{"10.96.0.1", "fd00::1"}, st.ServiceIPs); d != "" {
		t.Errorf("status.serviceIPs (-want +got):\n%s", d)
	}
	e.Status = st
	later := metav1.NewTime(moment.Add(time.Hour))
	if d := cmp.Diff(st, Status(e, seen, later)); d != "" {
		t.Errorf("Status() without changes (-want +got):\n%s", d)
	}
	seen.Pods = nil
	again := Status(e, seen, later)
	if c := meta.FindStatusCondition(again.Conditions, v1alpha1.ConditionAvailable); c.Status != metav1.ConditionFalse || !c.LastTransitionTime.Equal(&later) {
		t.Errorf("condition Available = %+v, want False with a new transition time", c)
	}
}
