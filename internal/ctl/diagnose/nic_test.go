package diagnose

import (
	"os"
	"regexp"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

func condition(kind string, status metav1.ConditionStatus, reason, message string, ago time.Duration) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now.Add(-ago))}
}

// plugged is a working NIC of a pod on node-a.
func plugged() NICFacts {
	ref := &v1alpha1.PodReference{Name: "web-0", UID: "u-1"}
	return NICFacts{
		Now: now,
		NIC: &v1alpha1.PodNIC{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0-eth0-x7", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
			Spec:       v1alpha1.PodNICSpec{VPC: "blue", Pod: ref},
			Status: v1alpha1.PodNICStatus{
				Phase: v1alpha1.PhaseActive, Pod: ref, NodeName: "node-a", Host: "host-a", PortID: "p-1", Interface: "eth0", Plug: &v1alpha1.PortPlug{Type: v1alpha1.PlugOVS},
				Node: &v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, PortID: "p-1"},
				Conditions: []metav1.Condition{
					condition(v1alpha1.ConditionPortReady, metav1.ConditionTrue, "Ready", "port p-1", time.Hour),
					condition(v1alpha1.ConditionBound, metav1.ConditionTrue, "Bound", "at host host-a", time.Hour),
				},
			},
		},
		VPC: Of(v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "blue"}, Status: v1alpha1.VPCStatus{Conditions: []metav1.Condition{
			condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready", "", time.Hour),
		}}}),
		Pod:    Of(corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "u-1"}, Spec: corev1.PodSpec{NodeName: "node-a"}}),
		Daemon: Of(Daemon{Pod: "-n kube-system berthd-x", Mode: PortMode, Ready: true}), Operators: Of(Operators{Ready: 1, All: 2}),
	}
}

