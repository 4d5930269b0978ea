package labs

import (
	"errors"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestOutagesOfEC2AndTheAPIServer throttles and stops EC2 and the API server. No program restarts.
func TestOutagesOfEC2AndTheAPIServer(t *testing.T) {
	t.Parallel()
	c := raise(t, withNodes(t, "node-2", "node-3"))
	for _, n := range c.Nodes() {
		c.has(t, n.Name, 1)
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"API server down", apiServerDown},
		{"EC2 down", ec2Down},
		{"throttled", throttled},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, c) }) {
			break
		}
		c.rests(t, "node-2", 1)
		c.rests(t, "node-3", 1)
		harness.Settle(t, c.Lab)
	}
	harness.StartedOnce(t, harness.Programs(c.Lab)...)
}

// apiServerDown stops the API server: pods use and release warm addresses, and an ADD that needs
// another one says what is wrong. Growth continues afterwards.
func apiServerDown(t *testing.T, c *cluster) {
	n, other := c.named(t, "node-2"), c.named(t, "node-3")
	harness.OK(t, lab.BindPods(t.Context(), n, "a", "b")) // their objects cannot be made later
	harness.OK(t, lab.BindPods(t.Context(), other, "a"))
	c.has(t, n.Name, 3) // two wait, and one is to be warm
	c.has(t, other.Name, 2)
	knows(t, n, 3)
	knows(t, other, 2)
	harness.OK(t, c.Kube.KillAPIServer())
	a, b := harness.Add(t, n, "a"), harness.Add(t, n, "b")
	if a.Addr() == b.Addr() {
		t.Errorf("two pods have %s", a.Addr())
	}
	harness.Add(t, other, "a")
	harness.Remove(t, n, "a")
	harness.Remove(t, n, "b")
	s := harness.NewSandbox(t, n) // a third and fourth: the ones that were used cool
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	_, err := s.Add(t, list)
	harness.OK(t, err)
	harness.OK(t, s.Del(t, list))
	for _, n := range []*node.Node{n, other} {
		harness.HasError(t, n, "Kubernetes API", "is the API server reachable")
	}
	fullWithoutAPIServer(t, other)

	harness.OK(t, c.Kube.StartAPIServer(harness.Deadline(t, patience)))
	c.want(t, n.Name, 4)
	c.has(t, n.Name, 4) // clients come back to it within half a minute
	c.othersGrow(t)
	c.well(t, n.Name)
	harness.ErrorGone(t, n)
	harness.Remove(t, other, "a")
	c.want(t, n.Name, 1)
}

// fullWithoutAPIServer uses a node's warm addresses, and expects the next ADD to name the API server.
func fullWithoutAPIServer(t *testing.T, n *node.Node) {
	t.Helper()
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	for range 4 {
		s := harness.NewSandbox(t, n)
		_, err := s.Add(t, list)
		defer func() {
			harness.OK(t, s.Del(t, list))
		}()
		if err != nil {
			harness.Fails(t, err, types.ErrTryAgainLater, "no address is free", "Kubernetes API")
			return
		}
	}
	t.Error("four ADDs worked on a node with two addresses")
}

// ec2Down stops EC2: nodes that need nothing go on, and one that needs something says so.
func ec2Down(t *testing.T, c *cluster) {
	c.Cloud.API.Outage(true)
	defer c.Cloud.API.Outage(false)
	c.want(t, "node-2", 3)
	c.condition(t, "node-2", v1alpha1.ConditionDegraded, metav1.ConditionTrue, "Transient", "is the EC2 endpoint reachable", "next try at")
	c.event(t, "node-2", "NetworkTransient", "is the EC2 endpoint reachable")
	harness.Add(t, c.named(t, "node-3"), "warm")
	harness.Add(t, c.named(t, "node-2"), "warm")
	c.condition(t, "node-3", v1alpha1.ConditionDegraded, metav1.ConditionTrue, "Transient") // the next one cannot come
	c.condition(t, "node-3", v1alpha1.ConditionReady, metav1.ConditionFalse, "")
	c.Cloud.API.Outage(false)
	c.healed(t, "node-2", 4)
	c.healed(t, "node-3", 2)
	c.othersGrow(t)
	harness.Remove(t, c.named(t, "node-3"), "warm")
	harness.Remove(t, c.named(t, "node-2"), "warm")
	c.want(t, "node-2", 1)
}

// throttled lets one call of an action through: nodes that need it wait and say so, others grow by
// other actions, and all continue afterwards.
func throttled(t *testing.T, c *cluster) {
	began := time.Now()
	c.Cloud.API.ResetCalls()
	c.Cloud.API.SetRateLimit("CreateNetworkInterface", spec.RateLimit{Bucket: 1, Refill: 1e-6})
	more := c.few.PerENI + 1
	c.want(t, "node-2", int32(more)) // a further ENI each
	c.want(t, "node-3", int32(more))
	var slow string
	harness.Eventually(t, patience, "a node is throttled", func() error {
		for _, name := range []string{"node-2", "node-3"} {
			for _, cond := range harness.NodeNetwork(t, c.Lab, name).Status.Conditions {
				if cond.Type == v1alpha1.ConditionDegraded && cond.Reason == "Throttled" {
					slow = name
					return nil
				}
			}
		}
		return errors.New("none yet")
	})
	c.troubled(t, slow, v1alpha1.ConditionDegraded, "Throttled", "CreateNetworkInterface", "ask for a higher EC2 API rate")
	harness.Add(t, c.named(t, slow), "warm")
	harness.Remove(t, c.named(t, slow), "warm")
	for range 5 {
		c.othersGrow(t)
	}
	calls, took := c.Cloud.API.Stats()["CreateNetworkInterface"], time.Since(began)
	if most := 20 + int(took/(5*time.Second)); calls.Count > most {
		t.Errorf("%d calls in %v against an empty bucket, want at most %d: %v", calls.Count, took, most, calls.Errors)
	}
	c.Cloud.API.ClearRateLimit("CreateNetworkInterface")
	c.healed(t, slow, more)
	c.has(t, "node-2", more)
	c.has(t, "node-3", more)
	c.want(t, "node-2", 1)
	c.want(t, "node-3", 1)
}
