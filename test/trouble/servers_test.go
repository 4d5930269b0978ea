package trouble

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ktypes "k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/spec"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestTroubleOfServers has EC2 and the API server throttle, vanish, and be busy with
// others. Nothing is restarted.
func TestTroubleOfServers(t *testing.T) {
	t.Parallel()
	s := lab.DefaultSpec(3, "t3.small")
	s.Instances[0].Name, s.Instances[0].Type = "witness", "m5.xlarge"
	c := raise(t, "witness", lab.Options{Spec: &s})
	for _, n := range c.Nodes() {
		c.has(t, n.Name, 1)
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"API server down", apiServerDown},
		{"EC2 down", ec2Down},
		{"conflict storm", conflictStorm},
		{"stale writer", staleWriter},
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

// Without the API server pods get and give back warm addresses; an ADD that
// needs a further one says what is wrong. With it growth goes on.
func apiServerDown(t *testing.T, c *cluster) {
	n, other := c.named(t, "node-2"), c.named(t, "node-3")
	harness.OK(t, c.BindPods(t.Context(), n, "a", "b")) // their objects cannot be made later
	harness.OK(t, c.BindPods(t.Context(), other, "a"))
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

// fullWithoutAPIServer takes what is warm on a node and wants the next ADD to name
// the API server.
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

// Without EC2 nodes that need nothing go on, one that needs something says so.
func ec2Down(t *testing.T, c *cluster) {
	c.Cloud.Outage(true)
	defer c.Cloud.Outage(false)
	c.want(t, "node-2", 3)
	c.condition(t, "node-2", v1alpha1.ConditionDegraded, metav1.ConditionTrue, "Transient", "is the EC2 endpoint reachable", "next try at")
	c.event(t, "node-2", "NetworkTransient", "is the EC2 endpoint reachable")
	harness.Add(t, c.named(t, "node-3"), "warm")
	harness.Add(t, c.named(t, "node-2"), "warm")
	c.condition(t, "node-3", v1alpha1.ConditionDegraded, metav1.ConditionTrue, "Transient") // the next one cannot come
	c.condition(t, "node-3", v1alpha1.ConditionReady, metav1.ConditionFalse, "")
	c.Cloud.Outage(false)
	c.healed(t, "node-2", 4)
	c.healed(t, "node-3", 2)
	c.othersGrow(t)
	harness.Remove(t, c.named(t, "node-3"), "warm")
	harness.Remove(t, c.named(t, "node-2"), "warm")
	c.want(t, "node-2", 1)
}

// A client that patches an object without pause keeps neither its growth nor
// its daemon's reports from it.
func conflictStorm(t *testing.T, c *cluster) {
	const name = "node-2"
	stop := make(chan struct{})
	var patches atomic.Int64
	var storm sync.WaitGroup
	storm.Go(func() {
		for i := 0; t.Context().Err() == nil; i++ {
			select {
			case <-stop:
				return
			default:
			}
			o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}
			body := fmt.Sprintf(`{"metadata":{"annotations":{"storm":"%d"}},"spec":{"eni":{"maxAboveWatermark":%d}}}`, i, i%2)
			if err := c.Kube.Client.Patch(t.Context(), o, client.RawPatch(ktypes.MergePatchType, []byte(body))); err == nil {
				patches.Add(1)
			} else if t.Context().Err() == nil {
				t.Logf("patch %d: %v", i, err)
			}
		}
	})
	c.want(t, name, 2)
	c.has(t, name, 2)
	n := c.named(t, name)
	for i := range 3 {
		harness.Add(t, n, fmt.Sprintf("p%d", i))
	}
	c.has(t, name, 5)
	c.othersGrow(t)
	for i := range 3 {
		harness.Remove(t, n, fmt.Sprintf("p%d", i))
	}
	c.want(t, name, 1)
	harness.Becomes(t, c.Lab, name, "the handshake gives back what is too much", func(o *v1alpha1.NodeNetwork) error {
		if have := len(o.Spec.IPAM.Available); have > 2 {
			return fmt.Errorf("%d addresses", have)
		}
		return nil
	})
	t.Logf("%d patches meanwhile", patches.Load())
	harness.Eventually(t, patience, "the patches are a storm", func() error {
		if n := patches.Load(); n < 50 {
			return fmt.Errorf("%d patches", n)
		}
		return nil
	})
	close(stop)
	storm.Wait()
	harness.Edit(t, c.Lab, name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.MaxAboveWatermark = nil })
	c.well(t, name)
}

// A writer that did not see what happened since is refused by the API server; one
// that forces its way with what was true once is put right.
func staleWriter(t *testing.T, c *cluster) {
	const name = "node-2"
	c.want(t, name, 4)
	c.has(t, name, 4)
	old := harness.NodeNetwork(t, c.Lab, name)
	c.want(t, name, 1)
	c.rests(t, name, 1)
	write := func(meta map[string]any) error {
		body, err := json.Marshal(map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeNetwork",
			"metadata": meta, "spec": map[string]any{"ipam": old.Spec.IPAM},
		})
		harness.OK(t, err)
		o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return c.Kube.Client.Patch(t.Context(), o, client.RawPatch(ktypes.ApplyPatchType, body), client.ForceOwnership, client.FieldOwner(v1alpha1.OwnerOperator))
	}
	harness.Eventually(t, patience, "a write on an old state is refused", func() error {
		err := write(map[string]any{"name": name, "resourceVersion": old.ResourceVersion})
		if err == nil {
			t.Fatal("a write on an old state was taken")
		}
		if apierrors.IsConflict(err) {
			return nil
		}
		return err
	})
	harness.Eventually(t, patience, "a write by force", func() error { return write(map[string]any{"name": name}) })
	c.othersGrow(t)
	c.restored(t, name)
	harness.Settle(t, c.Lab) // the daemon has seen that, too
	for i := range 3 {       // what EC2 has taken is no pod's
		p := harness.Add(t, c.named(t, name), fmt.Sprintf("s%d", i))
		if !slices.ContainsFunc(harness.ENIs(c.Lab, c.named(t, name)), func(e vpc.ENI) bool { return e.Owns(p.Addr()) }) {
			t.Errorf("a pod has %s, which EC2 has taken", p.Addr())
		}
	}
	for i := range 3 {
		harness.Remove(t, c.named(t, name), fmt.Sprintf("s%d", i))
	}
}

// While EC2 lets an action through once and no more, who needs it waits, and says
// so; others grow by other actions. It ends when EC2 has time.
func throttled(t *testing.T, c *cluster) {
	began := time.Now()
	c.Cloud.ResetCalls()
	c.Cloud.SetRateLimit("CreateNetworkInterface", spec.RateLimit{Bucket: 1, Refill: 1e-6})
	c.want(t, "node-2", 4) // a further ENI each
	c.want(t, "node-3", 4)
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
	calls, took := c.Cloud.Calls()["CreateNetworkInterface"], time.Since(began)
	if most := 20 + int(took/(5*time.Second)); calls.Count > most {
		t.Errorf("%d calls in %v against an empty bucket, want at most %d: %v", calls.Count, took, most, calls.Errors)
	}
	c.Cloud.ClearRateLimit("CreateNetworkInterface")
	c.healed(t, slow, 4)
	c.has(t, "node-2", 4)
	c.has(t, "node-3", 4)
	c.want(t, "node-2", 1)
	c.want(t, "node-3", 1)
}
