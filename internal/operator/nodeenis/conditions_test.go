package nodeenis

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestConditions(t *testing.T) {
	at := time.Date(2026, 11, 21, 7, 0, 0, 5, time.UTC)
	denied := eni.Status{Confirmed: true, Needed: 4, Trouble: eni.Trouble{Grows: true, Class: cloud.Permission, LastError: "create: denied (allow it)", NextTry: at}}
	for _, tt := range []struct {
		name string
		look outlook
		want string // Ready, InDeficit, AtCapacity, Degraded
	}{
		{"not looked at", outlook{}, "False NotObserved, False TargetMet, False RoomToGrow, False AsExpected"},
		{"well", outlook{status: eni.Status{Confirmed: true, Available: 8}, free: 8}, "True AddressesAvailable, False TargetMet, False RoomToGrow, False AsExpected"},
		{"nothing wanted", outlook{status: eni.Status{Confirmed: true}}, "True AddressesAvailable, False TargetMet, False RoomToGrow, False AsExpected"},
		{"growing", outlook{status: eni.Status{Confirmed: true, Needed: 8}}, "False Allocating, True Allocating, False RoomToGrow, False AsExpected"},
		{"denied", outlook{status: denied, free: 3}, "False Permission, True Allocating, False RoomToGrow, True Permission"},
		{"shrinking denied", outlook{status: eni.Status{Confirmed: true, Trouble: eni.Trouble{Class: cloud.Permission, LastError: "x"}}, free: 3},
			"True AddressesAvailable, False TargetMet, False RoomToGrow, True Permission"},
		{"full", outlook{status: eni.Status{Confirmed: true, Needed: 4, AtCapacity: true, Shortage: plan.ReasonENILimit, Explanation: "every ENI is full"}},
			"False NoAddresses, True EniLimit, True EniLimit, False AsExpected"},
		{"subnet full", outlook{status: eni.Status{Confirmed: true, Needed: 4, Trouble: eni.Trouble{Grows: true, Class: cloud.SubnetFull, LastError: "x"}}},
			"False SubnetFull, True Allocating, False RoomToGrow, True SubnetFull"},
		{"nonsense", outlook{specErr: errors.New("spec.eni.maxPods"), status: eni.Status{Confirmed: true}, free: 8},
			"False InvalidSpec, False TargetMet, False RoomToGrow, True InvalidSpec"},
		{"full, and nobody waits", outlook{status: eni.Status{Confirmed: true, Needed: 4, AtCapacity: true}, free: 3},
			"True AddressesAvailable, True AtLimit, True AtLimit, False AsExpected"},
		{"no such index", outlook{status: eni.Status{Confirmed: true, Needed: 8, AtCapacity: true, Shortage: plan.ReasonFirstIndex, Explanation: "x"}},
			"False NoAddresses, True FirstInterfaceIndex, True FirstInterfaceIndex, False AsExpected"},
		{"another type", outlook{itype: "m5.24xlarge", status: eni.Status{Confirmed: true, InstanceType: "m5.large"}, free: 8},
			"True AddressesAvailable, False TargetMet, False RoomToGrow, True InstanceTypeMismatch"},
		{"no link", outlook{missing: []string{"eni-1"}, status: eni.Status{Confirmed: true}, free: 8},
			"True AddressesAvailable, False TargetMet, False RoomToGrow, True LinkMissing"},
		{"no instance", outlook{status: eni.Status{Vanished: true, Trouble: eni.Trouble{Class: cloud.Gone, LastError: "x"}}},
			"False InstanceGone, False TargetMet, False RoomToGrow, True InstanceGone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, c := range tt.look.conditions() {
				got = append(got, string(c.Status)+" "+c.Reason)
			}
			if text := strings.Join(got, ", "); text != tt.want {
				t.Errorf("got  %s\nwant %s", text, tt.want)
			}
		})
	}
	if got, want := (outlook{status: denied}).degraded().Message, "create: denied (allow it); next try at 2026-11-21T07:00:00Z"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for c := cloud.Unknown; c <= cloud.Bug; c++ {
		if text := reasonOf(c); strings.ContainsAny(text, "-( ") || text[0] < 'A' || text[0] > 'Z' {
			t.Errorf("%s is no reason", text)
		}
	}
	for c, want := range map[cloud.Class]string{cloud.Bug: "InvalidRequest", cloud.Gone: "NotFound", cloud.LimitReached: "LimitReached"} {
		if got := (outlook{status: eni.Status{Trouble: eni.Trouble{Class: c, LastError: "x"}}}).degraded().Reason; got != want {
			t.Errorf("%s is told as %s, want %s", c, got, want)
		}
	}
}

