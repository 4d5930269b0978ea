package nodeenis

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/controllers"
)

// The condition SettingsAsInstalled exists if it is known what the chart installed.
func TestSettingsCondition(t *testing.T) {
	for _, tt := range []struct {
		known         bool
		message, want string
	}{
		{false, "", ""}, {true, "", "True AsInstalled "}, {true, "a is 1", "False Drifted berth-operator: a is 1"},
	} {
		s := state{obj: &v1alpha1.NodeNetwork{}, settings: func() (bool, string) { return tt.known, tt.message }}
		got := ""
		if c := meta.FindStatusCondition(s.conditions(time.Now()), v1alpha1.ConditionSettings); c != nil {
			got = fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
		}
		if got != tt.want {
			t.Errorf("known %v, message %q: condition %q, want %q", tt.known, tt.message, got, tt.want)
		}
	}
}

func TestConditions(t *testing.T) {
	at := time.Date(2026, 11, 21, 7, 0, 0, 5, time.UTC)
	denied := eni.Status{Confirmed: true, Needed: 4, Trouble: eni.Trouble{Grows: true, Class: cloud.Permission, LastError: "create: denied (allow it)", NextTry: at}}
	throttled := eni.Status{Confirmed: true, Needed: 4, Trouble: eni.Trouble{Grows: true, Class: cloud.Throttled, LastError: "x"}}
	for _, tt := range []struct {
		name string
		look outlook
		want string // Ready, InDeficit, AtCapacity, Degraded
	}{
		{"not observed yet", outlook{}, "False NotObserved, False TargetMet, False RoomToGrow, False AsExpected"},
		{"healthy", outlook{status: eni.Status{Confirmed: true, Available: 8}, free: 8}, "True AddressesAvailable, False TargetMet, False RoomToGrow, False AsExpected"},
		{"no addresses needed", outlook{status: eni.Status{Confirmed: true}}, "True AddressesAvailable, False TargetMet, False RoomToGrow, False AsExpected"},
		{"growing", outlook{status: eni.Status{Confirmed: true, Needed: 8}}, "False Allocating, True Allocating, False RoomToGrow, False AsExpected"},
		{"growing denied", outlook{status: denied, free: 3}, "False Permission, True Allocating, False RoomToGrow, True Permission"},
		{"growing throttled", outlook{status: throttled, free: 3}, "True AddressesAvailable, True Allocating, False RoomToGrow, True Throttled"},
		{"throttled without free addresses", outlook{status: throttled}, "False Throttled, True Allocating, False RoomToGrow, True Throttled"},
		{"shrinking denied", outlook{status: eni.Status{Confirmed: true, Trouble: eni.Trouble{Class: cloud.Permission, LastError: "x"}}, free: 3},
			"True AddressesAvailable, False TargetMet, False RoomToGrow, True Permission"},
		{"every ENI full", outlook{status: eni.Status{Confirmed: true, Needed: 4, AtCapacity: true, Shortage: plan.ReasonENILimit, Explanation: "every ENI is full"}},
			"False NoAddresses, True EniLimit, True EniLimit, False AsExpected"},
		{"subnet full", outlook{status: eni.Status{Confirmed: true, Needed: 4, Trouble: eni.Trouble{Grows: true, Class: cloud.SubnetFull, LastError: "x"}}},
			"False SubnetFull, True Allocating, False RoomToGrow, True SubnetFull"},
		{"invalid spec", outlook{specErr: errors.New("spec.eni.maxPods"), status: eni.Status{Confirmed: true}, free: 8},
			"False InvalidSpec, False TargetMet, False RoomToGrow, True InvalidSpec"},
		{"at capacity with no pod waiting", outlook{status: eni.Status{Confirmed: true, Needed: 4, AtCapacity: true}, free: 3},
			"True AddressesAvailable, True AtLimit, True AtLimit, False AsExpected"},
		{"no ENI at the first interface index", outlook{status: eni.Status{Confirmed: true, Needed: 8, AtCapacity: true, Shortage: plan.ReasonFirstIndex, Explanation: "x"}},
			"False NoAddresses, True FirstInterfaceIndex, True FirstInterfaceIndex, False AsExpected"},
		{"other instance type", outlook{itype: "m5.24xlarge", status: eni.Status{Confirmed: true, InstanceType: "m5.large"}, free: 8},
			"True AddressesAvailable, False TargetMet, False RoomToGrow, True InstanceTypeMismatch"},
		{"link missing", outlook{missing: []string{"eni-1"}, status: eni.Status{Confirmed: true}, free: 8},
			"True AddressesAvailable, False TargetMet, False RoomToGrow, True LinkMissing"},
		{"instance gone", outlook{status: eni.Status{Vanished: true, Trouble: eni.Trouble{Class: cloud.Gone, LastError: "x"}}},
			"False InstanceGone, False TargetMet, False RoomToGrow, True InstanceGone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, c := range tt.look.conditions() {
				got = append(got, string(c.Status)+" "+c.Reason)
			}
			if text := strings.Join(got, ", "); text != tt.want {
				t.Errorf("conditions = %s\nwant         %s", text, tt.want)
			}
		})
	}
	if got, want := (outlook{status: denied}).degraded().Message, "create: denied (allow it); next try at 2026-11-21T07:00:00Z"; got != want {
		t.Errorf("message of Degraded = %q, want %q", got, want)
	}
	for c := cloud.Unknown; c <= cloud.Bug; c++ {
		if text := reasonOf(c); strings.ContainsAny(text, "-( ") || text[0] < 'A' || text[0] > 'Z' {
			t.Errorf("reasonOf(%v) = %q, want a valid condition reason", c, text)
		}
	}
	for c, want := range map[cloud.Class]string{cloud.Bug: "InvalidRequest", cloud.Gone: "NotFound", cloud.LimitReached: "LimitReached"} {
		if got := (outlook{status: eni.Status{Trouble: eni.Trouble{Class: c, LastError: "x"}}}).degraded().Reason; got != want {
			t.Errorf("reason for class %s = %s, want %s", c, got, want)
		}
	}
}

