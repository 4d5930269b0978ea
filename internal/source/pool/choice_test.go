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
	keys := 0
	get := func(ns string, wish source.Wish, within time.Duration) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		keys++
		l, err := m.Acquire(ctx, source.Request{Key: key(keys), Pod: attachment.Pod{Namespace: ns, Name: "p"}, Wish: wish})
		return l.Pool, err
	}
	expect := func(ns string, wish source.Wish, pool, message string) {
		t.Helper()
		var got string
		var err error
		m.until("an answer for a pod of "+ns, func() bool {
			if message == "" {
				got, err = get(ns, wish, longest)
				return true
			}
			got, err = get(ns, wish, time.Second) // the first may come before what it depends on is known
			return err == nil || strings.Contains(err.Error(), message)
		})
		if got != pool || (err == nil) != (message == "") || err != nil && !strings.Contains(err.Error(), message) {
			t.Errorf("%s %+v: pool %q, %v; want %q, %q", ns, wish, got, err, pool, message)
		}
	}
	wish := func(pool string) source.Wish { return source.Wish{Told: true, Pool: pool} }
	m.podNamed(namespace, "in", "inner") // of which the operator knows that it chose
	expect(namespace, wish(""), "default", "")
	expect(namespace, wish("inner"), "inner", "")
	expect(namespace, wish("global"), "", "does not list namespace ns")
	expect(namespace, wish("globe"), "", "there is no AddressPool globe")
	expect(namespace, source.Wish{}, "", "the container runtime does not tell")
	m.namespace("rich", "global")
	m.known("rich", "global")
	m.podNamed("rich", "p", "")
	expect("rich", wish(""), "global", "")
	expect("rich", source.Wish{}, "global", "") // its pods have no choice
	m.namespace("mistaken", "globe")
	m.known("mistaken", "globe")
	expect("mistaken", wish(""), "", "there is no AddressPool globe, which the namespace's annotation")

	// What is chosen is so for pods that start.
	m.annotate(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "rich"}}, "")
	m.known("rich", "")
	expect("rich", wish(""), "default", "")
}

// A pod of a namespace that is not known yet waits, and goes on when it is.
func TestPodsThatAreNotKnownWait(t *testing.T) {
	m := newMachine(t)
	m.pool("default", 4, nil, "10.0.0.0/24")
	m.startOperator()
	m.start()
	m.until("a warm block", func() bool { return m.Ready() == nil })
	m.mu.Lock()
	delete(m.ledger.namespaces, namespace)
	m.mu.Unlock()
	got := make(chan error, 1)
	go func() {
		_, err := m.try(0, longest)
		got <- err
	}()
	m.until("it waits, and why is told", func() bool {
		s := m.Snapshot()
		return s.Waiting == 1 && strings.Contains(s.LastError, "namespace ns is not known")
	})
	m.fails(1, "namespace-unknown")
	m.annotate(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, "default")
	if err := <-got; err != nil {
		t.Error(err)
	}
	m.add(1)
}
