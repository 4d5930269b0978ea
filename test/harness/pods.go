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

// Patience only ends hanging tests: it is far longer than any step takes, and than the minute after which errors that
// need human intervention are retried.
const Patience = 5 * time.Minute

// Add adds a pod like a kubelet does, with retries.
func Add(t *testing.T, n *node.Node, name string) *node.Pod {
	t.Helper()
	p, err := n.AddPod(Deadline(t, Patience), name, node.PodOptions{})
	OK(t, err)
	return p
}

// AddOnce adds a pod, or returns the first failure.
func AddOnce(t *testing.T, n *node.Node, name string) error {
	t.Helper()
	_, err := n.AddPod(Deadline(t, Patience), name, node.PodOptions{Once: true})
	return err
}

// AddMany adds the pods name-0, name-1 and so on, all concurrently.
func AddMany(t *testing.T, n *node.Node, name string, count int, o node.PodOptions) error {
	t.Helper()
	ctx := Deadline(t, Patience)
	return AtOnce(count, func(i int) error {
		_, err := n.AddPod(ctx, fmt.Sprintf("%s-%d", name, i), o)
		return err
	})
}

// Once disables retries.
var Once = node.PodOptions{Once: true}

// Remove removes a pod.
func Remove(t *testing.T, n *node.Node, name string) {
	t.Helper()
	OK(t, n.DelPod(Deadline(t, Patience), name))
}

// RemoveAll removes all pods of a node concurrently.
func RemoveAll(t *testing.T, n *node.Node) {
	t.Helper()
	ctx, pods := Deadline(t, Patience), n.Pods()
	OK(t, AtOnce(len(pods), func(i int) error { return n.DelPod(ctx, pods[i].Name) }))
}

// AtOnce calls do with 0 to count-1 concurrently, and waits for all calls.
func AtOnce(count int, do func(i int) error) error {
	errs := make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Document returns the introspection document of a node's daemon.
func Document(t *testing.T, n *node.Node) introspect.Document {
	t.Helper()
	doc, err := lab.Document(Deadline(t, Patience), n)
	OK(t, err)
	return doc
}

// Shows waits until check returns nil for a daemon's introspection document.
func Shows(t *testing.T, n *node.Node, what string, check func(introspect.Document) error) {
	t.Helper()
	Eventually(t, Patience, what, func() error {
		doc, err := lab.Document(t.Context(), n)
		if err != nil {
			return err
		}
		return check(doc)
	})
}

// Waiting waits until the given number of ADDs wait for an address.
func Waiting(t *testing.T, n *node.Node, want int) {
	t.Helper()
	Shows(t, n, fmt.Sprintf("%d ADDs wait", want), func(doc introspect.Document) error {
		return Equal("waiting ADDs", doc.Totals.Waiting, want)
	})
}

// HasError waits until a node's daemon reports a last error with words; ErrorGone waits until it reports none.
func HasError(t *testing.T, n *node.Node, words ...string) {
	t.Helper()
	Shows(t, n, "last error of the daemon", func(doc introspect.Document) error {
		if doc.LastError == "" || !Says(doc.LastError, words...) {
			return fmt.Errorf("last error = %q, want it to contain %q", doc.LastError, words)
		}
		return nil
	})
}

// ErrorGone waits until a node's daemon reports no last error.
func ErrorGone(t *testing.T, n *node.Node) {
	t.Helper()
	Shows(t, n, "last error is cleared after recovery", func(doc introspect.Document) error {
		if doc.LastError != "" {
			return errors.New(doc.LastError)
		}
		return nil
	})
}

// Ready waits until a node accepts pods.
func Ready(t *testing.T, n *node.Node) {
	t.Helper()
	OK(t, n.WaitReady(Deadline(t, Patience)))
}

// Restart kills a node's daemon and starts it, with additional arguments.
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
			t.Errorf("%s was started %d times, want once", p, p.Starts())
		}
	}
}

// ENIs returns a node's ENIs according to EC2, the primary one first.
func ENIs(l *lab.Lab, n *node.Node) []vpc.ENI { return l.Snapshot().InstanceENIs(n.InstanceID) }

// PrimaryAddress returns a node's own IPv4 address.
func PrimaryAddress(t *testing.T, l *lab.Lab, n *node.Node) netip.Addr {
	t.Helper()
	enis := ENIs(l, n)
	if len(enis) == 0 {
		t.Fatalf("%s has no ENI", n.Name)
	}
	return enis[0].Primary
}

// Equal returns an error if two numbers differ.
func Equal(what string, got, want int) error {
	if got != want {
		return fmt.Errorf("%d %s, want %d", got, what, want)
	}
	return nil
}

// Says reports whether a text contains all words.
func Says(text string, words ...string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// Fails requires a CNI error with a code and all words.
func Fails(t *testing.T, err error, code uint, words ...string) {
	t.Helper()
	if err == nil {
		t.Error("the call succeeded, want an error")
		return
	}
	if got := node.CNICode(err); got != code {
		t.Errorf("error code = %d, want %d: %v", got, code, err)
	}
	if !Says(err.Error(), words...) {
		t.Errorf("error lacks some of %q: %v", words, err)
	}
}
