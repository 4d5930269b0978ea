// Package troubleop holds the tests of what goes wrong in operator mode: a
// NodeNetwork that makes no sense, a cloud that refuses or is away, an API
// server that is away, instances that vanish, operators that do not know of each
// other. Each wants a condition and an event on the Node that tell a person what
// to do, other nodes that grow meanwhile, and recovery without a restart.
package troubleop

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berthd", "berth", "berth-operator")) }

// patience ends a test that hangs. It is far more than anything takes here, and
// than the minute after which is tried again what only a person can heal, or what
// would cost calls: a machine that is busy with others may stand still for long.
const patience = 5 * time.Minute

// daemonArgs and operatorArgs are settings under which nothing takes long. Nodes
// keep one address warm and leave the primary ENI to themselves.
var (
	daemonArgs = []string{
		"--pre-allocate=1", "--log-level=debug", "--cni-chain=", "--cooling-period=1s", "--netns-grace=1s",
		"--repair-interval=5s", "--warm-wait=2s",
	}
	operatorArgs = []string{
		"--log-level=debug", "--shrink-delay=300ms", "--listing-interval=2s", "--settle-time=2s",
		"--orphan-age=3s", "--orphan-interval=1s", "--node-gone-grace=3s",
		// A leader that cannot renew its Lease in time ends, and is started again by
		// its kubelet; test/crash has that. Here every outage is shorter.
		"--lease-duration=3600s", "--renew-deadline=3000s", "--retry-period=1s",
	}
)

// cluster is a lab in operator mode, with a node that has no trouble of its own.
type cluster struct {
	*lab.Lab
	witness string

	mu    sync.Mutex // held while the witness grows
	grown int32
}

// raise starts a lab. The witness is the node whose growth shows that another's
// trouble is that node's alone.
func raise(t *testing.T, witness string, o lab.Options) *cluster {
	t.Helper()
	o.Mode = lab.OperatorMode
	o.DaemonArgs, o.OperatorArgs = slices.Concat(daemonArgs, o.DaemonArgs), slices.Concat(operatorArgs, o.OperatorArgs)
	return &cluster{Lab: harness.Raise(t, o), witness: witness, grown: 1}
}

func (c *cluster) named(t *testing.T, name string) *node.Node {
	t.Helper()
	n, err := c.Node(name)
	harness.OK(t, err)
	return n
}

// object is a node's, as the API server has it. One that is busy is asked again,
// here and in all that a person does: that is no trouble of Berth's.
func (c *cluster) object(t *testing.T, name string) (o *v1alpha1.NodeNetwork) {
	t.Helper()
	harness.Eventually(t, patience, "read the object of "+name, func() (err error) {
		o, err = c.Kube.NodeNetwork(t.Context(), name)
		return err
	})
	return o
}

// edit changes what a person may, as a person does.
func (c *cluster) edit(t *testing.T, name string, change func(*v1alpha1.NodeNetworkSpec)) {
	t.Helper()
	harness.Eventually(t, patience, "edit the object of "+name, func() error {
		o, err := c.Kube.NodeNetwork(t.Context(), name)
		if err != nil {
			return err
		}
		before := o.DeepCopy()
		change(&o.Spec)
		return c.Kube.Client.Patch(t.Context(), o, client.MergeFrom(before), client.FieldOwner("kubectl-edit"))
	})
}

// want has a node keep so many addresses free.
func (c *cluster) want(t *testing.T, name string, free int32) {
	t.Helper()
	c.edit(t, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.PreAllocate = &free })
}

// has waits until a node has so many addresses at least.
func (c *cluster) has(t *testing.T, name string, count int) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("%s has %d addresses", name, count), func() error {
		o, err := c.Kube.NodeNetwork(t.Context(), name)
		if err == nil && len(o.Spec.IPAM.Available) < count {
			err = fmt.Errorf("it has %d: %s", len(o.Spec.IPAM.Available), conditions(o))
		}
		return err
	})
}

// rests waits until a node has so many addresses and no more.
func (c *cluster) rests(t *testing.T, name string, count int) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("%s is back to %d addresses", name, count), func() error {
		return sameCount("addresses", len(c.object(t, name).Spec.IPAM.Available), count)
	})
}

