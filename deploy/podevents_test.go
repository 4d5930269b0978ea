package deploy_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/test/harness"
)

// writerOf returns a writer of Events with the token of berthd on a node.
func writerOf(t *testing.T, node string) kubeapi.PodEvents {
	t.Helper()
	token, err := harness.ControlPlane.NodeToken(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: "berthd"}, node)
	harness.OK(t, err)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	harness.OK(t, kube.WriteKubeconfig(file, harness.ControlPlane.ConfigWithToken(token)))
	w, err := kubeapi.NewPodEvents(file)
	harness.OK(t, err)
	return w
}

// podEvent returns an Event as berthd of a node writes it.
func podEvent(node, name string) podevents.Event {
	now := time.Now()
	return podevents.Event{
		Pod:  attachment.Pod{Namespace: "default", Name: "web-0", UID: "9a3c8f4e-0000-4000-8000-000000000001"},
		Name: name, Instance: node, Warning: true, Reason: "WaitingForAddress", Action: "AssignAddress",
		Note: "no address is free", First: now, Last: now, Count: 1,
	}
}

// eventOf is an Event with a number as berthd of node-1 writes it.
func eventOf(number string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "berthd.node-1x" + number}, EventTime: metav1.NowMicro(),
		ReportingController: "berthd", ReportingInstance: "node-1", Action: "AssignAddress", Reason: "NoAddress", Type: "Warning", Note: "no",
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "default", Name: "web-0"},
	}
}

// With the rights of a node's token in each mode, Events are written where `kubectl describe pod`
// finds them.
func TestDaemonWritesEventsOfPods(t *testing.T) {
	for _, mode := range []string{deploy.NodeMode, deploy.OperatorMode, deploy.PoolMode} {
		t.Run(mode, func(t *testing.T) {
			harness.KubeClean(t)
			bindRoles(t, mode, true)
			ctx, admin, node := t.Context(), harness.KubeClient(t), account(t, "berthd", "node-1")
			harness.Eventually(t, limit, "its role holds, and no other", func() error { return notBoundMore(t, node) })
			w := writerOf(t, "node-1")
			e := podEvent("node-1", "berthd.node-1x1")
			harness.Eventually(t, limit, "an Event is written", func() error {
				err := w.Create(ctx, e)
				if errors.Is(err, podevents.ErrTaken) {
					return nil
				}
				return err
			})
			e.Count, e.Last = 7, e.First.Add(time.Minute)
			harness.OK(t, w.Repeat(ctx, e))

			list := &corev1.EventList{}
			harness.OK(t, admin.List(ctx, list, client.InNamespace("default"), client.MatchingFields{
				"involvedObject.name": e.Pod.Name, "involvedObject.namespace": e.Pod.Namespace, "involvedObject.uid": e.Pod.UID,
			}))
			if len(list.Items) != 1 {
				t.Fatalf("kubectl finds %d events", len(list.Items))
			}
			got := list.Items[0]
			if got.Type != "Warning" || got.Reason != e.Reason || got.Message != e.Note || got.ReportingController != "berthd" || got.ReportingInstance != "node-1" ||
				got.Series == nil || got.Series.Count != 7 || got.Series.LastObservedTime.Sub(got.EventTime.Time).Round(time.Second) != time.Minute {
				t.Errorf("kubectl finds %+v", got)
			}
			for what, err := range map[string]error{
				"read an event":          node.Get(ctx, client.ObjectKeyFromObject(&got), &eventsv1.Event{}),
				"list events":            node.List(ctx, &eventsv1.EventList{}, client.InNamespace("default")),
				"delete an event":        node.Delete(ctx, &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: got.Name}}),
				"write an event of core": node.Create(ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}}),
				"read the pod":           node.Get(ctx, client.ObjectKey{Namespace: "default", Name: "web-0"}, &corev1.Pod{}),
			} {
				if !apierrors.IsForbidden(err) {
					t.Errorf("%s: %v, want no right to it", what, err)
				}
			}
		})
	}
}