func TestNIC(t *testing.T) {
	is := func(kind, reason, message string) func(*NICFacts) {
		return func(f *NICFacts) {
			st := &f.NIC.Status
			st.Phase, st.Plug, st.Node = v1alpha1.PhasePending, nil, nil
			if kind == v1alpha1.ConditionPortReady {
				st.PortID = ""
			}
			for i := range st.Conditions {
				if st.Conditions[i].Type == kind {
					st.Conditions[i] = condition(kind, metav1.ConditionFalse, reason, message, time.Minute)
				}
			}
		}
	}
	young := func(f *NICFacts) {
		f.NIC.CreationTimestamp = metav1.NewTime(now.Add(-time.Second))
		for i := range f.NIC.Status.Conditions {
			f.NIC.Status.Conditions[i].LastTransitionTime = f.NIC.CreationTimestamp
		}
	}
	bare := func(f *NICFacts) {
		f.NIC.Status = v1alpha1.PodNICStatus{}
	}
	bound := func(f *NICFacts) { f.NIC.Status.Phase, f.NIC.Status.Node = v1alpha1.PhaseBound, nil }
	for name, tt := range map[string]struct {
		edit []func(*NICFacts)
		want Verdict
		says string // expected in the summary or remedy
	}{
		"works":                {nil, Works, "Port p-1 is plugged on node node-a"},
		"pod not readable":     {[]func(*NICFacts){func(f *NICFacts) { f.Pod = Unread[corev1.Pod]("forbidden") }}, Works, ""},
		"new NIC":              {[]func(*NICFacts){bare, young}, Starting, "being created"},
		"no port, no reason":   {[]func(*NICFacts){bare}, NoPort, "berth-operator has given no reason"},
		"no port, no operator": {[]func(*NICFacts){bare, func(f *NICFacts) { f.Operators = Of(Operators{All: 2}) }}, NoPort, "None of 2 berth-operator pods"},
		"VPC does not exist":   {[]func(*NICFacts){bare, young, func(f *NICFacts) { f.VPC = Fact[v1alpha1.VPC]{} }}, VPCNotReady, "VPC blue does not exist"},
		"VPC unreachable": {[]func(*NICFacts){bare, func(f *NICFacts) {
			f.VPC.Value.Status.Conditions[0] = condition(v1alpha1.ConditionReady, metav1.ConditionFalse, "NoAnswer", "connection refused", time.Minute)
		}}, VPCNotReady, "connection refused"},
		"VPC unreachable, NIC plugged": {[]func(*NICFacts){func(f *NICFacts) {
			f.VPC.Value.Status.Conditions[0] = condition(v1alpha1.ConditionReady, metav1.ConditionFalse, "NoAnswer", "connection refused", time.Minute)
		}}, Works, ""},
		"subnet full":                     {[]func(*NICFacts){is(v1alpha1.ConditionPortReady, "SubnetFull", "subnet web is full")}, NoPort, "subnet web is full"},
		"request rejected":                {[]func(*NICFacts){is(v1alpha1.ConditionPortReady, "Refused", "ip: 10.0.0.1 is the gateway")}, NoPort, "Correct the request of the pod"},
		"port deleted":                    {[]func(*NICFacts){is(v1alpha1.ConditionPortReady, "PortDeleted", "port p-1 was deleted by somebody else")}, PortDiffers, "deleted by somebody else"},
		"port used by other software":     {[]func(*NICFacts){is(v1alpha1.ConditionPortReady, "Conflict", "port p-1 is in use by nova")}, PortDiffers, "in use by nova"},
		"agent down":                      {[]func(*NICFacts){is(v1alpha1.ConditionBound, "BindingFailed", "could not bind the port at host host-a")}, NotBound, "agent runs on the node"},
		"still plugged on another node":   {[]func(*NICFacts){is(v1alpha1.ConditionBound, "StillPlugged", "node node-b still reports the port as plugged")}, NotBound, "out-of-service"},
		"unknown reason":                  {[]func(*NICFacts){is(v1alpha1.ConditionBound, "NewReason", "of a later release")}, NotBound, "Berth retries"},
		"pod not scheduled":               {[]func(*NICFacts){is(v1alpha1.ConditionBound, "Unscheduled", "pod web-0 has no node yet")}, Unscheduled, ""},
		"pod not scheduled, no message":   {[]func(*NICFacts){is(v1alpha1.ConditionBound, "Unscheduled", ""), func(f *NICFacts) { f.Pod.Value.Spec.NodeName = "" }}, Unscheduled, "has no node yet"},
		"unused":                          {[]func(*NICFacts){is(v1alpha1.ConditionBound, "NoPod", "no pod has it"), func(f *NICFacts) { f.NIC.Spec.Pod, f.NIC.Status.Pod = nil, nil }}, Unused, "no pod uses it"},
		"unused, spec names a pod":        {[]func(*NICFacts){is(v1alpha1.ConditionBound, "NoPod", "no pod has it")}, Unused, "No pod uses it"},
		"bound to another node":           {[]func(*NICFacts){func(f *NICFacts) { f.Pod.Value.Spec.NodeName = "node-b" }}, BoundElsewhere, "is on node node-b"},
		"bound to another node, recently": {[]func(*NICFacts){young, func(f *NICFacts) { f.Pod.Value.Spec.NodeName = "node-b" }}, Starting, "is on node node-b"},
		"pod deleted":                     {[]func(*NICFacts){func(f *NICFacts) { f.Pod = Fact[corev1.Pod]{} }}, PodMissing, "pod web-0 is gone"},
		"pod replaced":                    {[]func(*NICFacts){func(f *NICFacts) { f.Pod.Value.UID = "u-2" }}, PodMissing, "pod web-0 is gone"},
		"not bound":                       {[]func(*NICFacts){func(f *NICFacts) { f.NIC.Status.Phase = v1alpha1.PhaseCreated }}, NotBound, "has not been bound"},
		"being bound":                     {[]func(*NICFacts){young, func(f *NICFacts) { f.NIC.Status.Phase = v1alpha1.PhaseCreated }}, Starting, "being bound"},
		"being plugged":                   {[]func(*NICFacts){bound, young}, Starting, "has not reported it plugged yet"},
		"node reports nothing":            {[]func(*NICFacts){bound}, NotPlugged, "for 1h0m0s"},
		"node reports another port": {[]func(*NICFacts){bound, func(f *NICFacts) {
			f.NIC.Status.Node = &v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, PortID: "p-0"}
		}}, NotPlugged, ""},
		"no berthd on the node":      {[]func(*NICFacts){bound, func(f *NICFacts) { f.Daemon = Fact[Daemon]{} }}, NotPlugged, "no berthd pod runs there"},
		"berthd crashes on the node": {[]func(*NICFacts){bound, func(f *NICFacts) { f.Daemon.Value.Ready, f.Daemon.Value.Why = false, "CrashLoopBackOff" }}, NotPlugged, "CrashLoopBackOff"},
		"plug failed": {[]func(*NICFacts){bound, func(f *NICFacts) {
			f.NIC.Status.Node = &v1alpha1.PodNICNode{State: v1alpha1.NodeFailed, PortID: "p-1", Message: "no bridge br-int"}
		}}, PlugFailed, "no bridge br-int"},
		"plug failed, known reason": {[]func(*NICFacts){bound, func(f *NICFacts) {
			f.NIC.Status.Node = &v1alpha1.PodNICNode{State: v1alpha1.NodeFailed, PortID: "p-1", Reason: "InterfaceExists", Message: "eth1 exists"}
		}}, PlugFailed, "give the NIC another name"},
		"plugged, address changed": {[]func(*NICFacts){func(f *NICFacts) {
			f.NIC.Status.Conditions = append(f.NIC.Status.Conditions, condition(v1alpha1.ConditionPlugged, metav1.ConditionFalse, "AddressChanged", "port p-1 has 10.0.0.9/24 now", time.Minute))
		}}, PlugFailed, "has 10.0.0.9/24 now"},
		"not released, unplug failed": {[]func(*NICFacts){func(f *NICFacts) {
			f.NIC.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Hour)}
			f.NIC.Status.Node.Reason, f.NIC.Status.Node.Message = "UnplugFailed", "device is busy"
		}}, NotReleased, "node-a cannot unplug it: device is busy"},
		"plugged, not active":     {[]func(*NICFacts){func(f *NICFacts) { f.NIC.Status.Phase = v1alpha1.PhaseBound }}, NotActive, "does not report it active"},
		"plugged, not active yet": {[]func(*NICFacts){young, func(f *NICFacts) { f.NIC.Status.Phase = v1alpha1.PhaseBound }}, Starting, "yet"},
		"being released":          {[]func(*NICFacts){func(f *NICFacts) { f.NIC.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Second)} }}, Ending, ""},
		"not released":            {[]func(*NICFacts){func(f *NICFacts) { f.NIC.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Hour)} }}, NotReleased, "for 1h0m0s"},
		"not released, request rejected": {[]func(*NICFacts){is(v1alpha1.ConditionPortReady, "Forbidden", "delete_port is not allowed"), func(f *NICFacts) {
			f.NIC.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Hour)}
		}}, NotReleased, "delete_port is not allowed"},
		"not released, still plugged": {[]func(*NICFacts){is(v1alpha1.ConditionBound, "StillPlugged", "node node-b says"), func(f *NICFacts) {
			f.NIC.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Hour)}
		}}, NotReleased, "node node-b says"},
	} {
		t.Run(name, func(t *testing.T) {
			f := plugged()
			for _, edit := range tt.edit {
				edit(&f)
			}
			wantDiagnosis(t, NIC(f), tt.want, tt.says)
		})
	}
}

// docs/troubleshoot/ports.md and docs/troubleshoot/egress.md explain exactly the reasons that have a remedy.
func TestRemediesMatchDocumentation(t *testing.T) {
	for file, of := range map[string]struct {
		remedies map[string]string
		least    int
	}{
		"ports.md": {remedies, 30}, "egress.md": {egressRemedies, 15},
	} {
		page, err := os.ReadFile("../../../docs/troubleshoot/" + file)
		if err != nil {
			t.Fatal(err)
		}
		explained := map[string]bool{}
		for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\| `").FindAllStringSubmatch(string(page), -1) {
			for _, m := range regexp.MustCompile("`([A-Za-z]+)`").FindAllStringSubmatch(row[1], -1) {
				explained[m[1]] = true
				if of.remedies[m[1]] == "" {
					t.Errorf("%s: reason %s has no remedy", file, m[1])
				}
			}
		}
		for reason := range of.remedies {
			if !explained[reason] {
				t.Errorf("%s does not explain reason %s", file, reason)
			}
		}
		if len(explained) < of.least {
			t.Errorf("%s: found %d reasons, want at least %d", file, len(explained), of.least)
		}
	}
}
