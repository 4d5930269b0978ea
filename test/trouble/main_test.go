// Package trouble holds the tests of what goes wrong outside Berth: bad input,
// a cloud that is away, refuses or is slow, a node that others meddle with.
// Each wants a clear CNI error or condition that names what to do, nothing
// half set up, and recovery without a restart.
package trouble

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/introspect"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berthd", "berth")) }

// quick are daemon settings under which nothing takes long, with further ones.
func quick(more ...string) []string {
	return append([]string{
		"--log-level=debug", "--cni-chain=", "--cooling-period=1s", "--shrink-delay=300ms", "--netns-grace=1s",
		"--repair-interval=5s", "--warm-wait=1s", "--listing-interval=2s",
	}, more...)
}

// lean keeps no more addresses than asked for.
var lean = []string{"--warm-ip-target=1", "--minimum-ip-target=1"}

// nodeOptions are of a pod that is tried again and again.
var nodeOptions node.PodOptions

// patience is for what takes a moment on a machine with nothing else to do. It
// only ends what hangs.
const patience = 5 * time.Minute

// add makes a pod as a kubelet does, trying again.
func add(t *testing.T, n *node.Node, name string) *node.Pod {
	t.Helper()
	p, err := n.AddPod(harness.Deadline(t, patience), name, node.PodOptions{})
	harness.OK(t, err)
	return p
}

// addOnce makes a pod, or returns the first failure.
func addOnce(t *testing.T, n *node.Node, name string) error {
	t.Helper()
	_, err := n.AddPod(harness.Deadline(t, patience), name, node.PodOptions{Once: true})
	return err
}

// addMany makes pods name-0 and so on, all at once, each tried once only.
func addMany(t *testing.T, n *node.Node, name string, count int) {
	t.Helper()
	ctx := harness.Deadline(t, patience)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			if _, err := n.AddPod(ctx, fmt.Sprintf("%s-%d", name, i), node.PodOptions{Once: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func remove(t *testing.T, n *node.Node, name string) {
	t.Helper()
	harness.OK(t, n.DelPod(harness.Deadline(t, patience), name))
}

func removeAll(t *testing.T, n *node.Node) {
	t.Helper()
	for _, p := range n.Pods() {
		remove(t, n, p.Name)
	}
}

// full wants an ADD to fail for want of an address, and the error to say all of
// words, if not at once: the daemon may still be trying when the first ADDs end.
func full(t *testing.T, n *node.Node, name string, words ...string) {
	t.Helper()
	words = append(words, "no address")
	var err error
	harness.Eventually(t, patience, "an ADD says why there is no address", func() error {
		if err = addOnce(t, n, name); err == nil || node.CNICode(err) != types.ErrTryAgainLater || says(err.Error(), words) {
			return nil
		}
		return fmt.Errorf("want words %q: %w", words, err)
	})
	fails(t, err, types.ErrTryAgainLater, words...)
}

func says(text string, words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// fails wants a CNI error of a code that says all of words.
func fails(t *testing.T, err error, code uint, words ...string) {
	t.Helper()
	if err == nil {
		t.Error("it worked, and should not have")
		return
	}
	if got := node.CNICode(err); got != code {
		t.Errorf("failed with code %d, want %d: %v", got, code, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error says nothing about %q: %v", w, err)
		}
	}
}

func document(t *testing.T, n *node.Node) introspect.Document {
	t.Helper()
	doc, err := lab.Document(t.Context(), n)
	harness.OK(t, err)
	return doc
}

// condition waits until a condition has a status, and returns it.
func condition(t *testing.T, n *node.Node, kind, status string) (found introspect.Condition) {
	t.Helper()
	harness.Eventually(t, patience, kind+" is "+status, func() error {
		doc, err := lab.Document(t.Context(), n)
		if err != nil {
			return err
		}
		for _, c := range doc.Conditions {
			if c.Type == kind && c.Status == status {
				found = c
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", doc.Conditions)
	})
	return found
}

// takesPods wants a good STATUS: a failing one would get the node's pods evicted.
func takesPods(t *testing.T, n *node.Node) {
	t.Helper()
	list := harness.Network(t, "1.1.0", "berth", harness.Plugin(n, nil))
	harness.OK(t, n.Runtime(t.TempDir()).GetStatusNetworkList(within(t, patience), list))
}

func ready(t *testing.T, n *node.Node) {
	t.Helper()
	harness.OK(t, n.WaitReady(harness.Deadline(t, patience)))
}

// restart kills the daemon and starts it, with further arguments.
func restart(t *testing.T, n *node.Node, more ...string) {
	t.Helper()
	harness.OK(t, n.Kill())
	harness.OK(t, n.Start(more...))
	ready(t, n)
}

func enis(l *lab.Lab, n *node.Node) []vpc.ENI { return l.Books().InstanceENIs(n.InstanceID) }

// within is a context for a call that must not take long.
func within(t *testing.T, d time.Duration) context.Context { return harness.Deadline(t, d) }