// Trouble and its end are told once each; the time of the next try is kept
// current, not at each retry.
func TestTroubleIsTold(t *testing.T) {
	now := clock.NewFake(time.Now()) // time passes where the test waits
	_, n := setUp(t, Options{Clock: now})
	publish(t, n, inventory([]string{"10.0.0.1"}))
	at := now.Now()
	trouble := eni.Status{Confirmed: true, Trouble: eni.Trouble{Grows: true, Class: cloud.Throttled, LastError: "assign: slow down"}}
	inTime := func(reason string) func(o *v1alpha1.NodeNetwork) error {
		return func(o *v1alpha1.NodeNetwork) error {
			now.Advance(20 * time.Millisecond)
			return degraded(reason)(o)
		}
	}
	trouble.NextTry = at
	n.Reconciled(trouble)
	first := until(t, "node-1", "degraded", inTime("Throttled"))
	for i := range 50 {
		trouble.NextTry = at.Add(time.Duration(i) * time.Second)
		n.Reconciled(trouble)
	}
	harness.OK(t, inTime("Throttled")(get(t, "node-1")))
	if o := get(t, "node-1"); o.ResourceVersion != first.ResourceVersion {
		t.Error("written again for the time of the next try")
	}
	until(t, "node-1", "the time in the end", func(o *v1alpha1.NodeNetwork) error {
		now.Advance(timeEvery)
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionDegraded)
		if want := withTime("assign: slow down", trouble.NextTry); c.Message != want {
			return fmt.Errorf("%q, want %q", c.Message, want)
		}
		return nil
	})
	n.Reconciled(eni.Status{Confirmed: true})
	until(t, "node-1", "healed", inTime(reasonAsExpected))
	awaitEvents(t, "Warning NetworkThrottled", "Normal NetworkHealed")
}

// awaitEvents waits until node-1's Node has these events.
func awaitEvents(t *testing.T, want ...string) {
	t.Helper()
	harness.Eventually(t, controllers.Limit, "events", func() error { return sameList("events", told(t, "node-1"), want) })
}

// told are the types and reasons of a Node's events.
func told(t *testing.T, name string) (out []string) {
	t.Helper()
	list := &eventsv1.EventList{}
	harness.OK(t, harness.KubeClient(t).List(t.Context(), list))
	for _, e := range list.Items {
		if e.Regarding.Kind == "Node" && e.Regarding.Name == name && e.ReportingController == v1alpha1.OwnerOperator {
			out = append(out, e.Type+" "+e.Reason)
		}
	}
	return out
}

// A spec that makes no sense is told, stops nothing that works, and is taken
// once it is right.
func TestNonsense(t *testing.T) {
	fl := newScript()
	n := alone(fl)
	c, s := n.c, &n.state
	harness.OK(t, c.configure(t.Context(), n, nil))
	if s.config.err != nil || !s.config.set {
		t.Fatal(s.config.err)
	}
	o := s.obj.DeepCopy()
	o.Spec.ENI.PreAllocate = new(int32(-5))
	s.obj = o
	harness.OK(t, c.configure(t.Context(), n, nil))
	if s.config.err == nil || fl.called("Set") != 1 {
		t.Errorf("%v after %d settings", s.config.err, fl.called("Set"))
	}
	o = o.DeepCopy()
	o.Spec.ENI.PreAllocate = new(int32(5))
	s.obj = o
	harness.OK(t, c.configure(t.Context(), n, nil))
	if s.config.err != nil || fl.settings["node-1"].Policy.PreAllocate != 5 {
		t.Errorf("%v, %+v", s.config.err, fl.settings["node-1"])
	}
}

// Trouble is told once, too, that was written, and the answer to that lost.
func TestTroubleIsToldWithoutAnAnswer(t *testing.T) {
	var armed, lost atomic.Bool // the answer to the first change of a status
	_, n := setUp(t, Options{}, harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		reply, err := next.RoundTrip(r)
		if err == nil && reply.StatusCode == http.StatusOK && r.Method == http.MethodPatch &&
			strings.HasSuffix(r.URL.Path, "/nodenetworks/node-1/status") && armed.Swap(false) {
			lost.Store(true)
			_ = reply.Body.Close()
			return nil, errors.New("the answer was lost")
		}
		return reply, err
	}))
	publish(t, n, inventory([]string{"10.0.0.1"}))
	n.Reconciled(eni.Status{Confirmed: true})
	until(t, "node-1", "well", degraded(reasonAsExpected))
	armed.Store(true)
	n.Reconciled(eni.Status{Confirmed: true, Trouble: eni.Trouble{Grows: true, Class: cloud.Throttled, LastError: "assign: slow down"}})
	until(t, "node-1", "degraded", degraded("Throttled"))
	awaitEvents(t, "Warning NetworkThrottled")
	if !lost.Load() {
		t.Error("no answer was lost")
	}
}
