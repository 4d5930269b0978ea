package pool

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/source"
)

// Who chooses: the pod where the pool lets its namespace, else the namespace,
// else nobody.
func TestPoolChoice(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 4, nil, "10.0.0.0/24")
	m.pool("global", 4, nil, "10.1.0.0/24")
	m.pool("inner", 4, []string{namespace}, "10.2.0.0/24")
	m.startOperator()
	m.start()
	get := func(ns, name, uid string, within time.Duration) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		l, err := m.Acquire(ctx, source.Request{Key: attachment.Key{ContainerID: ns + name + uid, IfName: "eth0"}, Pod: attachment.Pod{Namespace: ns, Name: name, UID: uid}})
		return l.Pool, err
	}
	expect := func(ns, name, uid, pool, message string) {
		t.Helper()
		var got string
		var err error
		m.until("an answer for "+ns+"/"+name, func() bool {
			if message == "" {
				got, err = get(ns, name, uid, longest)
				return true
			}
			got, err = get(ns, name, uid, time.Second) // the first may come before what it depends on is known
			return err == nil || strings.Contains(err.Error(), message)
		})
		if got != pool || (err == nil) != (message == "") || err != nil && !strings.Contains(err.Error(), message) {
			t.Errorf("%s/%s: pool %q, %v; want %q, %q", ns, name, got, err, pool, message)
		}
	}
	plain := m.podNamed(namespace, "plain", "")
	expect(namespace, "plain", string(plain.UID), "default", "")
	expect(namespace, "plain", "another", "", "is not among this node's pods")
	expect(namespace, "nobody", "", "", "is not among this node's pods")
	m.podNamed(namespace, "in", "inner")
	expect(namespace, "in", "", "inner", "")
	m.podNamed(namespace, "out", "global")
	expect(namespace, "out", "", "", "does not list namespace ns")
	m.podNamed(namespace, "wrong", "globe")
	expect(namespace, "wrong", "", "", "there is no AddressPool globe")
	m.namespace("rich", "global")
	m.known("rich", "global")
	m.podNamed("rich", "p", "")
	expect("rich", "p", "", "global", "")
	m.namespace("mistaken", "globe")
	m.known("mistaken", "globe")
	m.podNamed("mistaken", "p", "")
	expect("mistaken", "p", "", "", "there is no AddressPool globe, which the namespace's annotation")

	// What is chosen stays, whatever changes.
	m.annotate(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "rich"}}, "")
	m.podNamed("rich", "later", "")
	m.known("rich", "")
	expect("rich", "later", "", "default", "")
	expect("rich", "p", "", "global", "")
}

// A pod that is not known yet waits, and goes on when it is.
func TestPodsThatAreNotKnownWait(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 4, nil, "10.0.0.0/24")
	m.startOperator()
	m.start()
	m.until("a warm block", func() bool { return m.Ready() == nil })
	got := make(chan error, 1)
	go func() {
		_, err := m.try(0, longest)
		got <- err
	}()
	m.until("it waits, and why is told", func() bool {
		s := m.Snapshot()
		return s.Waiting == 1 && strings.Contains(s.LastError, "not among this node's pods")
	})
	m.pods(0, 0)
	if err := <-got; err != nil {
		t.Error(err)
	}

	// Nor is anything assumed of a namespace that is not known.
	m.mu.Lock()
	delete(m.ledger.namespaces, namespace)
	m.mu.Unlock()
	m.pods(1, 1)
	m.until("the pod is known", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		_, ok := m.ledger.pods[podName{namespace, "pod1"}]
		return ok
	})
	m.fails(1, "namespace-unknown")
	m.annotate(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, "default")
	m.add(1)
}