// A problem causes one Event, and so does its end. Retries only change the time of the next attempt in
// the condition's message, which is written at most every timeEvery.
func TestProblemsAreReportedOnce(t *testing.T) {
	now := clock.NewFake(time.Now()) // advanced while the test waits
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
	harness.OK(t, controllers.Same("resource version when only the time of the next attempt has changed", get(t, "node-1").ResourceVersion, first.ResourceVersion))
	until(t, "node-1", "reports the latest time of the next attempt", func(o *v1alpha1.NodeNetwork) error {
		now.Advance(timeEvery)
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionDegraded)
		if want := withTime("assign: slow down", trouble.NextTry); c.Message != want {
			return fmt.Errorf("message of Degraded = %q, want %q", c.Message, want)
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
	harness.Eventually(t, controllers.Limit, "events", func() error { return sameList("events", eventsOf(t, "node-1"), want) })
}

// eventsOf returns the types and reasons of a Node's Events.
func eventsOf(t *testing.T, name string) (out []string) {
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

// An invalid spec is reported and not applied: the previous settings remain until the spec is corrected.
func TestInvalidSpec(t *testing.T) {
	fl := newScript()
	n := alone(fl)
	c, s := n.c, &n.state
	harness.OK(t, c.configure(t.Context(), n, nil))
	if s.config.err != nil || !s.config.set {
		t.Fatalf("configure() with a valid spec: config = %+v, want it set without an error", s.config)
	}
	o := s.obj.DeepCopy()
	o.Spec.ENI.PreAllocate = new(int32(-5))
	s.obj = o
	harness.OK(t, c.configure(t.Context(), n, nil))
	if s.config.err == nil || fl.called("Set") != 1 {
		t.Errorf("error = %v after %d calls of Set, want an error and 1 call", s.config.err, fl.called("Set"))
	}
	o = o.DeepCopy()
	o.Spec.ENI.PreAllocate = new(int32(5))
	s.obj = o
	harness.OK(t, c.configure(t.Context(), n, nil))
	if s.config.err != nil || fl.settings["node-1"].Policy.PreAllocate != 5 {
		t.Errorf("error = %v, settings %+v, want PreAllocate 5", s.config.err, fl.settings["node-1"])
	}
}

// A problem is reported only once even if the reply to the status write is lost.
func TestProblemIsReportedOnceAfterLostReply(t *testing.T) {
	var armed, lost atomic.Bool // drop the reply to the next status write
	_, n := setUp(t, Options{}, harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		reply, err := next.RoundTrip(r)
		if err == nil && reply.StatusCode == http.StatusOK && r.Method == http.MethodPatch &&
			strings.HasSuffix(r.URL.Path, "/nodenetworks/node-1/status") && armed.Swap(false) {
			lost.Store(true)
			_ = reply.Body.Close()
			return nil, errors.New("reply dropped by the test")
		}
		return reply, err
	}))
	publish(t, n, inventory([]string{"10.0.0.1"}))
	n.Reconciled(eni.Status{Confirmed: true})
	until(t, "node-1", "healthy", degraded(reasonAsExpected))
	armed.Store(true)
	n.Reconciled(eni.Status{Confirmed: true, Trouble: eni.Trouble{Grows: true, Class: cloud.Throttled, LastError: "assign: slow down"}})
	until(t, "node-1", "degraded", degraded("Throttled"))
	awaitEvents(t, "Warning NetworkThrottled")
	if !lost.Load() {
		t.Error("no reply was dropped")
	}
}

func TestGoneSince(t *testing.T) {
	t0 := time.Date(2026, 11, 21, 7, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	for _, tt := range []struct {
		name                              string
		nodeGone, nodeReady               bool
		vanished, reported, made, goneYet int // seconds; 0: never
		want                              int
	}{
		{name: "alive", nodeReady: true, reported: 5, made: 1},
		{name: "not ready but existing", reported: 5, made: 1},
		{name: "Node just deleted", nodeGone: true, reported: 5, made: 1, want: 100},
		{name: "Node deleted some time ago", nodeGone: true, reported: 5, made: 1, goneYet: 20, want: 20},
		{name: "Node deleted but daemon reports", nodeGone: true, reported: 60, made: 1, goneYet: 20, want: 60},
		{name: "object newer than the Node's deletion", nodeGone: true, reported: 5, made: 90, goneYet: 20, want: 90},
		{name: "instance gone, Node ready", nodeReady: true, vanished: 10, reported: 5, made: 1},
		{name: "instance gone, Node not ready", vanished: 10, reported: 5, made: 1, want: 10},
		{name: "instance gone but daemon reports", vanished: 10, reported: 50, made: 1, want: 50},
	} {
		t.Run(tt.name, func(t *testing.T) {
			when := func(s int) time.Time {
				if s == 0 {
					return time.Time{}
				}
				return at(s)
			}
			l := liveness{vanishedAt: when(tt.vanished), reportedAt: when(tt.reported), nodeGoneAt: when(tt.goneYet)}
			if got := l.goneSince(at(tt.made), tt.nodeGone, tt.nodeReady, at(100)); !got.Equal(when(tt.want)) {
				t.Errorf("goneSince() = %v, want %v", got, when(tt.want))
			}
		})
	}
}

func TestNodeNetworkIsDeletedWithItsNode(t *testing.T) {
	fl, _ := setUp(t, Options{Grace: 2 * time.Second})
	create(t, "node-2", nil)
	fl.node(t, "node-2")
	c := harness.KubeClient(t)
	began := time.Now()
	harness.OK(t, c.Delete(t.Context(), bareNode("node-1")))
	controllers.AwaitGone(t, objectOf("node-1", instance))
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("deleted after %v, want a grace period of 2 s", took)
	}
	fl.works(t, "node-1", false)
	fl.works(t, "node-2", true)
	get(t, "node-2")
}

// setReady sets a Node's condition Ready as the kubelet does.
func setReady(t *testing.T, name string, status corev1.ConditionStatus) {
	t.Helper()
	controllers.MergeStatus(t, harness.KubeClient(t), bareNode(name), `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status)
}

// healthy waits until the operator has seen that a Node is ready.
func healthy(t *testing.T, n *node) {
	t.Helper()
	await(t, "Node observed as ready", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.state.liveness.readiness == ready
	})
}

// The fleet checks an instance when its Node becomes unready and when it becomes ready again, even if the
// operator was not running at the time. It does not check a Node that was never ready: it is still joining.
func TestInstanceIsCheckedWhenNotReady(t *testing.T) {
	fl, n := setUp(t, Options{})
	setReady(t, "node-1", corev1.ConditionFalse)
	publish(t, n, inventory([]string{"10.0.0.1"}))
	setReady(t, "node-1", corev1.ConditionTrue)
	healthy(t, n)
	fl.awaitCalls(t, "CheckInstance", 0)
	setReady(t, "node-1", corev1.ConditionUnknown)
	fl.awaitCalls(t, "CheckInstance", 1)
	setReady(t, "node-1", corev1.ConditionTrue)
	fl.awaitCalls(t, "CheckInstance", 2)
	fl.end()

	setReady(t, "node-1", corev1.ConditionFalse)
	next, _ := play(t, Options{})
	next.awaitCalls(t, "CheckInstance", 1)
}

// The object of a deleted instance is deleted, unless its Node is ready.
func TestNodeNetworkIsDeletedWithItsInstance(t *testing.T) {
	_, n := setUp(t, Options{Grace: time.Second})
	setReady(t, "node-1", corev1.ConditionTrue)
	healthy(t, n)
	throughout(t, time.Second, func() {}) // until the object is older than the grace period
	n.Reconciled(eni.Status{Confirmed: true, Vanished: true})
	until(t, "node-1", "reported", degraded(reasonInstanceGone))
	throughout(t, 2*time.Second, func() { get(t, "node-1") })
	setReady(t, "node-1", corev1.ConditionUnknown)
	controllers.AwaitGone(t, objectOf("node-1", instance))
}

// throughout calls check repeatedly for d.
func throughout(t *testing.T, d time.Duration, check func()) {
	t.Helper()
	end := time.Now().Add(d)
	harness.Eventually(t, d+controllers.Limit, "check for the whole time", func() error {
		check()
		if left := time.Until(end); left > 0 {
			return fmt.Errorf("%v left", left)
		}
		return nil
	})
}

// A Node that is recreated with another instance counts as a new node. An inventory of the old instance,
// which the fleet publishes late, is not written to its NodeNetwork.
func TestNodeRecreatedWithAnotherInstance(t *testing.T) {
	const other = "i-0aaaaaaaaaaaaaaaa"
	fl, first := setUp(t, Options{})
	publish(t, first, inventory([]string{"10.0.0.1"}))
	replace(t, "node-1", other)
	patch(t, `{"spec":{"instanceID":"`+other+`"}}`)
	harness.OK(t, controllers.Same("instance of the node", fl.another(t, "node-1", first).instanceID, other))
	if s := fl.seed(); len(s.ENIs) != 0 || s.InstanceID != other {
		t.Errorf("seed = %+v, want no ENIs of the old instance", s)
	}
	rejected(t, first, inventory([]string{"10.0.0.1", "10.0.0.2"}), errOther)
	harness.OK(t, available("10.0.0.1")(get(t, "node-1")))
}

// Pods bound to the node that have no address yet are counted before their ADDs arrive, and the time
// they waited is measured.
func TestWaitingPodsAreCounted(t *testing.T) {
	served := make(chan time.Duration, 10)
	fl, n := setUp(t, Options{DemandServed: func(d time.Duration) { served <- d }})
	publish(t, n, inventory([]string{"10.0.0.1"}))
	c := harness.KubeClient(t)
	pod := func(name string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
			Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}
		if change != nil {
			change(p)
		}
		harness.OK(t, c.Create(t.Context(), p))
		return p
	}
	waiting := func(want int) {
		t.Helper()
		awaitUsage(t, n, func(u eni.Usage) bool { return u.Waiting == want })
	}
	kicks, began := fl.called("Kick"), time.Now()
	first := pod("first", nil)
	pod("second", nil)
	third := pod("third", nil)
	pod("unbound", func(p *corev1.Pod) { p.Spec.NodeName = "" })
	pod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "node-2" })
	pod("branch", func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationNICs: "[{name: eth0}]"} })
	pod("host", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	waiting(3)
	await(t, "Kick called", func() bool { return fl.called("Kick") > kicks }) // the fleet is notified right after
	// The daemon gave the first pod an address; its kubelet has not reported it yet.
	report(t, "node-1", v1alpha1.IPAMStatus{Used: map[string]v1alpha1.UsedAddress{"10.0.0.1": {UID: string(first.UID), Resource: "eni-1"}}})
	waiting(2)
	controllers.MergeStatus(t, c, first, `{"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`)
	harness.OK(t, c.Delete(t.Context(), third, client.GracePeriodSeconds(0), client.Preconditions{UID: &third.UID}))
	waiting(1)
	select {
	case d := <-served:
		t.Fatalf("DemandServed(%v) called before an address was published", d)
	default:
	}
	publish(t, n, inventory([]string{"10.0.0.1", "10.0.0.2"}))
	select {
	case d := <-served:
		if d <= 0 || d > time.Since(began) {
			t.Errorf("DemandServed(%v), want a positive time since the test began", d)
		}
	case <-time.After(controllers.Limit): // called by whichever goroutine noticed first
		t.Error("DemandServed was not called")
	}
}

// An operator that takes over keeps the conditions of the earlier one until it knows something about the node. A listing of a
// large cluster takes minutes.
func TestTakeoverKeepsConditions(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	o := &v1alpha1.NodeNetwork{}
	o.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonAddresses, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))},
		{Type: v1alpha1.ConditionAtCapacity, Status: metav1.ConditionTrue, Reason: reasonAtLimit, Message: "full", LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))},
	}
	of := func(s *state, kind string) string {
		c := meta.FindStatusCondition(s.conditions(now), kind)
		return string(c.Status) + " " + c.Reason
	}
	s := newState(o, false, now)
	check.Equal(t, of(&s, v1alpha1.ConditionReady), "True "+reasonAddresses, "Ready before the first observation")
	check.Equal(t, of(&s, v1alpha1.ConditionAtCapacity), "True "+reasonAtLimit, "AtCapacity before the first observation")
	s.fleet.status.LastError = "EC2 does not answer"
	check.Equal(t, of(&s, v1alpha1.ConditionAtCapacity), "False "+reasonRoom, "AtCapacity once EC2 was asked")
	other := newState(o, true, now)
	check.Equal(t, of(&other, v1alpha1.ConditionReady), "False "+reasonNotObserved, "Ready of another instance")
}

