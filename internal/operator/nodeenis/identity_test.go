package nodeenis

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestProofOfInstance(t *testing.T) {
	const name, id = "ip-10-0-0-7.lab-1.compute.internal", "i-0aa"
	provider := func(text string) *corev1.Node { return &corev1.Node{Spec: corev1.NodeSpec{ProviderID: text}} }
	instance := func(dns string, tags ...string) *cloud.Instance {
		in := &cloud.Instance{ID: id, DNSName: dns, Tags: map[string]string{}}
		for i := 0; i < len(tags); i += 2 {
			in.Tags[tags[i]] = tags[i+1]
		}
		return in
	}
	own, none, other := provider("aws:///lab-1a/i-0aa"), provider(""), provider("aws:///lab-1a/i-0bb")
	byTag := Identity{NodeTag: "node"}
	cluster, owned := Identity{ClusterTag: "cluster"}, Identity{ClusterTag: "cluster", ClusterValue: "ours"}
	for _, tt := range []struct {
		what string
		id   Identity
		node *corev1.Node
		in   *cloud.Instance
		want string // reason, or "" if proved
		ask  bool
	}{
		{what: "no Node", want: reasonNoNode},
		{what: "no Node, DNS name matches", in: instance(name), want: reasonNoNode},
		{what: "provider ID matches", node: own},
		{what: "provider ID of another instance", node: other, want: reasonAnotherInstance},
		{what: "provider ID of another instance, DNS name and tag match", id: byTag, node: other, in: instance(name, "node", name), want: reasonAnotherInstance},
		{what: "provider ID with the same suffix", node: provider("aws:///lab-1a/xi-0aa"), want: reasonAnotherInstance},
		{what: "no provider ID, EC2 not queried", node: none, want: reasonNotProved, ask: true},
		{what: "no provider ID, DNS name matches", node: none, in: instance(name), ask: true},
		{what: "ID of another provider, DNS name matches", node: provider("k3s://x"), in: instance(name), ask: true},
		{what: "no provider ID, DNS name differs", node: none, in: instance("ip-10-0-0-8.lab-1.compute.internal"), want: reasonNotProved, ask: true},
		{what: "no provider ID, no DNS name", node: none, in: instance(""), want: reasonNotProved, ask: true},
		{what: "node tag matches", id: byTag, node: none, in: instance("x", "node", name), ask: true},
		{what: "node tag of another Node", id: byTag, node: none, in: instance("x", "node", "node-2"), want: reasonNotProved, ask: true},
		{what: "matching tag that is not configured", node: none, in: instance("x", "node", name), want: reasonNotProved, ask: true},
		{what: "provider ID matches, cluster tag unknown", id: cluster, node: own, want: reasonNotProved, ask: true},
		{what: "cluster tag with any value", id: cluster, node: own, in: instance("x", "cluster", "any"), ask: true},
		{what: "no cluster tag", id: cluster, node: own, in: instance("x"), want: reasonAnotherCluster, ask: true},
		{what: "cluster tag matches", id: owned, node: own, in: instance("x", "cluster", "ours"), ask: true},
		{what: "cluster tag of another cluster", id: owned, node: own, in: instance("x", "cluster", "theirs"), want: reasonAnotherCluster, ask: true},
		{what: "only the cluster tag matches", id: owned, node: none, in: instance("x", "cluster", "ours"), want: reasonNotProved, ask: true},
		{what: "no cluster tag, DNS name matches", id: owned, node: none, in: instance(name), want: reasonAnotherCluster, ask: true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			why, ask := tt.id.evaluate(name, id, tt.node, tt.in)
			if why.reason != tt.want || ask != tt.ask || (why.message == "") != (tt.want == "") {
				t.Errorf("evaluate() = %+v, %t, want reason %q, %t", why, ask, tt.want, tt.ask)
			}
		})
	}
}

// works waits until the fleet does, or does not, work for a node.
func (s *script) works(t *testing.T, name string, want bool) {
	t.Helper()
	await(t, fmt.Sprintf("fleet works for %s = %t", name, want), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return (s.nodes[name] != nil) == want
	})
}

