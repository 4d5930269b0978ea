package pool

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/sourcenode"
)

// annotated returns the options of a pod that names a pool; empty: none.
func annotated(pool string) source.PodOptions { return named(pool, "") }

// named is annotated where the network's configuration names one too.
func named(pool, network string) source.PodOptions {
	return source.PodOptions{AnnotationsKnown: true, Annotations: map[string]string{v1alpha1.AnnotationPool: pool}, NetworkPool: network}
}

// What a user wrote and cannot be a pool's name is refused, and is in no message as it is.
func TestCheckWish(t *testing.T) {
	s := &Source{}
	for _, pool := range []string{"public\x1b[2J", "Public", strings.Repeat("a", 64), "a/b"} {
		for options, want := range map[*source.PodOptions]string{
			new(annotated(pool)):                      "the pod's annotation berth.dev/pool is ",
			new(source.PodOptions{NetworkPool: pool}): "pool of the network's configuration is ",
			new(named("public", pool)):                "pool of the network's configuration is ",
		} {
			err := s.CheckOptions(*options)
			if err == nil {
				t.Errorf("%+v is taken", options)
			} else if m := err.Error(); !strings.HasPrefix(m, want) || strings.ContainsRune(m, 0x1b) || len(m) > 300 {
				t.Errorf("message %q", m)
			}
		}
	}
	for _, options := range []source.PodOptions{{}, {AnnotationsKnown: true}, annotated(""), annotated(strings.Repeat("a", 63)), named("public", "in-2")} {
		if err := s.CheckOptions(options); err != nil {
			t.Errorf("%+v: %s", options, err)
		}
	}
}

// Who chooses: the pod where the pool lets its namespace, else the namespace,
// else nobody.
func TestPoolChoice(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 4, nil, "10.0.0.0/24")
	m.pool("global", 4, nil, "10.1.0.0/24")
	m.pool("inner", 4, []string{namespace}, "10.2.0.0/24")
	m.startOperator()
	m.start()
	keys := 0
	get := func(ns string, options source.PodOptions, within time.Duration) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		keys++
		l, err := m.Acquire(ctx, source.Request{Key: key(keys), Pod: attachment.Pod{Namespace: ns, Name: "p"}, Options: options})
		return l.Pool, err
	}
	expect := func(ns string, options source.PodOptions, pool, message string) {
		t.Helper()
		var got string
		var err error
		m.until("an answer for a pod of "+ns, func() bool {
			if message == "" {
				got, err = get(ns, options, longest)
				return true
			}
			got, err = get(ns, options, time.Second) // the first may come before what it depends on is known
			return err == nil || strings.Contains(err.Error(), message)
		})
		if got != pool || (err == nil) != (message == "") || err != nil && !strings.Contains(err.Error(), message) {
			t.Errorf("%s %+v: pool %q, %v; want %q, %q", ns, options, got, err, pool, message)
		}
	}
	m.podNamed(namespace, "in", "inner") // of which the operator knows that it chose
	expect(namespace, annotated(""), "default", "")
	expect(namespace, annotated("inner"), "inner", "")
	expect(namespace, annotated("global"), "", "does not list namespace ns")
	expect(namespace, annotated("globe"), "", "AddressPool globe, which the pod's annotation berth.dev/pool names, does not exist")
	expect(namespace, source.PodOptions{}, "", "the container runtime does not pass")
	m.namespace("rich", "global")
	m.known("rich", "global")
	m.podNamed("rich", "p", "")
	expect("rich", annotated(""), "global", "")
	expect("rich", source.PodOptions{}, "global", "") // its pods have no choice
	m.namespace("mistaken", "globe")
	m.known("mistaken", "globe")
	expect("mistaken", annotated(""), "", "AddressPool globe, which the namespace's annotation")

	// What is chosen is so for pods that start.
	m.annotate(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "rich"}}, "")
	m.known("rich", "")
	expect("rich", annotated(""), "default", "")
}

// A pod of a namespace that is not known yet waits, and goes on when it is.
func TestPodsThatAreNotKnownWait(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 4, nil, "10.0.0.0/24")
	m.startOperator()
	m.start()
	m.until("a warm block", func() bool { return m.Ready() == nil })
	m.state.with(func(n *holdings, _ time.Time) { delete(n.pools.namespaces, namespace) })
	got := make(chan error, 1)
	go func() {
		_, err := m.try(0, longest)
		got <- err
	}()
	m.until("it waits, and the snapshot says why", func() bool {
		s := m.Snapshot()
		return s.Waiting == 1 && strings.Contains(s.LastError, "has not listed namespace ns")
	})
	m.fails(1, "namespace-unknown")
	m.annotate(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, "default")
	check.NoError(t, <-got)
	m.add(1)
}

