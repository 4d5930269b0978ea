package nodeenis

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestGoneSince(t *testing.T) {
	t0 := time.Date(2026, 11, 21, 7, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	for _, tt := range []struct {
		name                              string
		nodeGone, nodeReady               bool
		vanished, reported, made, goneYet int // seconds; 0: never
		want                              int
	}{
		{name: "lives", nodeReady: true, reported: 5, made: 1},
		{name: "not ready, but there", reported: 5, made: 1},
		{name: "just gone", nodeGone: true, reported: 5, made: 1, want: 100},
		{name: "gone for a while", nodeGone: true, reported: 5, made: 1, goneYet: 20, want: 20},
		{name: "gone, but the daemon reports", nodeGone: true, reported: 60, made: 1, goneYet: 20, want: 60},
		{name: "gone, or not there yet", nodeGone: true, reported: 5, made: 90, goneYet: 20, want: 90},
		{name: "instance vanished, node ready", nodeReady: true, vanished: 10, reported: 5, made: 1},
		{name: "instance vanished, node not ready", vanished: 10, reported: 5, made: 1, want: 10},
		{name: "instance vanished, the daemon reports", vanished: 10, reported: 50, made: 1, want: 50},
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
				t.Errorf("got %v, want %v", got, when(tt.want))
			}
		})
	}
}

func TestObjectGoesWithItsNode(t *testing.T) {
	fl, _ := setUp(t, Options{Grace: 2 * time.Second})
	create(t, "node-2", nil)
	fl.node(t, "node-2")
	c := harness.KubeClient(t)
	began := time.Now()
	harness.OK(t, c.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}))
	controllers.AwaitGone(t, objectOf("node-1", instance))
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("deleted after %v, want 2 s", took)
	}
	fl.works(t, "node-1", false)
	fl.works(t, "node-2", true)
	get(t, "node-2")
}

// setReady plays the kubelet.
func setReady(t *testing.T, name string, status corev1.ConditionStatus) {
	t.Helper()
	patchStatus(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}},
	})
}

// patchStatus writes part of an object's status, whoever else writes to it.
func patchStatus(t *testing.T, o client.Object, status any) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"status": status})
	harness.OK(t, err)
	harness.OK(t, harness.KubeClient(t).Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, body)))
}

// healthy waits until the operator has seen that a node's Node is ready.
func healthy(t *testing.T, n *node) {
	t.Helper()
	await(t, "the Node is seen to be ready", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.state.liveness.readiness == ready
	})
}

// The fleet is to look at an instance when its Node is not ready any more, and
// when it is again: also an operator that did not see it happen. A Node that
// was never ready joins.
func TestSuspicion(t *testing.T) {
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

// An instance that is gone takes the object with it, if its Node does not live.
func TestObjectGoesWithItsInstance(t *testing.T) {
	_, n := setUp(t, Options{Grace: time.Second})
	setReady(t, "node-1", corev1.ConditionTrue)
	healthy(t, n)
	throughout(t, time.Second, func() {}) // the object is older than the grace then
	n.Reconciled(eni.Status{Confirmed: true, Vanished: true})
	until(t, "node-1", "told", degraded(reasonInstanceGone))
	throughout(t, 2*time.Second, func() { get(t, "node-1") })
	setReady(t, "node-1", corev1.ConditionUnknown)
	controllers.AwaitGone(t, objectOf("node-1", instance))
}

// throughout checks again and again that something stays so for d.
func throughout(t *testing.T, d time.Duration, check func()) {
	t.Helper()
	end := time.Now().Add(d)
	harness.Eventually(t, d+controllers.Limit, "time passes", func() error {
		check()
		if left := time.Until(end); left > 0 {
			return fmt.Errorf("%v to go", left)
		}
		return nil
	})
}

// The same name with another instance is another node. A pass of the fleet that
// began before writes nothing of the old instance into its object.
func TestAnotherInstance(t *testing.T) {
	const other = "i-0aaaaaaaaaaaaaaaa"
	fl, first := setUp(t, Options{})
	publish(t, first, inventory([]string{"10.0.0.1"}))
	replace(t, "node-1", other)
	patch(t, `{"spec":{"instanceID":"`+other+`"}}`)
	if n := fl.another(t, "node-1", first); n.instanceID != other {
		t.Errorf("the node is of %s", n.instanceID)
	}
	if s := fl.seed(); len(s.ENIs) != 0 || s.InstanceID != other {
		t.Errorf("seeded with what the other had: %+v", s)
	}
	rejected(t, first, inventory([]string{"10.0.0.1", "10.0.0.2"}), errOther)
	harness.OK(t, available("10.0.0.1")(get(t, "node-1")))
}

// Pods that are bound to the node and have no address yet are seen before
// their ADDs, and how long they waited is told.
func TestPodsWait(t *testing.T) {
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
	await(t, "a kick", func() bool { return fl.called("Kick") > kicks }) // the fleet is told right after
	// The daemon gave one an address; its kubelet has not told yet.
	report(t, "node-1", v1alpha1.IPAMStatus{Used: map[string]v1alpha1.UsedAddress{"10.0.0.1": {UID: string(first.UID), Resource: "eni-1"}}})
	waiting(2)
	patchStatus(t, first, corev1.PodStatus{PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}})
	harness.OK(t, c.Delete(t.Context(), third, client.GracePeriodSeconds(0), client.Preconditions{UID: &third.UID}))
	waiting(1)
	select {
	case d := <-served:
		t.Fatalf("served after %v, though nothing was published", d)
	default:
	}
	publish(t, n, inventory([]string{"10.0.0.1", "10.0.0.2"}))
	select {
	case d := <-served:
		if d <= 0 || d > time.Since(began) {
			t.Errorf("served after %v", d)
		}
	case <-time.After(controllers.Limit): // whoever saw it first tells
		t.Error("not told that demand was served")
	}
}