// The fleet does not work for an object without a Node, or whose Node does not prove the instance. It
// starts once the proof exists. If the proof disappears, it stops, and published addresses stay.
func TestProofAppearsAndDisappears(t *testing.T) {
	harness.KubeClean(t)
	fl, now := newScript(), clock.NewFake(time.Now())
	start(t, Options{Fleet: fl, Clock: now, Grace: 24 * time.Hour})
	c := harness.KubeClient(t)
	harness.OK(t, c.Create(t.Context(), objectOf("node-1", instance)))
	awaitDegraded(t, "node-1", reasonNoNode)
	fl.works(t, "node-1", false)
	register(t, "node-1", "")
	askAgain := func(want string) {
		t.Helper()
		harness.Eventually(t, controllers.Limit, "EC2 queried again, degraded with "+want, func() error {
			now.Advance(proofRetry)
			o := get(t, "node-1")
			o.Spec.ENI.MaxPods = new(int32(now.Now().Unix() % 1000)) // any event triggers a reconcile
			if err := c.Update(t.Context(), o); err != nil {
				return err
			}
			return degraded(want)(o)
		})
	}
	askAgain(reasonInstanceGone)
	fl.mu.Lock()
	fl.says[instance] = cloud.Instance{ID: instance, State: "running", DNSName: "another"}
	fl.mu.Unlock()
	askAgain(reasonNotProved)
	fl.works(t, "node-1", false)

	// As a cloud controller manager does.
	replace(t, "node-1", instance)
	n := fl.node(t, "node-1")
	publish(t, n, inventory([]string{"10.0.0.1", "10.0.0.2"}))
	n.Withdraw("eni-1", cloud.Amount{Addresses: 1})
	until(t, "node-1", "address being released", releasing("10.0.0.2"))

	replace(t, "node-1", "i-0bbbbbbbbbbbbbbbb")
	awaitDegraded(t, "node-1", reasonAnotherInstance)
	fl.works(t, "node-1", false)
	harness.OK(t, available("10.0.0.1", "10.0.0.2")(get(t, "node-1")))
	harness.OK(t, c.Delete(t.Context(), bareNode("node-1")))
	awaitDegraded(t, "node-1", reasonNoNode)
	harness.OK(t, available("10.0.0.1", "10.0.0.2")(get(t, "node-1")))
	register(t, "node-1", instance)
	fl.another(t, "node-1", n) // work resumes
	harness.OK(t, controllers.Same("ENIs in the seed", len(fl.seed().ENIs), 2))
}

// If several objects name one instance, each with a Node that does too, the oldest one gets it. The next
// one follows when that is deleted.
func TestTwoObjectsOfOneInstance(t *testing.T) {
	fl, _ := setUp(t, Options{})
	names := []string{"node-1", "anode", "node-3"}
	for _, name := range names[1:] { // one sorts first by name, in case all have the same creation time
		register(t, name, instance)
		harness.OK(t, harness.KubeClient(t).Create(t.Context(), objectOf(name, instance)))
	}
	harness.Eventually(t, controllers.Limit, "only the oldest object is accepted", func() error {
		stands := ""
		for _, name := range names {
			if degraded(reasonAlreadyClaimed)(get(t, name)) != nil {
				stands += name
			}
		}
		if want := oldest(t, names...); stands != want {
			return fmt.Errorf("accepted objects = %q, want %s", stands, want)
		}
		return nil
	})
	gone := oldest(t, names...)
	harness.OK(t, harness.KubeClient(t).Delete(t.Context(), controllers.Named[v1alpha1.NodeNetwork](gone)))
	rest := slices.DeleteFunc(names, func(name string) bool { return name == gone })
	next := oldest(t, rest...)
	fl.works(t, next, true)
	for _, name := range rest {
		if name != next {
			awaitDegraded(t, name, reasonAlreadyClaimed)
			fl.works(t, name, false)
		}
	}
}