// Writes that the API server will always reject are not retried.
func TestRejectedEventsAreNotRetried(t *testing.T) {
	applyEventPolicy(t)
	w := writerOf(t, "node-1")
	for what, change := range map[string]func(*podevents.Event){
		"no such namespace":  func(e *podevents.Event) { e.Pod.Namespace = "nowhere" },
		"no namespace":       func(e *podevents.Event) { e.Pod.Namespace = "" },
		"a path for a name":  func(e *podevents.Event) { e.Pod.Name = "../../pods" },
		"a path for a space": func(e *podevents.Event) { e.Pod.Namespace = "../../api" },
		"a long note":        func(e *podevents.Event) { e.Note = strings.Repeat("x", 1025) },
		"another's node":     func(e *podevents.Event) { e.Instance = "node-2" },
		"another's name":     func(e *podevents.Event) { e.Name = "berthd.node-2x2" },
		"another's reason":   func(e *podevents.Event) { e.Reason = "Killing" },
	} {
		e := podEvent("node-1", "berthd.node-1x2")
		change(&e)
		if err := w.Create(t.Context(), e); !errors.Is(err, podevents.ErrFinal) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := w.Repeat(t.Context(), podEvent("node-1", "berthd.node-1x4")); !errors.Is(err, podevents.ErrFinal) {
		t.Errorf("counting up an Event that is gone: %v", err)
	}
	e := podEvent("node-1", "berthd.node-1x5")
	harness.OK(t, w.Create(t.Context(), e))
	if err := w.Create(t.Context(), e); !errors.Is(err, podevents.ErrTaken) || errors.Is(err, podevents.ErrFinal) {
		t.Errorf("a name that is taken: %v", err)
	}
	defer harness.WithoutAPIServer(t)()
	if err := w.Create(t.Context(), podEvent("node-1", "berthd.node-1x3")); err == nil || errors.Is(err, podevents.ErrFinal) {
		t.Errorf("without an API server: %v", err)
	}
}

// The policy allows all reasons that berthd writes, and node names of the maximum length.
func TestPolicyKnowsTheReasons(t *testing.T) {
	applyEventPolicy(t)
	long := strings.Repeat("n", 63) + "." + strings.Repeat("o", 63) + "." + strings.Repeat("p", 63) + "." + strings.Repeat("q", 40)
	w := writerOf(t, long)
	for i, f := range podevents.Reasons() {
		e := podEvent(long[:128], fmt.Sprintf("berthd.%sx%d", long[:128], i))
		e.Reason, e.Action = f, "SetUpNetwork"
		harness.OK(t, w.Create(t.Context(), e))
	}
}

// A node's token cannot write Events of another node or program, or about other kinds than Pods,
// and has a limited number of Event names.
func TestDaemonWritesNoOtherEvents(t *testing.T) {
	applyEventPolicy(t)
	admin, daemon := harness.KubeClient(t), account(t, "berthd", "node-1")
	event := func(name string, change func(*eventsv1.Event)) *eventsv1.Event { return edited(eventOf(name), change) }
	const own, pods, reasons, bare = "may write only events that it reports itself", "may write events of Pods only", "may write only events with the reasons", "without labels, annotations"
	for why, changes := range map[string][]func(*eventsv1.Event){
		own: {
			func(e *eventsv1.Event) { e.ReportingInstance = "node-2" },
			func(e *eventsv1.Event) { e.ReportingController = "kubelet" },
		},
		pods: {
			func(e *eventsv1.Event) { e.Regarding.Kind = "ReplicaSet" },
			func(e *eventsv1.Event) { e.Regarding.APIVersion = "apps/v1" },
			func(e *eventsv1.Event) { e.Regarding.FieldPath = strings.Repeat("x", 300_000) },
			func(e *eventsv1.Event) { e.Regarding.UID = types.UID(strings.Repeat("x", 300_000)) },
			func(e *eventsv1.Event) { e.Related = &corev1.ObjectReference{Kind: "Node", Name: "node-1"} },
		},
		"must be berthd.node-1xN, with N from 0 to 255": {
			func(e *eventsv1.Event) { e.Name = "a" },
			func(e *eventsv1.Event) { e.Name, e.GenerateName = "", "berthd.node-1x" },
			func(e *eventsv1.Event) { e.Name = "berthd.node-1x256" },
			func(e *eventsv1.Event) { e.Name = "berthd.node-1x01" },
			func(e *eventsv1.Event) { e.Name = "berthd.node-1x1.a" },
			func(e *eventsv1.Event) { e.Name = "berthd.node-1" },
			func(e *eventsv1.Event) { e.Name = "berthd.node-10x1" },
		},
		reasons: {func(e *eventsv1.Event) { e.Reason = "Evicted" }},
		bare: {
			func(e *eventsv1.Event) { e.Labels = map[string]string{"a": "b"} },
			func(e *eventsv1.Event) { e.Finalizers = []string{"berth.dev/never"} },
		},
	} {
		for _, change := range changes {
			forbidden(t, daemon.Create(t.Context(), event("1", change), client.DryRunAll), why)
		}
	}
	for what, add := range hoards {
		e := event("1", func(e *eventsv1.Event) { add(e) })
		for i := range e.ManagedFields {
			e.ManagedFields[i].APIVersion = "events.k8s.io/v1"
		}
		if err := byPolicy(daemon.Create(t.Context(), e, client.DryRunAll)); err != nil {
			t.Logf("%+v", e.ManagedFields)
			t.Errorf("made with %s: %v", what, err)
		}
	}
	forbidden(t, account(t, "berthd", "").Create(t.Context(), event("1", func(*eventsv1.Event) {})), "this token names no node")
	others := event("2", func(e *eventsv1.Event) { e.ReportingController, e.ReportingInstance = "kubelet", "node-1" })
	harness.OK(t, admin.Create(t.Context(), others))
	counted := client.RawPatch(types.MergePatchType, []byte(`{"series":{"count":2,"lastObservedTime":"2030-01-01T00:00:00.000000Z"}}`))
	forbidden(t, daemon.Patch(t.Context(), others, counted), own)
	mine := event("3", func(*eventsv1.Event) {})
	harness.OK(t, daemon.Create(t.Context(), mine))
	harness.OK(t, daemon.Patch(t.Context(), mine, counted))
	large := managed(1, 300_000)
	large[0].APIVersion = "events.k8s.io/v1"
	if err := byPolicy(daemon.Patch(t.Context(), mine, managedPatch(t, large))); err != nil {
		t.Errorf("large managed fields: %v", err)
	}
	forbidden(t, account(t, "berthd", "node-2").Patch(t.Context(), mine, counted), own)
}

// applyEventPolicy installs the policies of node mode, with roles that allow everything.
func applyEventPolicy(t *testing.T) {
	t.Helper()
	harness.KubeClean(t)
	applyPoliciesOf(t, deploy.NodeMode)
	loose := account(t, "berthd", "")
	untilRefused(t, map[string]func() error{"the daemon's Events": func() error {
		return loose.Create(t.Context(), eventOf("0"), client.DryRunAll)
	}})
}

// A node can have at most 256 Events in a namespace.
func TestDaemonCannotFlood(t *testing.T) {
	applyEventPolicy(t)
	daemon := account(t, "berthd", "node-1")
	made := 0
	for i := range 400 {
		if err := daemon.Create(t.Context(), eventOf(fmt.Sprint(i))); err == nil {
			made++
		} else if !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
	}
	if made != 256 {
		t.Errorf("%d Events were made", made)
	}
}
