package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/run/node"
)

// TestNodesFollowInstances binds pods, launches, stops and terminates instances, and checks their Nodes, even while the
// API server is down.
func TestNodesFollowInstances(t *testing.T) {
	l := start(t, Options{Nodes: 1, Mode: OperatorMode})
	t.Run("pods are API objects", func(t *testing.T) { podsAreObjects(t, l) })
	t.Run("lost reply to a binding", func(t *testing.T) { lostReplyToABinding(t, l) })
	ctx := t.Context()
	n := &corev1.Node{}
	ready := func(name string, want corev1.ConditionStatus) {
		t.Helper()
		l.WaitEvents() // the machine's state changes before its Node is updated
		ok(t, l.WaitReports(ctx))
		ok(t, l.Kube.Client.Get(ctx, client.ObjectKey{Name: name}, n))
		if c := n.Status.Conditions; len(c) != 1 || c[0].Type != corev1.NodeReady || c[0].Status != want {
			t.Errorf("conditions of %s = %+v, want Ready=%s", name, c, want)
		}
	}
	ready("node-1", corev1.ConditionTrue)
	first := l.Snapshot().Instances[0]
	if want := "aws:///" + first.Zone + "/" + first.ID; n.Spec.ProviderID != want {
		t.Errorf("provider ID = %q, want %q", n.Spec.ProviderID, want)
	}

	ok(t, l.Kube.KillAPIServer())
	i, err := l.Cloud.Instances.Launch(spec.Instance{Name: "late", Type: "m5.large", Subnet: "a", Role: "node"})
	ok(t, err)
	l.WaitEvents() // events do not wait for the API server
	ok(t, l.Kube.StartAPIServer(ctx))
	ready("late", corev1.ConditionTrue)
	ok(t, l.Cloud.Instances.Stop(i.ID))
	eventually(t, "node late is off", func() bool { _, err := l.Node("late"); return err != nil })
	ready("late", corev1.ConditionUnknown)
	ok(t, l.Cloud.Instances.Start(i.ID))
	eventually(t, "node late is on", func() bool { _, err := l.Node("late"); return err == nil })
	ready("late", corev1.ConditionTrue)
	late, err := l.Node("late")
	ok(t, err)
	ok(t, BindPods(ctx, late, "a", "b"))
	ok(t, l.Cloud.Instances.Terminate(i.ID))
	eventually(t, "Node late is deleted", func() bool {
		return apierrors.IsNotFound(l.Kube.Client.Get(ctx, client.ObjectKey{Name: "late"}, n))
	})
	ok(t, l.WaitReports(ctx))
	if left := podsOf(t, l, "late"); len(left) != 0 {
		t.Errorf("pods %v remain on a deleted node", left)
	}
}

func podsOf(t *testing.T, l *Lab, node string) (names []string) {
	t.Helper()
	pods := &corev1.PodList{}
	ok(t, l.Kube.Client.List(t.Context(), pods, client.MatchingFields{"spec.nodeName": node}))
	for _, p := range pods.Items {
		names = append(names, p.Name)
	}
	return names
}

// podsAreObjects binds, reports and removes pods, and binds one again whose object still exists.
func podsAreObjects(t *testing.T, l *Lab) {
	ctx := t.Context()
	n := l.Nodes()[0]
	uid, name, err := n.Objects.Bind(ctx, "a", node.PodOptions{Namespace: "new-namespace"})
	ok(t, err)
	if again, _, err := n.Objects.Bind(ctx, "a", node.PodOptions{Namespace: "new-namespace"}); err != nil || again != uid {
		t.Errorf("second Bind() = %s, %v; want %s", again, err, uid)
	}
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: "new-namespace", Name: name}
	ok(t, l.Kube.Client.Get(ctx, key, pod))
	if pod.Spec.NodeName != n.Name || pod.Status.Phase != corev1.PodPending || pod.Status.PodIP != "" || string(pod.UID) != uid {
		t.Errorf("bound pod = %+v, want Pending on the node without an IP", pod)
	}
	n.Objects.Running(&node.Pod{
		PodOptions: node.PodOptions{Namespace: "new-namespace"}, Name: "a", ObjectName: name, UID: uid,
		Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.9")},
	})
	ok(t, l.WaitReports(ctx))
	ok(t, l.Kube.Client.Get(ctx, key, pod))
	if pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP != "10.0.0.9" {
		t.Errorf("status of running pod = %+v, want Running with IP 10.0.0.9", pod.Status)
	}
	n.Objects.Gone("new-namespace", "a")
	if again, _, err := n.Objects.Bind(ctx, "a", node.PodOptions{Namespace: "new-namespace"}); err != nil || again == uid {
		t.Errorf("Bind() of a new pod with the same name = %s, %v; want a UID other than %s", again, err, uid)
	}
}

// lostReplyToABinding loses the reply to the creation of a pod object: Bind then uses that object.
func lostReplyToABinding(t *testing.T, l *Lab) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	heard := false
	c := *l.Kube
	c.Client = interceptor.NewClient(l.Kube.Client, interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			err := api.Create(ctx, o, opts...)
			if err == nil && !heard {
				heard = true
				return io.ErrUnexpectedEOF
			}
			return err
		},
	})
	objects := &podObjects{cluster: &nodeObjects{kube: &c}, node: "node-1", uids: map[podKey]string{}}
	uid, name, err := objects.Bind(ctx, "unheard", node.PodOptions{Namespace: "default"})
	ok(t, err)
	pod := &corev1.Pod{}
	ok(t, l.Kube.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, pod))
	if uid == "" || string(pod.UID) != uid {
		t.Errorf("Bind() = UID %q, want %q of the object", uid, pod.UID)
	}
}

// Reports are sent in order, repeated while the API server is down, and dropped if rejected.
func TestReportsAreSentInOrder(t *testing.T) {
	var mu sync.Mutex // guards sent and trouble
	var sent, trouble []string
	r := newReports(func(err error) { mu.Lock(); defer mu.Unlock(); trouble = append(trouble, err.Error()) })
	defer r.close()
	away := 2
	note := func(what string, err error) func() error {
		return func() error { mu.Lock(); defer mu.Unlock(); sent = append(sent, what); return err }
	}
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", fmt.Errorf("no"))
	for _, s := range []struct {
		what string
		send func() error
	}{
		{"a", note("a", nil)},
		{"b", func() error {
			if away--; away >= 0 {
				return errors.New("connection refused")
			}
			return note("b", nil)()
		}},
		{"c", note("c", refused)},
		{"d", note("d", nil)},
	} {
		r.add(s.what, ignoreContext(s.send))
	}
	ok(t, r.wait(t.Context()))
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"a", "b", "c", "d"}; !slices.Equal(sent, want) {
		t.Errorf("sent = %v, want %v", sent, want)
	}
	if len(trouble) != 1 || !strings.HasPrefix(trouble[0], "c: ") {
		t.Errorf("errors = %v, want only one from c", trouble)
	}
}

func ignoreContext(f func() error) func(context.Context) error {
	return func(context.Context) error { return f() }
}

// A different order would replace pods when the chart is installed again.
func TestChartEnvironmentOrderIsStable(t *testing.T) {
	of := map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "c", "Z": "d"}
	first := env(of)
	for range 50 {
		if again := env(of); !reflect.DeepEqual(again, first) {
			t.Fatalf("env() = %v, then %v; want the same order", first, again)
		}
	}
}