// oldest returns the oldest of the named objects, by creation time and name.
func oldest(t *testing.T, names ...string) string {
	t.Helper()
	var first *v1alpha1.NodeNetwork
	for _, name := range names {
		o := get(t, name)
		if first == nil || o.CreationTimestamp.Before(&first.CreationTimestamp) ||
			o.CreationTimestamp.Equal(&first.CreationTimestamp) && o.Name < first.Name {
			first = o
		}
	}
	return first.Name
}

// If nothing proves a Node's instance, the message says what to do, with the names to use, and why a
// short node name is no proof.
func TestMissingProofNamesTheRemedy(t *testing.T) {
	const short = "ip-10-0-0-7 is only the first part of it, which instances of other VPCs may have too"
	for _, tt := range []struct {
		what, name string
		id         Identity
		in         cloud.Instance
		want       []string
		not        string
	}{
		{"short node name", "ip-10-0-0-7", Identity{}, cloud.Instance{DNSName: "ip-10-0-0-7.lab-1.compute.internal"},
			[]string{short, "tag i-0aa with the key that you set by --instance-node-tag of berth-operator, and the value ip-10-0-0-7"}, ""},
		{"short node name in capitals, tag missing", "IP-10-0-0-7", Identity{NodeTag: "node"}, cloud.Instance{DNSName: "ip-10-0-0-7.lab-1.compute.internal"},
			[]string{"is only the first part", "its tag node empty", "tag i-0aa with node=IP-10-0-0-7 (--instance-node-tag of berth-operator)"}, "not set"},
		{"custom node name", "db-1", Identity{NodeTag: "node"}, cloud.Instance{DNSName: "ip-10-0-0-7.lab-1.compute.internal", Tags: map[string]string{"node": "db-2"}},
			[]string{"private DNS name is ip-10-0-0-7.lab-1.compute.internal", "its tag node db-2", "tag i-0aa with node=db-1"}, "first part"},
		{"no DNS name", "db-1", Identity{}, cloud.Instance{}, []string{"private DNS name is empty", "cloud controller manager", "--provider-id"}, "first part"},
	} {
		why, _ := tt.id.evaluate(tt.name, "i-0aa", &corev1.Node{}, &tt.in)
		if why.reason != reasonNotProved || tt.not != "" && strings.Contains(why.message, tt.not) {
			t.Errorf("%s: evaluate() = %+v, want NotProved", tt.what, why)
		}
		for _, part := range tt.want {
			if !strings.Contains(why.message, part) {
				t.Errorf("%s: message = %q, want it to contain %q", tt.what, why.message, part)
			}
		}
	}
}

// alone returns a node of a controller without an API server, whose fleet and cloud are fl.
func alone(fl *script) *node {
	c := &Controller{
		o: Options{Fleet: fl, Clock: clock.Real{}, Logger: slog.New(slog.DiscardHandler)}, fleet: fl,
		nodes: map[string]*node{}, claims: newClaims(), recreations: newRecreations(),
	}
	n := c.newNode(objectOf("node-1", instance), false)
	c.nodes[n.name] = n
	return n
}

// A single EC2 reply without the instance may come from a part of EC2 that trails the others.
func TestOneReplyWithoutInstanceProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newScript()
		n, bare := alone(fl), &corev1.Node{}
		look := func(want string) time.Duration {
			t.Helper()
			n.identity(t.Context(), bare) // queries EC2 if due
			synctest.Wait()
			if why := n.identity(t.Context(), bare); why.reason != want {
				t.Fatalf("identity() = %+v, want reason %q", why, want)
			}
			now := n.c.now()
			return n.state.wake(now).Sub(now)
		}
		if wait := look(reasonNotProved); wait != absentRetry || !n.state.liveness.vanishedAt.IsZero() {
			t.Errorf("after one reply: retry after %v, vanishedAt = %v", wait, n.state.liveness.vanishedAt)
		}
		time.Sleep(absentRetry) //nolint:forbidigo // virtual time
		if wait := look(reasonInstanceGone); wait != proofRetry || n.state.liveness.vanishedAt.IsZero() {
			t.Errorf("after two replies: retry after %v, vanishedAt = %v", wait, n.state.liveness.vanishedAt)
		}
		fl.says[instance] = cloud.Instance{ID: instance, State: "running", DNSName: n.name}
		time.Sleep(proofRetry) //nolint:forbidigo // virtual time
		if look(""); !n.state.liveness.vanishedAt.IsZero() {
			t.Error("instance exists but counts as vanished")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		fl := newScript()
		n := alone(fl)
		fl.says[instance] = cloud.Instance{ID: instance, State: "terminated"}
		n.identity(t.Context(), &corev1.Node{})
		synctest.Wait()
		if why := n.identity(t.Context(), &corev1.Node{}); why.reason != reasonInstanceGone || n.state.liveness.vanishedAt.IsZero() {
			t.Errorf("identity() of a terminated instance = %+v, want InstanceGone", why)
		}
	})
}

