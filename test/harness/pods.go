package harness

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/proc"
)

// Patience only ends what hangs: it is far longer than any step takes, and than the minute after which
// errors that only a person can fix are tried again.
const Patience = 5 * time.Minute

// Add makes a pod as a kubelet does, with retries.
func Add(t *testing.T, n *node.Node, name string) *node.Pod {
	t.Helper()
	p, err := n.AddPod(Deadline(t, Patience), name, node.PodOptions{})
	OK(t, err)
	return p
}

// AddOnce makes a pod, or returns the first failure.
func AddOnce(t *testing.T, n *node.Node, name string) error {
	t.Helper()
	_, err := n.AddPod(Deadline(t, Patience), name, node.PodOptions{Once: true})
	return err
}

// AddMany makes pods name-0 and so on, all at the same time.
func AddMany(t *testing.T, n *node.Node, name string, count int, o node.PodOptions) error {
	t.Helper()
	ctx := Deadline(t, Patience)
	return AtOnce(count, func(i int) error {
		_, err := n.AddPod(ctx, fmt.Sprintf("%s-%d", name, i), o)
		return err
	})
}

// Once has no retries.
var Once = node.PodOptions{Once: true}

// Remove removes a pod.
func Remove(t *testing.T, n *node.Node, name string) {
	t.Helper()
	OK(t, n.DelPod(Deadline(t, Patience), name))
}

// RemoveAll removes all pods of a node at the same time.
func RemoveAll(t *testing.T, n *node.Node) {
	t.Helper()
	ctx, pods := Deadline(t, Patience), n.Pods()
	OK(t, AtOnce(len(pods), func(i int) error { return n.DelPod(ctx, pods[i].Name) }))
}

// AtOnce calls do with 0 to count-1 at the same time, and returns when all have.
func AtOnce(count int, do func(i int) error) error {
	errs := make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Document is the introspection document of a node's daemon.
func Document(t *testing.T, n *node.Node) introspect.Document {
	t.Helper()
	doc, err := lab.Document(Deadline(t, Patience), n)
	OK(t, err)
	return doc
}

// Shows waits until is returns nil for a daemon's introspection document.
func Shows(t *testing.T, n *node.Node, what string, is func(introspect.Document) error) {
	t.Helper()
	Eventually(t, Patience, what, func() error {
		doc, err := lab.Document(t.Context(), n)
		if err != nil {
			return err
		}
		return is(doc)
	})
}

// Waiting waits until a number of ADDs wait for an address.
func Waiting(t *testing.T, n *node.Node, want int) {
	t.Helper()
	Shows(t, n, fmt.Sprintf("%d ADDs wait", want), func(doc introspect.Document) error {
		return Equal("ADDs that wait", doc.Totals.Waiting, want)
	})
}

// HasError waits until a node's daemon reports a last error with words, ErrorGone until it reports
// none.
func HasError(t *testing.T, n *node.Node, words ...string) {
	t.Helper()
	Shows(t, n, "the daemon tells of its last error", func(doc introspect.Document) error {
		if doc.LastError == "" || !Says(doc.LastError, words...) {
			return fmt.Errorf("it is %q, want words %q", doc.LastError, words)
		}
		return nil
	})
}

// ErrorGone is the end of HasError.
func ErrorGone(t *testing.T, n *node.Node) {
	t.Helper()
	Shows(t, n, "the last error goes after it healed", func(doc introspect.Document) error {
		if doc.LastError != "" {
			return errors.New(doc.LastError)
		}
		return nil
	})
}

// Ready waits until a node takes pods.
func Ready(t *testing.T, n *node.Node) {
	t.Helper()
	OK(t, n.WaitReady(Deadline(t, Patience)))
}

// Restart kills a node's daemon and starts it, with further arguments.
func Restart(t *testing.T, n *node.Node, more ...string) {
	t.Helper()
	OK(t, n.Kill())
	OK(t, n.Start(more...))
	Ready(t, n)
}

// StartedOnce checks that no program was restarted.
func StartedOnce(t *testing.T, programs ...*proc.Process) {
	t.Helper()
	for _, p := range programs {
		if p.Starts() != 1 {
			t.Errorf("%s was started %d times", p, p.Starts())
		}
	}
}

// ENIs are a node's, as EC2 has them: the primary one first.
func ENIs(l *lab.Lab, n *node.Node) []vpc.ENI { return l.Snapshot().InstanceENIs(n.InstanceID) }

// PrimaryAddress is a node's own IPv4 address.
func PrimaryAddress(t *testing.T, l *lab.Lab, n *node.Node) netip.Addr {
	t.Helper()
	enis := ENIs(l, n)
	if len(enis) == 0 {
		t.Fatalf("%s has no ENI", n.Name)
	}
	return enis[0].Primary
}

// Equal is an error when two numbers differ.
func Equal(what string, got, want int) error {
	if got != want {
		return fmt.Errorf("%d %s, want %d", got, what, want)
	}
	return nil
}

// Says reports whether a text has all words.
func Says(text string, words ...string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// Fails expects a CNI error with a code and all words.
func Fails(t *testing.T, err error, code uint, words ...string) {
	t.Helper()
	if err == nil {
		t.Error("it worked, and should not have")
		return
	}
	if got := node.CNICode(err); got != code {
		t.Errorf("failed with code %d, want %d: %v", got, code, err)
	}
	if !Says(err.Error(), words...) {
		t.Errorf("the error does not say all of %q: %v", words, err)
	}
}
