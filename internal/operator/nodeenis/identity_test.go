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
		want string // reason; empty: proved
		ask  bool
	}{
		{what: "no Node", want: reasonNoNode},
		{what: "no Node, whatever EC2 says", in: instance(name), want: reasonNoNode},
		{what: "its provider ID", node: own},
		{what: "another's provider ID", node: other, want: reasonAnotherInstance},
		{what: "another's provider ID, whatever EC2 says", id: byTag, node: other, in: instance(name, "node", name), want: reasonAnotherInstance},
		{what: "a provider ID that ends alike", node: provider("aws:///lab-1a/xi-0aa"), want: reasonAnotherInstance},
		{what: "no provider ID, EC2 not asked", node: none, want: reasonNotProved, ask: true},
		{what: "no provider ID, the DNS name", node: none, in: instance(name), ask: true},
		{what: "another provider's ID, the DNS name", node: provider("k3s://x"), in: instance(name), ask: true},
		{what: "no provider ID, another DNS name", node: none, in: instance("ip-10-0-0-8.lab-1.compute.internal"), want: reasonNotProved, ask: true},
		{what: "no provider ID, no DNS name", node: none, in: instance(""), want: reasonNotProved, ask: true},
		{what: "the tag of the Node's name", id: byTag, node: none, in: instance("x", "node", name), ask: true},
		{what: "the tag of another Node's name", id: byTag, node: none, in: instance("x", "node", "node-2"), want: reasonNotProved, ask: true},
		{what: "a tag that is not asked for", node: none, in: instance("x", "node", name), want: reasonNotProved, ask: true},
		{what: "the provider ID, EC2 to be asked for the cluster", id: cluster, node: own, want: reasonNotProved, ask: true},
		{what: "of the cluster", id: cluster, node: own, in: instance("x", "cluster", "any"), ask: true},
		{what: "of no cluster", id: cluster, node: own, in: instance("x"), want: reasonAnotherCluster, ask: true},
		{what: "of our cluster", id: owned, node: own, in: instance("x", "cluster", "ours"), ask: true},
		{what: "of another cluster", id: owned, node: own, in: instance("x", "cluster", "theirs"), want: reasonAnotherCluster, ask: true},
		{what: "of our cluster, and no more", id: owned, node: none, in: instance("x", "cluster", "ours"), want: reasonNotProved, ask: true},
		{what: "of another cluster, with the DNS name", id: owned, node: none, in: instance(name), want: reasonAnotherCluster, ask: true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			why, ask := tt.id.evaluate(name, id, tt.node, tt.in)
			if why.reason != tt.want || ask != tt.ask || (why.message == "") != (tt.want == "") {
				t.Errorf("got %+v, %t; want %q, %t", why, ask, tt.want, tt.ask)
			}
		})
	}
}

// works waits until the fleet works for a node, or does not.
func (s *script) works(t *testing.T, name string, want bool) {
	t.Helper()
	await(t, fmt.Sprintf("the fleet works for %s: %t", name, want), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return (s.nodes[name] != nil) == want
	})
}

