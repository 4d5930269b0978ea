package labs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestPodEventsExplainWaiting requires an Event of a pod when its ADD waits, fails, succeeds and is rejected, and
// when its ENI is detached. berthd writes them with the rights of the installation.
func TestPodEventsExplainWaiting(t *testing.T) {
	for mode, o := range map[lab.Mode]lab.Options{
		lab.OperatorMode: {InstanceType: harness.Few(t, "t3.small").Type, DaemonArgs: []string{"--max-pods=1", "--warm-wait=6s"}, OperatorArgs: []string{"--listing-interval=1h"}},
		lab.PoolMode: {
			DaemonArgs: []string{"--warm-wait=6s"},
			Pools:      []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, 0, v1alpha1.PoolSubnet{IPv4: "10.4.0.0/32"})},
		},
	} {
		why := map[lab.Mode]string{lab.OperatorMode: "max-pods", lab.PoolMode: "pool-exhausted"}[mode]
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			o.Nodes = 1
			l := harness.RaiseQuick(t, mode, o)
			n := l.Nodes()[0]
			harness.Add(t, n, "first")
			added := make(chan error, 1)
			go func() {
				_, err := n.AddPod(harness.Deadline(t, patience), "second", node.PodOptions{})
				added <- err
			}()
			hasEvent(t, l, "second", corev1.EventTypeWarning, "WaitingForAddress", "["+why+"]", "docs/troubleshoot/")
			hasEvent(t, l, "second", corev1.EventTypeWarning, "NoAddress", "["+why+"]", "docs/troubleshoot/")
			harness.Remove(t, n, "first")
			harness.OK(t, <-added)
			for _, p := range n.Pods() {
				hasEvent(t, l, "second", corev1.EventTypeNormal, "AddressAssigned", "has "+p.Addr().String())
			}
			if events := podEvents(t, l, "first"); len(events) != 0 {
				t.Errorf("Events of a pod that did not wait = %v, want none", events)
			}
			if mode == lab.OperatorMode {
				detach(t, l, harness.ENIs(l, n)[1])
				hasEvent(t, l, "second", corev1.EventTypeWarning, "NetworkLost", "docs/troubleshoot/")
				hasEvent(t, l, "second", corev1.EventTypeNormal, "NetworkRestored")
				harness.Eventually(t, patience, "CHECK of the pod succeeds again", func() error { return n.CheckPod(t.Context(), n.Pods()[0].Name) })
			}
			if mode == lab.PoolMode {
				refused := node.PodOptions{Once: true, Annotations: map[string]string{v1alpha1.AnnotationPool: "Not A Pool"}}
				_, err := n.AddPod(harness.Deadline(t, patience), "odd", refused)
				harness.Fails(t, err, types.ErrInvalidNetworkConfig, "berth.dev/pool")
				hasEvent(t, l, "odd", corev1.EventTypeWarning, "NetworkNotSetUp", "berth.dev/pool", "[bad-request]")
			}
		})
	}
}

// hasEvent waits until a pod has an Event with all words.
func hasEvent(t *testing.T, l *lab.Lab, pod, kind, reason string, words ...string) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("Event of pod %s with reason %s", pod, reason), func() error {
		var others []string
		for _, e := range podEvents(t, l, pod) {
			if e.Reason == reason && e.Type == kind && harness.Says(e.Message, words...) {
				return nil
			}
			others = append(others, e.Type+" "+e.Reason+": "+e.Message)
		}
		return fmt.Errorf("no such Event among %d: %s", len(others), strings.Join(others, "; "))
	})
}

// podEvents returns the Events that `kubectl describe pod` shows.
func podEvents(t *testing.T, l *lab.Lab, pod string) []corev1.Event {
	t.Helper()
	list := &corev1.EventList{}
	harness.OK(t, l.Kube.Client.List(t.Context(), list, client.InNamespace("default"), client.MatchingFields{"involvedObject.kind": "Pod"}))
	var of []corev1.Event
	for _, e := range list.Items {
		if strings.HasPrefix(e.InvolvedObject.Name, pod) && e.ReportingController == "berthd" {
			of = append(of, e)
		}
	}
	return of
}