func TestChoose(t *testing.T) {
	w := pools{
		namespaces: map[string]string{"plain": "", "global": "public", "other": "", "lent": "inner"},
		byName: map[string]*poolState{
			"default": {known: true}, "public": {known: true}, "inner": {known: true, podNamespaces: []string{"plain", "global", "lent"}},
			"publik": {podNamespaces: []string{"other"}}, // blocks of a pool that is no more
		},
	}
	for _, tc := range []struct {
		namespace    string
		options      source.PodOptions
		want, reason string
		final        bool
	}{
		{"plain", annotated(""), "default", "", true},
		{"global", annotated(""), "public", "", true},
		{"global", annotated("inner"), "inner", "", true},
		{"plain", annotated("inner"), "inner", "", true},
		{"plain", annotated("public"), "", "pool-not-allowed", true},
		{"plain", annotated("default"), "default", "", true}, // what would be its pool anyway needs no permission
		{"global", annotated("public"), "public", "", true},
		{"global", annotated("default"), "", "pool-not-allowed", true},
		{"plain", annotated("publik"), "", "pool-unknown", false},
		{"lost", annotated(""), "", "namespace-unknown", false},
		{"lost", annotated("default"), "", "namespace-unknown", false},
		{"", annotated(""), "", "pod-unnamed", true},

		// A runtime that does not tell annotations.
		{"other", source.PodOptions{}, "default", "", true},
		{"lent", source.PodOptions{}, "inner", "", true}, // there is one that its pods may choose, and it is theirs anyway
		{"plain", source.PodOptions{}, "", "annotations-untold", true},
		{"global", source.PodOptions{}, "", "annotations-untold", true},
		{"lost", source.PodOptions{}, "", "namespace-unknown", false},

		// The network's configuration comes first, whether annotations are known or not.
		{"plain", source.PodOptions{NetworkPool: "inner"}, "inner", "", true},
		{"plain", named("public", "inner"), "inner", "", true},
		{"plain", named("inner", "default"), "default", "", true},
		{"other", source.PodOptions{NetworkPool: "inner"}, "", "pool-not-allowed", true},
		{"plain", source.PodOptions{NetworkPool: "publik"}, "", "pool-unknown", false},
		{"lost", source.PodOptions{NetworkPool: "inner"}, "", "namespace-unknown", false},
	} {
		pod := attachment.Pod{Namespace: tc.namespace, Name: "p"}
		if tc.namespace == "" {
			pod.Name = ""
		}
		got, final, why := w.choose(pod, tc.options)
		reason := ""
		if why != nil {
			reason = why.Reason
		}
		if got != tc.want || final != tc.final || reason != tc.reason {
			t.Errorf("%s %+v: %q, final %v, %q; want %q, %v, %q", tc.namespace, tc.options, got, final, reason, tc.want, tc.final, tc.reason)
		}
	}
	w.byName = nil
	if _, final, why := w.choose(attachment.Pod{Namespace: "plain", Name: "p"}, source.PodOptions{}); final || why.Reason != "pool-unknown" {
		t.Errorf("before the pools are known: final %v, %v", final, why)
	}
}

func TestRequestNames(t *testing.T) {
	long := strings.Repeat("a-very-long-name.", 14) + "example"
	seen := map[string]bool{}
	for _, node := range []string{"node-1", "node-2", long, long + "2"} {
		for slot := range maxOutstanding {
			name := requestName("pool-1", node, slot)
			if slotOf(name) != slot || seen[name] || len(name) > 90 || !strings.HasPrefix(name, "pool-1-") {
				t.Errorf("request %s of slot %d", name, slot)
			}
			seen[name] = true
		}
	}
	for _, name := range []string{"", "x", "pool-1-8", "pool-1-x", "pool-1--1"} {
		if got := slotOf(name); got != -1 && name != "pool-1--1" {
			t.Errorf("%q is of slot %d", name, got)
		}
	}
}

func TestReadRequest(t *testing.T) {
	condition := func(kind, status string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: v1alpha1.ReasonPoolExhausted, Message: "full"}
	}
	for _, tc := range []struct {
		name       string
		block      string
		conditions []metav1.Condition
		complete   bool
		failed     string
	}{
		{"new", "", nil, false, ""},
		{"complete", "p-1", []metav1.Condition{condition("Complete", "True")}, true, ""},
		{"half written", "p-1", nil, false, ""},
		{"failed", "", []metav1.Condition{condition("Failed", "True")}, false, "PoolExhausted"},
		{"failed before", "p-1", []metav1.Condition{condition("Failed", "True"), condition("Complete", "True")}, true, ""},
		{"failed no more", "", []metav1.Condition{condition("Failed", "False")}, false, ""},
	} {
		r := readRequest(&v1alpha1.BlockRequest{Status: v1alpha1.BlockRequestStatus{AddressBlockName: tc.block, Conditions: tc.conditions}}, t0)
		if r.complete() != tc.complete || r.failed != tc.failed {
			t.Errorf("%s: complete %v, failed %q", tc.name, r.complete(), r.failed)
		}
	}
}

// Who has another node's token makes requests, for that node, under the names
// that this one uses. It takes others.
func TestNamesOfRequestsThatAnotherNodeTook(t *testing.T) {
	m := newMachine(t)
	m.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stranger"}})
	m.pool("default", 0, nil, "10.0.0.0/24")
	m.pods(0, 2)
	stranger := harness.KubeClientFor(t, sourcenode.Config(t, "berthd", "stranger"))
	for slot := range maxOutstanding {
		r := &v1alpha1.BlockRequest{
			ObjectMeta: metav1.ObjectMeta{Name: requestName("default", nodeID, slot)},
			Spec:       v1alpha1.BlockRequestSpec{NodeName: "stranger", PoolName: "default"},
		}
		harness.Eventually(t, longest, "a request of the other node's", func() error { return stranger.Create(t.Context(), r) })
	}
	m.startOperator()
	m.start()
	for i := range 3 {
		m.add(i)
	}
	if !(m.Log.Count("is reserved for this node, is node stranger's") > 0) {
		t.Error("the log does not name the other node")
	}
	m.until("its requests are over", func() bool {
		list := &v1alpha1.BlockRequestList{}
		m.List(list)
		for _, r := range list.Items {
			if r.Spec.NodeName == nodeID {
				return false
			}
		}
		return len(list.Items) == maxOutstanding
	})
}