// Without a Node, or with one that does not prove the instance, the fleet does
// not work for an object; when the proof is there it does, and when it is gone
// it does not any more and what is published stays.
func TestProofComesAndGoes(t *testing.T) {
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
		harness.Eventually(t, controllers.Limit, "EC2 is asked again: "+want, func() error {
			now.Advance(proofRetry)
			o := get(t, "node-1")
			o.Spec.ENI.MaxPods = new(int32(now.Now().Unix() % 1000)) // any event has it looked at
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
	until(t, "node-1", "a candidate", releasing("10.0.0.2"))

	replace(t, "node-1", "i-0bbbbbbbbbbbbbbbb")
	awaitDegraded(t, "node-1", reasonAnotherInstance)
	fl.works(t, "node-1", false)
	harness.OK(t, available("10.0.0.1", "10.0.0.2")(get(t, "node-1")))
	harness.OK(t, c.Delete(t.Context(), bareNode("node-1")))
	awaitDegraded(t, "node-1", reasonNoNode)
	harness.OK(t, available("10.0.0.1", "10.0.0.2")(get(t, "node-1")))
	register(t, "node-1", instance)
	fl.another(t, "node-1", n) // goes on
	harness.OK(t, controllers.Same("ENIs that it begins with", len(fl.seed().ENIs), 2))
}

// Of two objects that name one instance, each with a Node that does, the older
// has it; the other follows when that one is gone.
func TestTwoObjectsOfOneInstance(t *testing.T) {
	fl, _ := setUp(t, Options{})
	names := []string{"node-1", "anode", "node-3"}
	for _, name := range names[1:] { // one is first by name, if they are of the same second
		register(t, name, instance)
		harness.OK(t, harness.KubeClient(t).Create(t.Context(), objectOf(name, instance)))
	}
	harness.Eventually(t, controllers.Limit, "one stands", func() error {
		stands := ""
		for _, name := range names {
			if degraded(reasonAlreadyClaimed)(get(t, name)) != nil {
				stands += name
			}
		}
		if want := oldest(t, names...); stands != want {
			return fmt.Errorf("%s, want %s", stands, want)
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

// oldest is the first of some objects by time and name.
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

// A Node that nothing proves to be of its instance says what to do, with the
// names that are to be written, and why its own name is no proof where it is short.
func TestWithoutProofTheRemedyIsNamed(t *testing.T) {
	const short = "ip-10-0-0-7 is only the first part of it, which instances of other VPCs may have too"
	for _, tt := range []struct {
		what, name string
		id         Identity
		in         cloud.Instance
		want       []string
		not        string
	}{
		{"a short name", "ip-10-0-0-7", Identity{}, cloud.Instance{DNSName: "ip-10-0-0-7.lab-1.compute.internal"},
			[]string{short, "tag i-0aa with the key that you set by --instance-node-tag of berth-operator, and the value ip-10-0-0-7"}, ""},
		{"a short name in capitals, and a tag that is missing", "IP-10-0-0-7", Identity{NodeTag: "node"}, cloud.Instance{DNSName: "ip-10-0-0-7.lab-1.compute.internal"},
			[]string{"is only the first part", "its tag node empty", "tag i-0aa with node=IP-10-0-0-7 (--instance-node-tag of berth-operator)"}, "not set"},
		{"a name of its own", "db-1", Identity{NodeTag: "node"}, cloud.Instance{DNSName: "ip-10-0-0-7.lab-1.compute.internal", Tags: map[string]string{"node": "db-2"}},
			[]string{"private DNS name is ip-10-0-0-7.lab-1.compute.internal", "its tag node db-2", "tag i-0aa with node=db-1"}, "first part"},
		{"no DNS name", "db-1", Identity{}, cloud.Instance{}, []string{"private DNS name is empty", "cloud controller manager", "--provider-id"}, "first part"},
	} {
		why, _ := tt.id.evaluate(tt.name, "i-0aa", &corev1.Node{}, &tt.in)
		if why.reason != reasonNotProved || tt.not != "" && strings.Contains(why.message, tt.not) {
			t.Errorf("%s: %+v", tt.what, why)
		}
		for _, part := range tt.want {
			if !strings.Contains(why.message, part) {
				t.Errorf("%s: %q lacks %q", tt.what, why.message, part)
			}
		}
	}
}

// alone is a node of a controller without an API server, whose cloud says what
// fl does.
func alone(fl *script) *node {
	c := &Controller{
		o: Options{Fleet: fl, Clock: clock.Real{}, Logger: slog.New(slog.DiscardHandler)}, fleet: fl,
		nodes: map[string]*node{}, claims: newClaims(), recreations: newRecreations(),
	}
	n := c.newNode(objectOf("node-1", instance), false)
	c.nodes[n.name] = n
	return n
}

// An answer of EC2 without the instance may be of a part that trails the others.
func TestOneAnswerWithoutTheInstanceProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newScript()
		n, bare := alone(fl), &corev1.Node{}
		look := func(want string) time.Duration {
			t.Helper()
			n.identity(t.Context(), bare) // asks, if that is due
			synctest.Wait()
			if why := n.identity(t.Context(), bare); why.reason != want {
				t.Fatalf("got %+v, want %q", why, want)
			}
			now := n.c.now()
			return n.state.wake(now).Sub(now)
		}
		if wait := look(reasonNotProved); wait != absentRetry || !n.state.liveness.vanishedAt.IsZero() {
			t.Errorf("after one answer: asked again after %v, vanished %v", wait, n.state.liveness.vanishedAt)
		}
		time.Sleep(absentRetry) //nolint:forbidigo // virtual time
		if wait := look(reasonInstanceGone); wait != proofRetry || n.state.liveness.vanishedAt.IsZero() {
			t.Errorf("after two answers: asked again after %v, vanished %v", wait, n.state.liveness.vanishedAt)
		}
		fl.says[instance] = cloud.Instance{ID: instance, State: "running", DNSName: n.name}
		time.Sleep(proofRetry) //nolint:forbidigo // virtual time
		if look(""); !n.state.liveness.vanishedAt.IsZero() {
			t.Error("it is there, and counts as vanished")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		fl := newScript()
		n := alone(fl)
		fl.says[instance] = cloud.Instance{ID: instance, State: "terminated"}
		n.identity(t.Context(), &corev1.Node{})
		synctest.Wait()
		if why := n.identity(t.Context(), &corev1.Node{}); why.reason != reasonInstanceGone || n.state.liveness.vanishedAt.IsZero() {
			t.Errorf("terminated, by EC2's own words: %+v", why)
		}
	})
}

// A Node that is made anew without its provider ID, all at once: EC2 is asked
// while the fleet stops, and asked again if that answer finds another node.
func TestProofIsAskedForAfterTheFleetStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newScript()
		n, bare := alone(fl), &corev1.Node{}
		fl.says[instance] = cloud.Instance{ID: instance, State: "running", DNSName: n.name}
		harness.OK(t, controllers.Same("the reason before EC2 was asked", n.identity(t.Context(), bare).reason, reasonNotProved))
		next := n.c.suspend(n)
		synctest.Wait()
		next.identity(t.Context(), bare)
		synctest.Wait()
		if why := next.identity(t.Context(), bare); why != (refusal{}) {
			t.Errorf("EC2 names the Node, and: %+v", why)
		}
	})
}

func TestObjectsThatFollowEachOther(t *testing.T) {
	now := time.Date(2026, 11, 22, 7, 0, 0, 0, time.UTC)
	var l recreation
	for i, tt := range []struct {
		after, wait time.Duration // since the last was made, until it is worked for
	}{
		{0, 0},
		{time.Second, 0}, // as after a person deleted one
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
			t.Errorf("object %d waits %v, want %v", i, got, tt.wait)
		}
		if again := l.next(uid, now.Add(time.Second)); again != l {
			t.Errorf("object %d, looked at again: %+v, want %+v", i, again, l)
		}
	}
}

// A node that deletes its object and makes it again, over and over, has the
// fleet begin anew a few times only, and the object says why it has no addresses.
func TestObjectMadeAgainTooOften(t *testing.T) {
	now := clock.NewFake(time.Now())
	fl, _ := setUp(t, Options{Clock: now})
	api := harness.KubeClient(t)
	o := get(t, "node-1")
	for range 20 {
		harness.OK(t, api.Delete(t.Context(), o))
		o = objectOf("node-1", instance)
		harness.OK(t, api.Create(t.Context(), o))
		await(t, "the object is seen", func() bool {
			n := fl.Controller.node("node-1")
			return n != nil && n.uid == o.UID
		})
		now.Advance(time.Second)
	}
	sets := fl.called("Set")
	if sets > 6 {
		t.Errorf("the fleet began %d times in 20 s", sets)
	}
	awaitDegraded(t, "node-1", reasonPaced)
	await(t, "it is worked for in the end", func() bool {
		now.Advance(10 * time.Second)
		fl.queue.Add("node-1") // the queue goes by the machine's clock
		return fl.called("Set") > sets
	})
	until(t, "node-1", "no longer reported", degraded(reasonAsExpected))
}
