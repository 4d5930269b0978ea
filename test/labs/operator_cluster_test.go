package labs

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// cluster is a lab in operator mode with one node that has no failure of its own.
type cluster struct {
	*lab.Lab
	few harness.Size // of the nodes but the witness

	mu    sync.Mutex // held while the witness grows
	grown int32
}

// witness is the node whose growth shows that a failure stays on its node.
const witness = "witness"

// withNodes has a witness and small nodes of some names.
func withNodes(t *testing.T, names ...string) spec.Spec {
	t.Helper()
	s := lab.DefaultSpec(1, harness.Few(t, "m5.xlarge").Type)
	s.Instances[0].Name = witness
	for _, name := range names {
		s.Instances = append(s.Instances, spec.Instance{Name: name, Type: harness.Few(t, "t3.small").Type, Subnet: "a", Role: s.Roles[0].Name})
	}
	return s
}

// raise starts a lab.
func raise(t *testing.T, s spec.Spec) *cluster {
	t.Helper()
	return raiseOf(t, s, "")
}

// raiseOf is raise with pods of some families.
func raiseOf(t *testing.T, s spec.Spec, families ipfamily.Set) *cluster {
	t.Helper()
	o := lab.Options{Spec: &s, IPFamilies: families, OperatorArgs: []string{"--node-gone-grace=3s"}}
	return &cluster{Lab: harness.RaiseQuick(t, lab.OperatorMode, o), few: harness.Few(t, "t3.small"), grown: 1}
}

// eachOnItsNode runs tests at the same time, each on the node of its name.
func (c *cluster) eachOnItsNode(t *testing.T, tests map[string]func(*testing.T, *cluster, string)) {
	t.Run("all", func(t *testing.T) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c.has(t, name, 1)
				c.well(t, name)
				test(t, c, name)
			})
		}
	})
	harness.Settle(t, c.Lab)
	harness.StartedOnce(t, c.Operators()[0].Process)
}

func (c *cluster) named(t *testing.T, name string) *node.Node {
	t.Helper()
	n, err := c.Node(name)
	harness.OK(t, err)
	return n
}

// want sets how many free addresses a node keeps.
func (c *cluster) want(t *testing.T, name string, free int32) {
	t.Helper()
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.PreAllocate = &free })
}

// has waits until a node has addresses for so many pods at least.
func (c *cluster) has(t *testing.T, name string, count int) {
	t.Helper()
	harness.Becomes(t, c.Lab, name, fmt.Sprintf("%d addresses", count), func(o *v1alpha1.NodeNetwork) error {
		if got := harness.Addresses(o); got < count {
			return fmt.Errorf("it has %d: %s", got, conditions(o))
		}
		return nil
	})
}

// rests waits until a node has addresses for so many pods and no more.
func (c *cluster) rests(t *testing.T, name string, count int) {
	t.Helper()
	harness.Becomes(t, c.Lab, name, fmt.Sprintf("back to %d addresses", count), func(o *v1alpha1.NodeNetwork) error {
		return harness.Equal("addresses", harness.Addresses(o), count)
	})
}

// knows waits until a node's daemon has at least so many free addresses. It may see them later than
// the object has them.
func knows(t *testing.T, n *node.Node, free int) {
	t.Helper()
	harness.Shows(t, n, fmt.Sprintf("the daemon of %s knows of %d free addresses", n.Name, free), func(doc introspect.Document) error {
		if doc.Totals.Available < free {
			return fmt.Errorf("it has %d", doc.Totals.Available)
		}
		return nil
	})
}

// othersGrow checks that the witness gets another address.
func (c *cluster) othersGrow(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grown++
	c.want(t, witness, c.grown)
	c.has(t, witness, int(c.grown))
	c.condition(t, witness, v1alpha1.ConditionDegraded, metav1.ConditionFalse, "")
}

// condition waits until a NodeNetwork has a condition with a status, a reason and words in its
// message.
func (c *cluster) condition(t *testing.T, name, kind string, is metav1.ConditionStatus, reason string, words ...string) {
	t.Helper()
	harness.Becomes(t, c.Lab, name, fmt.Sprintf("%s is %s as %s", kind, is, reason), func(o *v1alpha1.NodeNetwork) error {
		got := meta.FindStatusCondition(o.Status.Conditions, kind)
		if got == nil || got.Status != is || reason != "" && got.Reason != reason || !harness.Says(got.Message, words...) {
			return fmt.Errorf("want words %q; %s", words, conditions(o))
		}
		return nil
	})
}

func conditions(o *v1alpha1.NodeNetwork) string {
	var b strings.Builder
	for _, c := range o.Status.Conditions {
		fmt.Fprintf(&b, "\n\t%s=%s %s %q", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

// event waits until the Node has an Event of a reason with words in its note.
func (c *cluster) event(t *testing.T, name, reason string, words ...string) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("Node %s has an event %s that says %q", name, reason, words), func() error {
		list := &eventsv1.EventList{}
		if err := c.Kube.Client.List(t.Context(), list); err != nil {
			return err
		}
		errs := []error{errors.New("it has none")}
		for _, e := range list.Items {
			if e.Regarding.Kind != "Node" || e.Regarding.Name != name {
				continue
			}
			if e.Reason == reason && harness.Says(e.Note, words...) {
				return nil
			}
			errs = append(errs, fmt.Errorf("but %s %s: %s", e.Type, e.Reason, e.Note))
		}
		return errors.Join(errs...)
	})
}

// troubled checks what every failure must show: a condition and an Event of the Node with the same
// words, while another node grows.
func (c *cluster) troubled(t *testing.T, name, kind, reason string, words ...string) {
	t.Helper()
	c.condition(t, name, kind, metav1.ConditionTrue, reason, words...)
	c.event(t, name, "Network"+reason, words...)
	c.othersGrow(t)
}

// healed waits until a node is healthy with at least so many addresses, and has an Event that says so.
func (c *cluster) healed(t *testing.T, name string, count int) {
	t.Helper()
	c.has(t, name, count)
	c.well(t, name)
	c.event(t, name, "NetworkHealed")
}

// well waits until a node is healthy and lacks no address.
func (c *cluster) well(t *testing.T, name string) {
	t.Helper()
	c.condition(t, name, v1alpha1.ConditionDegraded, metav1.ConditionFalse, "")
	c.condition(t, name, v1alpha1.ConditionInDeficit, metav1.ConditionFalse, "")
	c.condition(t, name, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
}
