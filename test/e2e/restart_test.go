//go:build e2e

package e2e

import (
	"errors"
	"slices"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/test/harness"
)

// TestVanishedSandboxesAreReleased loses sandboxes while the daemon is down. At its start it releases
// those without a network namespace that the runtime does not list either. One that is only not listed
// is released once its namespace has been gone for the grace period, and one that is listed when the
// runtime stops it.
func TestVanishedSandboxesAreReleased(t *testing.T) {
	t.Parallel()
	const grace = 3 * time.Second
	l, runtimes := raise(t, 1, true, "--netns-grace="+grace.String())
	c := runtimes[0]
	made := c.runMany(t, "s", 4)
	gone, listed, unlisted, alive := made[0], made[1], made[2], made[3]
	agree(t, l, c)

	harness.OK(t, c.node.Kill())
	c.forget(t, gone)
	gone.dropNetns(t)
	listed.dropNetns(t)
	c.forget(t, unlisted)
	c.stop(t)
	c.start(t)
	wantListed(t, c, listed.id, alive.id)

	c.startDaemon(t)
	c.networkReady(t)
	doc := harness.Document(t, c.node)
	if holds(doc, gone) || !cools(doc, gone.addr) {
		t.Errorf("%s, whose sandbox is gone and forgotten, was not released at start: %+v", gone.addr, doc)
	}
	for what, s := range map[string]*sandbox{"gone but listed": listed, "alive but not listed": unlisted, "alive": alive} {
		if !holds(doc, s) {
			t.Errorf("%s, whose sandbox is %s, was released at start", s.addr, what)
		}
	}

	unlisted.dropNetns(t)
	harness.Shows(t, c.node, "the address of the forgotten sandbox is released", func(doc introspect.Document) error {
		if holds(doc, unlisted) {
			return errors.New("still held")
		}
		return nil
	})
	if !holds(harness.Document(t, c.node), listed) { // gone for longer than unlisted
		t.Errorf("%s was released though the runtime lists its sandbox", listed.addr)
	}
	_, err := c.StopPodSandbox(harness.Deadline(t, patience), &cri.StopPodSandboxRequest{PodSandboxId: listed.id})
	harness.OK(t, err)
	if doc = harness.Document(t, c.node); holds(doc, listed) || !cools(doc, listed.addr) {
		t.Errorf("%s was not released when the runtime stopped its sandbox: %+v", listed.addr, doc)
	}
	alive.answers(t, c.node.Netns, harness.PrimaryAddress(t, l, c.node))
	empty(t, l, c)
}

// wantListed expects the runtime to list exactly these sandboxes.
func wantListed(t *testing.T, c *containerd, ids ...string) {
	t.Helper()
	reply, err := c.ListPodSandbox(harness.Deadline(t, patience), &cri.ListPodSandboxRequest{})
	harness.OK(t, err)
	var got []string
	for _, s := range reply.GetItems() {
		got = append(got, s.GetId())
	}
	slices.Sort(ids)
	if slices.Sort(got); !slices.Equal(got, ids) {
		t.Fatalf("containerd lists sandboxes %v, want %v", got, ids)
	}
}

// TestSandboxesOutliveContainerd kills and stops containerd: sandboxes keep their connections and
// addresses, and are removed afterwards.
func TestSandboxesOutliveContainerd(t *testing.T) {
	t.Parallel()
	l, runtimes := raise(t, 1, true)
	c := runtimes[0]
	sandboxes := c.runMany(t, "s", 6)
	agree(t, l, c)
	talk := sandboxes[0].converse(t, sandboxes[5].netns)
	for _, end := range []func(*testing.T){c.crash, c.stop} {
		end(t)
		talk.GoOn(t, 5)
		if doc := harness.Document(t, c.node); len(doc.Allocated) != len(sandboxes) || len(doc.Cooling) > 0 {
			t.Errorf("without containerd: %+v", doc)
		}
		c.start(t)
		c.networkReady(t)
		for _, s := range sandboxes {
			now, err := c.inspect(t.Context(), s.id)
			harness.OK(t, err)
			if *now != *s {
				t.Errorf("containerd restarted: sandbox %+v, was %+v", *now, *s)
			}
		}
		agree(t, l, c)
	}
	c.crash(t)
	harness.OK(t, c.node.Kill())
	talk.GoOn(t, 5)
	c.startDaemon(t) // with nobody at the CRI socket
	harness.Ready(t, c.node)
	if doc := harness.Document(t, c.node); len(doc.Allocated) != len(sandboxes) {
		t.Errorf("daemon started without containerd: %+v", doc)
	}
	c.start(t)
	c.runMany(t, "later", 1)
	agree(t, l, c)
	talk.GoOn(t, 5)
	harness.OK(t, talk.End())
	empty(t, l, c)
}