// A condition that only an earlier operator maintained is removed. One of another owner stays, and delays no write.
func TestConditionOfAnEarlierOperatorIsRemoved(t *testing.T) {
	first, _ := setUp(t, Options{Settings: func() (bool, string) { return true, "" }})
	until(t, "node-1", "the first operator's condition", controllers.Has[*v1alpha1.NodeNetwork](v1alpha1.ConditionSettings, metav1.ConditionTrue, reasonInstalled))
	first.end()
	o := get(t, "node-1")
	o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: "Reviewed", Status: metav1.ConditionTrue, Reason: "ByHand", LastTransitionTime: metav1.Now()})
	harness.OK(t, harness.KubeClient(t).Status().Update(t.Context(), o, client.FieldOwner("kubectl-edit")))
	second, n := play(t, Options{})
	kinds := func(o *v1alpha1.NodeNetwork) (list []string) {
		for _, c := range o.Status.Conditions {
			list = append(list, c.Type)
		}
		return list
	}
	until(t, "node-1", "conditions without the first operator's", func(o *v1alpha1.NodeNetwork) error {
		return sameList("conditions", kinds(o), []string{v1alpha1.ConditionReady, v1alpha1.ConditionInDeficit, v1alpha1.ConditionAtCapacity, v1alpha1.ConditionDegraded, "Reviewed"})
	})
	publish(t, n, inventory([]string{"10.0.0.1"}))
	second.end()
	check.Equal(t, n.state.writes.retry, backoff{}, "backoff of writes")
}

// What concerns all nodes is written at a limited rate, and does not delay changes of other nodes' conditions.
func TestStatusWritesAreLimited(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	limits, waiting := newNewsLimits(), []*writes{}
	for range newsBurst + 10*routineRate {
		if w := (&writes{news: routine}); !limits.admit(w, now) {
			waiting = append(waiting, w)
		}
	}
	check.Equal(t, len(waiting), 10*routineRate, "writes beyond the burst")
	last := waiting[len(waiting)-1]
	check.Equal(t, last.newsAt.Sub(now).Round(time.Second), 10*time.Second, "turn of the last one")
	check.Equal(t, limits.admit(last, now.Add(5*time.Second)), false, "before its turn")
	check.Equal(t, limits.admit(last, last.newsAt), true, "at its turn")
	check.Equal(t, limits.admit(&writes{news: ofConditions}, now), true, "a condition in the meantime")
}