// knows waits until a node's daemon has so many addresses to give at least: those
// that stand in the object it may not have seen yet.
func knows(t *testing.T, n *node.Node, free int) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("the daemon of %s knows of %d free addresses", n.Name, free), func() error {
		doc, err := lab.Document(t.Context(), n)
		if err == nil && doc.Totals.Available < free {
			err = fmt.Errorf("it has %d", doc.Totals.Available)
		}
		return err
	})
}

// othersGrow wants the witness to get another address, whatever others wait for.
func (c *cluster) othersGrow(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grown++
	c.want(t, c.witness, c.grown)
	c.has(t, c.witness, int(c.grown))
	// The trouble of another node is not its too.
	c.condition(t, c.witness, v1alpha1.ConditionDegraded, metav1.ConditionFalse, "")
}

// condition waits until one has a status and a reason, and its message has words.
func (c *cluster) condition(t *testing.T, name, kind string, is metav1.ConditionStatus, reason string, words ...string) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("%s of %s is %s as %s", kind, name, is, reason), func() error {
		o, err := c.Kube.NodeNetwork(t.Context(), name)
		if err != nil {
			return err
		}
		got := meta.FindStatusCondition(o.Status.Conditions, kind)
		if got == nil || got.Status != is || reason != "" && got.Reason != reason || !says(got.Message, words) {
			return fmt.Errorf("want words %q; %s", words, conditions(o))
		}
		return nil
	})
}

func says(text string, words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

func conditions(o *v1alpha1.NodeNetwork) string {
	var b strings.Builder
	for _, c := range o.Status.Conditions {
		fmt.Fprintf(&b, "\n\t%s=%s %s %q", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

// event waits until the Node has an event of a reason whose note has words.
func (c *cluster) event(t *testing.T, name, reason string, words ...string) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("Node %s has an event %s", name, reason), func() error {
		list, err := c.events(t.Context(), name)
		if err != nil {
			return err
		}
		for _, e := range list {
			if e.Reason == reason && says(e.Note, words) {
				return nil
			}
		}
		var have []string
		for _, e := range list {
			have = append(have, e.Type+" "+e.Reason+": "+e.Note)
		}
		return fmt.Errorf("want words %q, it has %q", words, have)
	})
}

// events are those on a Node.
func (c *cluster) events(ctx context.Context, name string) (out []eventsv1.Event, err error) {
	list := &eventsv1.EventList{}
	if err := c.Kube.Client.List(ctx, list); err != nil {
		return nil, err
	}
	for _, e := range list.Items {
		if e.Regarding.Kind == "Node" && e.Regarding.Name == name {
			out = append(out, e)
		}
	}
	return out, nil
}

// troubled wants what every trouble must show: a condition and an event on the
// Node that tell the same, and another node that grows meanwhile.
func (c *cluster) troubled(t *testing.T, name, kind, reason string, words ...string) {
	t.Helper()
	c.condition(t, name, kind, metav1.ConditionTrue, reason, words...)
	c.event(t, name, "Network"+reason, words...)
	c.othersGrow(t)
}

// healed wants a node to be well by itself, with so many addresses at least, and
// an event that says so.
func (c *cluster) healed(t *testing.T, name string, count int) {
	t.Helper()
	c.has(t, name, count)
	c.well(t, name)
	c.event(t, name, "NetworkHealed")
}

// well wants a node that lacks nothing.
func (c *cluster) well(t *testing.T, name string) {
	t.Helper()
	c.condition(t, name, v1alpha1.ConditionDegraded, metav1.ConditionFalse, "")
	c.condition(t, name, v1alpha1.ConditionInDeficit, metav1.ConditionFalse, "")
	c.condition(t, name, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
}

// add makes a pod as a kubelet does, trying again.
func add(t *testing.T, n *node.Node, name string) *node.Pod {
	t.Helper()
	p, err := n.AddPod(harness.Deadline(t, patience), name, node.PodOptions{})
	harness.OK(t, err)
	return p
}

func remove(t *testing.T, n *node.Node, name string) {
	t.Helper()
	harness.OK(t, n.DelPod(harness.Deadline(t, patience), name))
}

func (c *cluster) enis(n *node.Node) []vpc.ENI { return c.Books().InstanceENIs(n.InstanceID) }
