package diagnose

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// served is a client of Egress egress/internet whose gateways serve it.
func served() ClientFacts {
	uses := []v1alpha1.EgressReference{{Namespace: "egress", Name: "internet", UID: "e-1"}}
	return ClientFacts{
		Now: now,
		Client: &v1alpha1.EgressClient{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
			Spec:       v1alpha1.EgressClientSpec{PodUID: "u-1", NodeName: "node-a", Egresses: uses},
			Status: v1alpha1.EgressClientStatus{
				Conditions: []metav1.Condition{condition("Ready", metav1.ConditionTrue, "SetUp", "", time.Hour)},
				Node:       &v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, Addresses: []string{"10.0.0.5"}, Egresses: uses},
			},
		},
		Daemon: Of(Daemon{Pod: "-n kube-system berthd-x", Ready: true}), Operators: Of(Operators{Ready: 1, All: 2}),
	}
}

// isNot sets a client's Ready condition to false.
func isNot(reason, message string, ago time.Duration) func(*ClientFacts) {
	return func(f *ClientFacts) {
		f.Client.Status.Conditions[0] = condition("Ready", metav1.ConditionFalse, reason, message, ago)
	}
}

func TestEgressClient(t *testing.T) {
	unsaid := func(f *ClientFacts) { f.Client.Status = v1alpha1.EgressClientStatus{} }
	const waits = "berthd of node node-a has not set up the pod's tunnels yet"
	for name, tt := range map[string]struct {
		edit []func(*ClientFacts)
		want Verdict
		says string // expected in the summary or remedy
	}{
		"served":           {nil, Works, "gateways serve it"},
		"goes":             {[]func(*ClientFacts){func(f *ClientFacts) { f.Client.DeletionTimestamp = &metav1.Time{Time: now} }}, Ending, ""},
		"no client":        {[]func(*ClientFacts){func(f *ClientFacts) { f.Client.Spec.Egresses = nil }}, Unused, "uses no Egress"},
		"new client":       {[]func(*ClientFacts){unsaid, func(f *ClientFacts) { f.Client.CreationTimestamp = metav1.NewTime(now) }}, Starting, ""},
		"no status":        {[]func(*ClientFacts){unsaid}, NotLookedAt, "berth-operator has not reported on it for 1h0m0s"},
		"no operator":      {[]func(*ClientFacts){unsaid, func(f *ClientFacts) { f.Operators = Of(Operators{All: 2}) }}, NotLookedAt, "None of 2"},
		"no Egress":        {[]func(*ClientFacts){isNot("NotFound", "there is no Egress egress/none", time.Minute)}, EgressRefused, "Create the Egress"},
		"not allowed":      {[]func(*ClientFacts){isNot("NotAllowed", "Egress egress/bank: not for shop", time.Minute)}, EgressRefused, "not for shop"},
		"overlaps":         {[]func(*ClientFacts){isNot("Overlaps", "0.0.0.0/0 contains 10.0.0.0/8", time.Minute)}, EgressRefused, "one of the two"},
		"waits":            {[]func(*ClientFacts){isNot("WaitingForNode", waits, time.Second)}, Starting, "has not set up"},
		"waits for a move": {[]func(*ClientFacts){isNot("WaitingForMigration", "Coil's gateways serve the pod", time.Hour)}, Works, "Coil's gateways serve"},
		"waits too long":   {[]func(*ClientFacts){isNot("WaitingForNode", waits, time.Hour)}, NotSetUp, "runs with --egress"},
		// Another reason may have applied for most of that time.
		"not ready": {[]func(*ClientFacts){isNot("WaitingForNode", waits, time.Hour)}, NotSetUp, "tunnels yet. It has not been ready for 1h0m0s"},
		"no berthd": {[]func(*ClientFacts){isNot("WaitingForNode", waits, time.Second), func(f *ClientFacts) { f.Daemon = Fact[Daemon]{} }}, NotSetUp, "no berthd pod runs there"},
		"berthd not ready": {[]func(*ClientFacts){isNot("WaitingForNode", waits, time.Second), func(f *ClientFacts) {
			f.Daemon = Of(Daemon{Pod: "-n kube-system berthd-x", Why: "CrashLoopBackOff"})
		}}, NotSetUp, "CrashLoopBackOff"},
		"node fails":     {[]func(*ClientFacts){isNot("SetUpFailed", "berthd of node node-a: no FoU", time.Minute)}, NotSetUp, "no FoU"},
		"conflict":       {[]func(*ClientFacts){isNot("AddressConflict", "10.0.0.5 is shop/web-1's", time.Minute)}, NotServed, "assigned it twice"},
		"no gateway":     {[]func(*ClientFacts){isNot("NoGateway", "Egress egress/internet has no gateway", time.Minute)}, NoGateway, "kubectl berth egresses"},
		"unknown reason": {[]func(*ClientFacts){isNot("OfLater", "something", time.Minute)}, NotServed, "something"},
	} {
		t.Run(name, func(t *testing.T) {
			f := served()
			for _, edit := range tt.edit {
				edit(&f)
			}
			wantDiagnosis(t, EgressClient(f), tt.want, tt.says)
		})
	}
}