// A Node is recreated without its provider ID: EC2 is queried while the fleet stops, and queried again if
// the reply arrives at a node that is no longer in use.
func TestProofIsRequestedAfterTheFleetStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newScript()
		n, bare := alone(fl), &corev1.Node{}
		fl.says[instance] = cloud.Instance{ID: instance, State: "running", DNSName: n.name}
		harness.OK(t, controllers.Same("reason before EC2 was queried", n.identity(t.Context(), bare).reason, reasonNotProved))
		next := n.c.suspend(n)
		synctest.Wait()
		next.identity(t.Context(), bare)
		synctest.Wait()
		if why := next.identity(t.Context(), bare); why != (refusal{}) {
			t.Errorf("identity() = %+v although EC2's DNS name matches", why)
		}
	})
}

func TestRecreationDelay(t *testing.T) {
	now := time.Date(2026, 11, 22, 7, 0, 0, 0, time.UTC)
	var l recreation
	for i, tt := range []struct {
		after, wait time.Duration // since the last creation, until work begins
	}{
		{0, 0},
		{time.Second, 0}, // as after a deletion by hand
		{time.Second, 2 * time.Second},
		{time.Second, 4 * time.Second},
		{time.Second, 8 * time.Second},
		{time.Minute, 16 * time.Second},
		{time.Minute, 32 * time.Second},
		{time.Minute, time.Minute},
		{time.Minute, time.Minute},
		{steady, 0},
		{time.Second, 0},
		{time.Second, 2 * time.Second},
	} {
		now = now.Add(tt.after)
		uid := types.UID(fmt.Sprint(i))
		l = l.next(uid, now)
		if got := l.from.Sub(now); got != tt.wait {
			t.Errorf("object %d is delayed by %v, want %v", i, got, tt.wait)
		}
		if again := l.next(uid, now.Add(time.Second)); again != l {
			t.Errorf("object %d observed again = %+v, want %+v", i, again, l)
		}
	}
}

// If a node deletes and recreates its object repeatedly, the fleet restarts only a few times, and the
// object says why it has no addresses.
func TestObjectRecreatedTooOften(t *testing.T) {
	now := clock.NewFake(time.Now())
	fl, _ := setUp(t, Options{Clock: now})
	api := harness.KubeClient(t)
	o := get(t, "node-1")
	for range 20 {
		harness.OK(t, api.Delete(t.Context(), o))
		o = objectOf("node-1", instance)
		harness.OK(t, api.Create(t.Context(), o))
		await(t, "object observed", func() bool {
			n := fl.Controller.node("node-1")
			return n != nil && n.uid == o.UID
		})
		now.Advance(time.Second)
	}
	sets := fl.called("Set")
	if sets > 6 {
		t.Errorf("Set called %d times in 20 s, want at most 6", sets)
	}
	awaitDegraded(t, "node-1", reasonPaced)
	await(t, "work begins after the delay", func() bool {
		now.Advance(10 * time.Second)
		fl.queue.Add("node-1") // the queue uses the system clock
		return fl.called("Set") > sets
	})
	until(t, "node-1", "healthy", degraded(reasonAsExpected))
}
